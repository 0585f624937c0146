"""From times to gaps.

Times are differenced in their own dtype, int64 or floating, and brought to a unit of the row before they are
narrowed: neither a far origin nor a small unit costs digits. The unit is a power of two, so that dividing by
it is exact, and it comes from the first gap that is not 0, so that a query depends on no later time, to the
bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Exponent of two of the largest unit; float32 holds exponents to 127.
MAX_UNIT = 64


def steps_between(times: Tensor, wide: torch.dtype) -> Tensor:
    """Time before each knot `[batch, knots]`, 0 before the first, in the clock's dtype if it is floating."""
    steps = torch.diff(times, prepend=times[:, :1]) if times.shape[1] else times
    return steps if steps.is_floating_point() else steps.to(wide)


def unit_of(gaps: Tensor) -> Tensor:
    """A power of two near the first gap that is not 0, or 1: `[batch, 1]`, without gradient.

    It lies between 2^-64 and 2^64, so that gaps many orders smaller or larger than the first stay finite.
    """
    if gaps.shape[-1] == 0:
        return gaps.new_ones((gaps.shape[0], 1))
    gaps = gaps.detach()
    gap = gaps.gather(-1, (gaps > 0).byte().argmax(dim=-1, keepdim=True))
    exponent = torch.frexp(gap).exponent.clamp(-MAX_UNIT, MAX_UNIT)
    return torch.ldexp(torch.ones_like(gap), exponent)


def median_gap(gaps: Tensor, is_piece: Tensor | None) -> Tensor:
    """Lower median of the lengths of a row's pieces `[batch, 1]`, 1 where there is none."""
    if is_piece is None:
        is_piece = (torch.arange(gaps.shape[-1], device=gaps.device) > 0).expand_as(gaps)
    if gaps.shape[-1] == 0:
        return gaps.new_ones((gaps.shape[0], 1))
    median = gaps.masked_fill(~is_piece, torch.nan).nanmedian(dim=-1, keepdim=True).values
    return torch.where(median.isnan(), 1.0, median)


def common_clock(times: Tensor, query_times: Tensor) -> tuple[Tensor, Tensor]:
    """Both clocks in one dtype: the wider of two floating ones, float64 if one counts in integers."""
    if times.dtype == query_times.dtype:
        return times, query_times
    return times.double(), query_times.double()


def elapsed_since(
    times: Tensor,
    first: Tensor,
    last: Tensor,
    final: Tensor,
    query_times: Tensor,
    sink_gap: Tensor | None,
) -> Tensor:
    """Time from the last knot that a query sees to the query, at least 0.

    It is 0 in a series without knots: if there is a sink, nothing says when it was.

    Args:
        times: Times of the knots, without the sink, `[batch, knots]`.
        first: First knot of the query's series `[batch, queries]`.
        last: Last knot `[batch, queries]`; less than the first where no knot but perhaps the sink is seen.
        final: Last knot of the query's series; less than the first where there is none.
        query_times: `[batch, queries]`.
        sink_gap: Gap of the sink `[batch, 1]`, if there is a sink.

    Returns:
        `[batch, queries]`, in the dtype of the common clock, floating if there is a sink.
    """
    times, query_times = common_clock(times, query_times)
    if times.shape[1] == 0:
        return torch.zeros_like(query_times)
    place = torch.maximum(first, last).clamp(0, times.shape[1] - 1)
    elapsed = query_times - times.gather(-1, place)
    if sink_gap is not None:
        elapsed = elapsed + torch.where(last < first, sink_gap, 0.0)
    counts = final >= first if sink_gap is not None else last >= first
    return torch.where(counts, elapsed.clamp(min=0), 0)
