"""From what a user may pass to the one problem that every backend solves.

Tokens become knots (masked ones drop out, the sink comes in), times become gaps, and what a query may see
becomes a first and a last knot. Only gaps leave this file: they are differenced in the clock's own dtype and
divided by the row's largest before they are narrowed, so neither a far origin nor a small unit costs digits.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn._checks import check_ascending, check_finite, may_look_at_values


class Sink(NamedTuple):
    """A knot before the first token that every query sees; the defaults are the post's choice.

    Attributes:
        key: Key, of a shape that broadcasts to `[batch, kv_heads, head_dim]`; a number fills it; "first"
            copies the first token.
        value: Value, likewise, to `[batch, kv_heads, value_dim]`.
        gap: Time between the sink and the first token in the unit of `times`: a number, a tensor `[]` or
            `[batch]` (it may be learned, and must not be negative), or "median", the row's median gap.
    """

    key: Tensor | float | Literal["first"] = 0.0
    value: Tensor | float | Literal["first"] = 0.0
    gap: Tensor | float | Literal["median"] = 1.0


class Knots(NamedTuple):
    """Keys and values at knots, before the sink comes in.

    Attributes:
        k: `[batch, kv_heads, knots, head_dim]`; the knots of a row stand first, what follows them is padding.
        v: `[batch, kv_heads, knots, value_dim]`.
        times: `[batch, knots]` int64, float32 or float64; None: the gaps are all 1. Padding repeats the last
            time.
        before: `[batch, tokens + 1]`, how many knots come from the tokens before each token; None: all of
            them.
        segment: `[batch, knots]`, the number of the packed series that a knot belongs to; None: there is one.
        source: `[batch, knots]`, the token that a knot comes from; None: knot i comes from token i.
    """

    k: Tensor
    v: Tensor
    times: Tensor | None
    before: Tensor | None
    segment: Tensor | None
    source: Tensor | None

    @property
    def lengths(self) -> Tensor | None:
        """Knots of each row `[batch]`; None: all are."""
        return None if self.before is None else self.before[:, -1]


def gather_knots(
    k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None, cu_seqlens: Tensor | None
) -> Knots:
    """Drop the masked tokens: the knots of a row move to its front, in order."""
    batch, _, tokens, _ = k.shape
    segment = None
    if cu_seqlens is not None:
        segment = series_of_tokens(cu_seqlens, tokens).expand(batch, tokens)
    if mask is None:
        return Knots(k, v, times, None, segment, None)
    before = pad(mask.long().cumsum(dim=-1), (1, 0))
    if may_look_at_values(mask) and bool(mask.all()):
        return Knots(k, v, times, before, segment, None)
    # What stands in a masked place may be anything, NaN included.
    k, v = (x.masked_fill(~mask[:, None, :, None], 0.0) for x in (k, v))
    times = None if times is None else times.masked_fill(~mask, 0)
    lengths = before[:, -1:]
    order = torch.argsort((~mask).byte(), dim=-1, stable=True)
    place = torch.arange(tokens, device=k.device)
    source = order.gather(-1, torch.minimum(place, (lengths - 1).clamp(min=0)))
    if not (may_look_at_values(mask) and bool((mask[:, 1:] <= mask[:, :-1]).all())):
        k, v = (torch.take_along_dim(x, source[:, None, :, None], dim=2) for x in (k, v))
    times = None if times is None else times.gather(-1, source)
    segment = None if segment is None else segment.gather(-1, source)
    return Knots(k, v, times, before, segment, source)


def gaps_between(knots: Knots, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Time before each knot, 0 before the first of a series, in units of the row's largest.

    Returns:
        The gaps `[batch, knots]` of dtype `wide`, and the unit `[batch, 1]` of the clock's dtype or `wide`.
    """
    batch, _, length, _ = knots.k.shape
    if knots.times is None:
        steps = torch.ones((batch, max(length - 1, 0)), dtype=wide, device=knots.k.device)
    else:
        steps = knots.times.diff(dim=-1)
        _check_steps(knots, steps)
        steps = steps if steps.is_floating_point() else steps.to(wide)
    if knots.segment is not None:
        steps = torch.where(knots.segment.diff(dim=-1) == 0, steps, 0.0)
    gaps = pad(steps, (1, 0))[:, :length]
    if knots.times is None or length == 0:
        return gaps, gaps.new_ones((batch, 1))
    unit = gaps.detach().amax(dim=-1, keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)
    return (gaps / unit).to(wide), unit


def _check_steps(knots: Knots, steps: Tensor) -> None:
    """Raise if the clock runs backwards within a series."""
    if not may_look_at_values(knots.times, knots.before, knots.segment):
        return
    within = None if knots.segment is None else knots.segment.diff(dim=-1) == 0
    check_ascending("times", steps.detach(), within, knots.source)


