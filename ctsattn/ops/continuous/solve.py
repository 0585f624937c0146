"""From a checked request to the answer: pose the canonical problem, run a backend, add the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ctsattn._checks import check_ascending, check_finite, may_look_at_values
from ctsattn.ops.continuous.clock import elapsed_since, steps_between, unit_of
from ctsattn.ops.continuous.cpu import has_numba
from ctsattn.ops.continuous.ends import PartialPiece, merge_partial, repeat_heads, take_knots
from ctsattn.ops.continuous.interval import ends_at_query, symmetric_ends
from ctsattn.ops.continuous.knots import (
    Knots,
    borders_of,
    gather_knots,
    index_limits,
    series_of_tokens,
    time_limit,
)
from ctsattn.ops.continuous.request import Request
from ctsattn.ops.continuous.sink import add_sink

Core = Callable[..., tuple[Tensor, Tensor]]


class Rule(NamedTuple):
    """How an interval is integrated.

    Attributes:
        core: Solves the canonical problem, as `reference.core`.
        piece_weights: Shares of a piece that fall to its two ends, as `reference.piece_weights`.
        answer: As `core`, but only outputs, and complete where there is nothing to integrate; it may decline
            with None. None: the rule has no such pass of its own.
    """

    core: Core
    piece_weights: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    answer: Callable[..., Tensor | None] | None = None


class Problem(NamedTuple):
    """The canonical problem, and what is to be added to its answer.

    Attributes:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys at knots, the sink included, `[batch, kv_heads, knots, head_dim]`.
        v: Values at knots `[batch, kv_heads, knots, value_dim]`.
        gaps: Time before each knot `[batch, knots]`.
        first: First knot that a query sees `[batch, queries]` int32.
        last: Last knot that a query sees `[batch, queries]` int32.
        scale: Factor on the scores.
        causal: As in `reference.core`.
        full: As in `reference.core`.
        offset: As in `reference.core`.
        whole: First and last knot of the whole pieces, where they differ from `first` and `last`.
        partial: Parts of pieces.
        packed: Whether `first` is not 0 everywhere.
        may_be_flat: Whether a query may see several knots and no time between them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gaps: Tensor
    first: Tensor
    last: Tensor
    scale: float
    causal: bool
    full: bool
    offset: int
    whole: tuple[Tensor, Tensor] | None
    partial: tuple[PartialPiece, ...]
    packed: bool
    may_be_flat: bool


