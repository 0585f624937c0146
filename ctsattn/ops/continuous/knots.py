"""From tokens to knots: masked tokens drop out, and what a query sees becomes a first and a last knot."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn._checks import may_look_at_values
from ctsattn.ops.continuous.clock import common_clock


class Knots(NamedTuple):
    """Keys and values at knots, without the sink.

    Attributes:
        k: `[batch, kv_heads, knots, head_dim]`; the knots of a row stand first, what follows them is padding.
        v: `[batch, kv_heads, knots, value_dim]`.
        times: `[batch, knots]`; padding repeats the last time. None: the gaps are all 1.
        before: `[batch, tokens + 1]`, how many knots come from the tokens before each token; None: all of
            them.
        series: `[batch, knots]`, the number of the packed series that a knot belongs to, for padding one more
            than the last; None: there is one series.
        source: `[batch, knots]`, the token that a knot comes from; None: knot i comes from token i.
        in_place: Whether knot i is known to come from token i, as long as the row has knots.
    """

    k: Tensor
    v: Tensor
    times: Tensor | None
    before: Tensor | None
    series: Tensor | None
    source: Tensor | None
    in_place: bool

    def piece_before(self) -> Tensor | None:
        """Whether a piece ends at each knot `[batch, knots]`; None: at all but the first."""
        if self.before is None and self.series is None:
            return None
        place = torch.arange(self.k.shape[2], device=self.k.device)
        piece = (place > 0).expand(self.k.shape[0], -1)
        if self.before is not None:
            piece = piece & (place < self.before[:, -1:])
        if self.series is not None:
            piece = piece & pad(self.series.diff(dim=-1) == 0, (1, 0))[:, : len(place)]
        return piece


def gather_knots(
    k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None, cu_seqlens: Tensor | None
) -> Knots:
    """Drop the masked tokens: the knots of a row move to its front, in order."""
    batch, _, tokens, _ = k.shape
    series = None if cu_seqlens is None else series_of_tokens(cu_seqlens, tokens).expand(batch, tokens)
    look = mask is not None and may_look_at_values(mask)
    if mask is None or (look and bool(mask.all())):
        return Knots(k, v, times, None, series, None, in_place=True)
    before = pad(mask.long().cumsum(dim=-1), (1, 0))
    lengths = before[:, -1:]
    place = torch.arange(tokens, device=k.device)
    order = torch.argsort((~mask).byte(), dim=-1, stable=True)
    source = order.gather(-1, torch.minimum(place, (lengths - 1).clamp(min=0)))
    # What stands in a masked place may be anything, NaN included.
    k, v = (x.masked_fill(~mask[:, None, :, None], 0.0) for x in (k, v))
    in_place = look and bool((mask[:, 1:] <= mask[:, :-1]).all())  # all padding is on the right already
    if not in_place:
        k, v = (take_rows(x, source) for x in (k, v))
    if times is not None:
        times = times.masked_fill(~mask, 0).gather(-1, source)
    if series is not None and cu_seqlens is not None:
        series = torch.where(place < lengths, series.gather(-1, source), len(cu_seqlens) - 1)
    return Knots(k, v, times, before, series, source, in_place)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of `x` `[batch, heads, length, width]` at `index` `[batch, rows]`, for every head."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def series_of_tokens(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Number of the packed series that each token belongs to `[tokens]`."""
    token = torch.arange(tokens, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:-1].long().contiguous(), token, right=True)


def borders_of(knots: Knots, cu_seqlens: Tensor) -> Tensor:
    """First knot of each packed series, and the end of the last, `[batch, series + 1]`."""
    borders = cu_seqlens.long()
    return borders.expand(knots.k.shape[0], -1) if knots.before is None else knots.before[:, borders]


def index_limits(
    knots: Knots,
    queries: int,
    is_causal: bool,
    start: int,
    cu_seqlens: Tensor | None,
    cu_seqlens_q: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """First knot, last knot, and last knot of the series, for queries that sit at tokens or see everything.

    Args:
        knots: Knots of the rows.
        queries: Number of queries.
        is_causal: Whether query i sees the tokens up to `start + i` only.
        start: Token at which the first query sits.
        cu_seqlens: Borders of packed series.
        cu_seqlens_q: Borders of their queries; None: query i belongs to the series of token i.

    Returns:
        Three int64 tensors `[batch, queries]`.
    """
    batch, _, length, _ = knots.k.shape
    device, before = knots.k.device, knots.before
    if before is None and cu_seqlens is None:
        first, final = (
            torch.full((1, 1), at, device=device).expand(batch, queries) for at in (0, length - 1)
        )
        if not is_causal or length == 0:
            return first, final, final
        last = torch.arange(start, start + queries, device=device).clamp_(max=length - 1)
        return first, last.expand(batch, queries), final
    if before is None:
        before = torch.arange(length + 1, device=device).expand(batch, -1)
    token = torch.arange(start, start + queries, device=device)
    if cu_seqlens is None:
        first = torch.zeros((batch, queries), dtype=torch.long, device=device)
        final = (before[:, -1:] - 1).expand(batch, queries)
        token = token.clamp(max=max(length - 1, 0))
    else:
        own = cu_seqlens if cu_seqlens_q is None else cu_seqlens_q
        series = series_of_tokens(own, queries)
        begin, end = cu_seqlens.long()[series], cu_seqlens.long()[series + 1]
        first, final = before[:, begin], before[:, end] - 1
        token = torch.minimum(token - own.long()[series] + begin, end - 1)
    last = before[:, token + 1] - 1 if is_causal and length > 0 else final
    return first, last, final


def time_limit(knots: Knots, query_times: Tensor, final: Tensor, series: Tensor | None) -> Tensor:
    """Last knot at or before each query's time, one before the first of its series if there is none.

    Args:
        knots: Knots with times.
        query_times: `[batch, queries]`.
        final: Last knot of the query's series `[batch, queries]`.
        series: Number of the packed series of each query `[queries]`; None: there is one.

    Returns:
        `[batch, queries]` int64.
    """
    assert knots.times is not None
    times, query_times = common_clock(knots.times.detach(), query_times.detach())
    if series is not None and knots.series is not None:
        return torch.minimum(_knots_until(times, knots.series, query_times, series) - 1, final)
    seen = torch.searchsorted(times.contiguous(), query_times.contiguous(), right=True)
    return torch.minimum(seen - 1, final)


def _knots_until(times: Tensor, series: Tensor, query_times: Tensor, query_series: Tensor) -> Tensor:
    """Number of knots in earlier series, or in a query's own and not after it: `[batch, queries]`."""
    count = times.shape[1]
    every_time = torch.cat([times, query_times], dim=1)
    every_series = torch.cat([series, query_series.expand(query_times.shape)], dim=1)
    # By series, then by time, then knots before queries.
    order = every_time.argsort(dim=1, stable=True)
    order = order.gather(1, every_series.gather(1, order).argsort(dim=1, stable=True))
    seen = (order < count).cumsum(dim=1)
    return torch.empty_like(seen).scatter(1, order, seen)[:, count:]