def index_limits(
    knots: Knots, queries: int, is_causal: bool, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """First knot, last knot, and last knot of the series, for queries that sit at tokens or see everything.

    Args:
        knots: Knots of the rows.
        queries: Number of queries.
        is_causal: Whether query i sees the tokens up to i only.
        cu_seqlens: Borders of packed series; query i then belongs to the series of token i.

    Returns:
        Three int64 tensors `[batch, queries]`.
    """
    batch, _, length, _ = knots.k.shape
    device = knots.k.device
    before = knots.before
    if before is None:
        before = torch.arange(length + 1, device=device).expand(batch, -1)
    token = torch.arange(queries, device=device).clamp(max=max(length - 1, 0))
    if cu_seqlens is None:
        first = torch.zeros((batch, queries), dtype=torch.long, device=device)
        final = (before[:, -1:] - 1).expand(batch, queries)
    else:
        borders, series = before[:, cu_seqlens.long()], series_of_tokens(cu_seqlens, queries)
        first, final = borders[:, series], borders[:, series + 1] - 1
    last = before[:, 1:][:, token] - 1 if is_causal and length > 0 else final
    return first, last, final


def series_of_tokens(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Number of the packed series that each token belongs to `[tokens]`."""
    token = torch.arange(tokens, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:-1].long().contiguous(), token, right=True)


def first_knots(knots: Knots, cu_seqlens: Tensor) -> Tensor:
    """First knot of each packed series `[batch, series]`."""
    starts = cu_seqlens[:-1].long()
    return starts.expand(knots.k.shape[0], -1) if knots.before is None else knots.before[:, starts]


def time_limit(knots: Knots, query_times: Tensor | None, final: Tensor) -> Tensor:
    """Last knot at or before each query's time, -1 if there is none: `[batch, queries]` int64."""
    assert knots.times is not None and query_times is not None
    times, query_times = common_clock(knots.times.detach(), query_times.detach())
    seen = torch.searchsorted(times.contiguous(), query_times.contiguous(), right=True)
    return torch.minimum(seen - 1, final)


def common_clock(times: Tensor, query_times: Tensor) -> tuple[Tensor, Tensor]:
    """Both clocks in the wider of their dtypes; an integer and a float32 clock meet in float64."""
    if times.dtype == query_times.dtype:
        return times, query_times
    return times.double(), query_times.double()


def resolve_gap(sink: Sink, gaps: Tensor, unit: Tensor, knots: Knots) -> Tensor:
    """Gap of the sink `[batch, 1]` in the unit of `gaps`."""
    batch, length = gaps.shape
    if isinstance(sink.gap, str):
        if sink.gap != "median":
            raise ValueError(
                f'The sink\'s `gap` must be a number, a tensor or "median", but got {sink.gap!r}.'
            )
        place = torch.arange(length, device=gaps.device)
        real = (place > 0).expand(batch, length)
        if knots.lengths is not None:
            real = real & (place < knots.lengths[:, None])
        if knots.segment is not None:
            real = real & pad(knots.segment.diff(dim=-1) == 0, (1, 0))
        median = gaps.masked_fill(~real, torch.nan).nanmedian(dim=-1, keepdim=True).values
        return torch.where(median.isnan(), 1.0, median)
    gap = sink.gap if isinstance(sink.gap, Tensor) else unit.new_full((), float(sink.gap))
    if may_look_at_values(gap):
        check_finite("sink gap", gap)
        if bool((gap < 0).any()):
            raise ValueError(f"The sink's `gap` must not be negative, but got {gap.min().item():.6g}.")
    return (gap.reshape(-1, 1) / unit).to(gaps.dtype).expand(batch, 1)


def resolve_token(given: Tensor | float | str, like: Tensor, starts: Tensor | None) -> Tensor:
    """Key or value of the sink, one for each series: `[batch, kv_heads, series, width]`."""
    batch, heads, length, width = like.shape
    series = 1 if starts is None else starts.shape[1]
    if isinstance(given, str):
        if given != "first":
            raise ValueError(
                f'The sink\'s `key` and `value` must be tensors, numbers or "first", but got {given!r}.'
            )
        if starts is None:
            return like[:, :, :1]
        return torch.take_along_dim(like, starts.clamp(max=length - 1)[:, None, :, None], dim=2)
    token = given.to(like.dtype) if isinstance(given, Tensor) else like.new_full((), float(given))
    if token.dim() == 4 and token.shape[2] == 1:
        token = token[:, :, 0]
    return token.expand(batch, heads, width)[:, :, None].expand(batch, heads, series, width)


def add_sink(
    sink: Sink, gap: Tensor, knots: Knots, gaps: Tensor, starts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Put the sink before the first knot of every series.

    Args:
        sink: Key and value.
        gap: Gap of the sink `[batch, 1]`, in the unit of `gaps`.
        knots: Knots so far.
        gaps: `[batch, knots]`.
        starts: First knot of each packed series `[batch, series]`; None: there is one series.

    Returns:
        Keys, values and gaps, with as many knots more as there are series.
    """
    key, value = (resolve_token(x, like, starts) for x, like in ((sink.key, knots.k), (sink.value, knots.v)))
    if starts is None or knots.segment is None:
        k, v = torch.cat([key, knots.k], dim=2), torch.cat([value, knots.v], dim=2)
        return k, v, torch.cat([torch.zeros_like(gap), gap, gaps[:, 1:]], dim=1)
    series = starts.shape[1]
    is_first = pad(knots.segment.diff(dim=-1) != 0, (1, 0), value=True)
    gaps = torch.where(is_first, gap, gaps)
    number = torch.arange(series, device=gaps.device)
    place = torch.arange(gaps.shape[1], device=gaps.device)
    order = torch.cat([starts + number, place + knots.segment + 1], dim=1).argsort(dim=-1)
    k = torch.take_along_dim(torch.cat([key, knots.k], dim=2), order[:, None, :, None], dim=2)
    v = torch.take_along_dim(torch.cat([value, knots.v], dim=2), order[:, None, :, None], dim=2)
    return k, v, pad(gaps, (series, 0)).gather(-1, order)