def attend(q: Tensor, k: Tensor, v: Tensor, request: Request, rule: Rule) -> Tensor:
    """Answer a checked request: `[batch, heads, queries, value_dim]` in the dtype of `q`."""
    if q.numel() == 0 or (k.shape[2] == 0 and request.sink is None):
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
        return (q @ k.mT) @ v  # nothing, but on the graph of the arguments
    problem = pose(q, k, v, request)
    if request.dropout_p == 0:
        return solve(problem, rule)
    # With the identity as values, the mean value is the row of weights.
    identity = torch.eye(problem.v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
    weights = solve(problem._replace(v=identity), rule)
    return dropout(weights, request.dropout_p) @ repeat_heads(problem.v, q.shape[1])


def pose(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Problem:
    """Bring a request to the canonical problem."""
    queries, cu_seqlens, sink = q.shape[2], request.cu_seqlens, request.sink
    knots = gather_knots(k, v, request.times, request.key_mask, cu_seqlens)
    by_time = request.query_times is not None and (request.is_causal or request.tail == "cut")
    by_index = request.is_causal and not by_time
    own = cu_seqlens if request.cu_seqlens_q is None else request.cu_seqlens_q
    series = None if own is None else series_of_tokens(own, queries)
    first, last, final = index_limits(knots, queries, by_index, request.query_start, cu_seqlens, own)
    if by_time and knots.times is not None and request.query_times is not None:
        last = time_limit(knots, request.query_times, final, series)
    wide = torch.promote_types(q.dtype, torch.float32)
    gaps, sink_gap, elapsed = _lengths(request, knots, (first, last, final), wide)
    k, v = knots.k, knots.v
    if sink is not None and sink_gap is not None:
        borders = None if cu_seqlens is None else borders_of(knots, cu_seqlens)
        k, v, gaps = add_sink(sink, sink_gap, knots, gaps, borders)
        sinks = 0 if series is None else series  # before the own one
        first, last, final = first + sinks, last + sinks + 1, final + sinks + 1
    whole, partial = _ends(request, gaps, first, last, final, elapsed)
    simple = cu_seqlens is None and not by_time and whole is None
    return Problem(
        q,
        k,
        v,
        gaps,
        first.int(),
        last.int(),
        request.scale,
        causal=simple and request.is_causal and knots.in_place,
        full=simple and not request.is_causal,
        offset=request.query_start + (sink is not None),
        whole=whole,
        partial=partial,
        packed=cu_seqlens is not None,
        may_be_flat=_may_be_flat(request),
    )


def _lengths(
    request: Request, knots: Knots, limits: tuple[Tensor, Tensor, Tensor], wide: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gaps before the knots, gap of the sink, and time since the last knot, in one unit for each row."""
    batch, _, length, _ = knots.k.shape
    if _is_ordinary(request, knots) and knots.times is not None:
        from ctsattn.ops.continuous.cpu.clock import plain_gaps

        gaps = plain_gaps(knots.times, wide)
        if gaps is not None:
            return gaps, None, None
    piece = knots.piece_before()
    if knots.times is None:
        gaps = torch.ones((batch, length), dtype=wide, device=knots.k.device)
        gaps = gaps.masked_fill(torch.arange(length, device=gaps.device) == 0, 0.0)
    else:
        gaps = steps_between(knots.times, wide)
        if may_look_at_values(knots.times, piece):
            _check_finite(request)
            check_ascending("times", gaps.detach(), piece, knots.source)
    gaps = gaps if piece is None else torch.where(piece, gaps, 0.0)
    sink_gap = None if request.sink is None else request.sink.gap_of(knots, gaps)
    elapsed = None
    if knots.times is not None and request.query_times is not None and request.tail != "observed":
        elapsed = elapsed_since(knots.times, *limits, request.query_times, sink_gap)
    unit = unit_of(gaps if sink_gap is None else torch.cat([sink_gap, gaps], dim=-1))
    gaps, sink_gap, elapsed = (None if x is None else (x / unit).to(wide) for x in (gaps, sink_gap, elapsed))
    assert gaps is not None
    return gaps, sink_gap, elapsed


def _check_finite(request: Request) -> None:
    """Check that times are finite where they are read."""
    times, mask = request.times, request.key_mask
    if times is not None:
        check_finite("times", times if mask is None else times.masked_fill(~mask, 0))


def _is_ordinary(request: Request, knots: Knots) -> bool:
    """Whether there is nothing but a clock in eager code on the CPU, which is read in one pass."""
    if knots.times is None or knots.before is not None or knots.series is not None:
        return False
    alone = request.sink is None and (request.query_times is None or request.tail == "observed")
    return alone and not knots.times.requires_grad and may_look_at_values(knots.times) and has_numba()


def _ends(
    request: Request, gaps: Tensor, first: Tensor, last: Tensor, final: Tensor, elapsed: Tensor | None
) -> tuple[tuple[Tensor, Tensor] | None, tuple[PartialPiece, ...]]:
    """Limits of the whole pieces, where they are not `first` and `last`, and the parts of pieces."""
    if request.interval == "symmetric":
        at_knots = request.is_causal and request.query_times is None
        begin, end, partial = symmetric_ends(gaps, first, last, final, elapsed, request.tail, at_knots)
        return (begin.int(), end.int()), partial
    if elapsed is None:
        return None, ()
    return None, (ends_at_query(gaps, last, final, elapsed, request.tail),)


def _may_be_flat(request: Request) -> bool:
    """Whether a query may see several knots with no time to integrate over between them."""
    if request.interval == "symmetric":
        return True
    return request.times is not None and not (request.sink is not None and request.sink.surely_has_length)


def solve(problem: Problem, rule: Rule) -> Tensor:
    """Answer a problem: `[batch, heads, queries, value_dim]` in the dtype of `q`."""
    q, k, v, scale = problem.q, problem.k, problem.v, problem.scale
    first, last = problem.whole or (problem.first, problem.last)
    hints = {"causal": problem.causal, "full": problem.full, "offset": problem.offset}
    if rule.answer is not None and problem.whole is None and not problem.partial:
        flat = problem.may_be_flat
        out = rule.answer(q, k, v, problem.gaps, first, last, scale, **hints, may_be_flat=flat)
        if out is not None:
            return out
    out, lse = rule.core(q, k, v, problem.gaps, first, last, scale, **hints)
    for piece in problem.partial:
        out, lse = merge_partial(out, lse, q, k, v, scale, piece, rule.piece_weights)
    return _fill_empty(problem, rule.core, out, lse == -torch.inf).to(q.dtype)


def _fill_empty(problem: Problem, core: Core, out: Tensor, empty: Tensor) -> Tensor:
    """Give queries with nothing to integrate the limit as all gaps shrink together.

    Args:
        problem: The problem that was solved.
        core: The rule's.
        out: Its answer `[batch, heads, queries, value_dim]`.
        empty: Where no weight was found `[batch, heads, queries]`.

    Returns:
        The value of the knot where only one is seen, else the answer with unit gaps; 0 where none is seen.
    """
    if not may_look_at_values(empty):
        return _limits(problem, core, out, empty, problem.may_be_flat)
    rows = empty.any(dim=1).any(dim=0).nonzero().squeeze(-1)
    if len(rows) == 0:
        return out
    q, first, last = problem.q[:, :, rows], problem.first[:, rows], problem.last[:, rows]
    few = problem._replace(q=q, first=first, last=last)
    empty = empty[:, :, rows]
    several = problem.may_be_flat and bool((empty & (first < last)[:, None]).any())
    return out.index_copy(2, rows, _limits(few, core, out[:, :, rows], empty, several))


def _limits(problem: Problem, core: Core, out: Tensor, empty: Tensor, several: bool) -> Tensor:
    """The limits for all queries of a problem; `several`: whether some may see more than one knot."""
    q, k, v, first, last = problem.q, problem.k, problem.v, problem.first, problem.last
    if several:
        flat = empty & (first < last)[:, None]
        last_if_flat = torch.where(flat[:, 0], last, -1)
        limit, _ = core(q, k, v, torch.ones_like(problem.gaps), first, last_if_flat, problem.scale)
        out = torch.where(flat[..., None], limit.to(out.dtype), out)
    only = take_knots(v, first if problem.packed else first[:, :1], q.shape[1], out.dtype)
    return torch.where((empty & (first == last)[:, None])[..., None], only, out)
