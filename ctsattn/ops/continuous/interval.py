"""Where the interval of each query begins and ends, when that is not at a knot."""

from __future__ import annotations

import torch
from torch import Tensor

from ctsattn.ops.continuous.ends import PartialPiece


def ends_at_query(
    gaps: Tensor, last: Tensor, final: Tensor, elapsed: Tensor, tail: str, begin: Tensor | float = 0.0
) -> PartialPiece:
    """The piece from the last knot to the query's own time.

    Args:
        gaps: `[batch, knots]`.
        last: Last knot that the query sees `[batch, queries]`.
        final: Last knot of the query's series `[batch, queries]`.
        elapsed: Time since the last knot `[batch, queries]`.
        tail: "hold" holds the last knot constant, "cut" follows the line to the next knot.
        begin: Share of that line at which the interval begins, for a query before the second knot.

    Returns:
        The piece; it is empty for "cut" where no knot follows.
    """
    zero = torch.zeros_like(elapsed)
    if tail == "hold":
        return PartialPiece(last, last, zero, zero, elapsed)
    following = torch.minimum(last + 1, final)
    gap = torch.where(last < final, gaps.gather(-1, following.clamp(min=0)), 0.0)
    end = torch.where(gap > 0, elapsed / torch.where(gap > 0, gap, 1.0), 0.0).clamp(max=1)
    begin = torch.zeros_like(end) + begin
    end = torch.maximum(begin, end)
    return PartialPiece(last, following, begin, end, (end - begin) * gap)


def symmetric_ends(
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    final: Tensor,
    elapsed: Tensor | None,
    tail: str,
    at_knots: bool,
) -> tuple[Tensor, Tensor, tuple[PartialPiece, ...]]:
    """Half pieces at both ends, as `interval="symmetric"` has them.

    Args:
        gaps: `[batch, knots]`.
        first: First knot that the query sees `[batch, queries]`.
        last: Last knot that the query sees `[batch, queries]`.
        final: Last knot of the query's series `[batch, queries]`.
        elapsed: Time since the last knot, where the interval ends at the query's time; else None.
        tail: As in `continuous_attention`.
        at_knots: Whether the queries sit at knots, so that "cut" reaches to the middle of the next piece.

    Returns:
        First and last knot of the whole pieces, and the partial pieces.
    """
    half = torch.full(last.shape, 0.5, dtype=gaps.dtype, device=gaps.device)
    zero, one = torch.zeros_like(half), torch.ones_like(half)
    visible = last > first

    def gap_before(knot: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, gaps.gather(-1, knot.clamp(0, gaps.shape[1] - 1)), 0.0)

    if elapsed is not None:
        upper, whole = ends_at_query(gaps, last, final, elapsed, tail, torch.where(visible, zero, half)), last
    elif tail == "hold":
        upper, whole = PartialPiece(last, last, zero, zero, gap_before(last, visible) / 2), last
    elif tail == "cut" and at_knots:
        following = torch.minimum(last + 1, final)
        gap = gap_before(following, visible & (last < final)) / 2
        upper, whole = PartialPiece(last, following, zero, half, gap), last
    else:
        visible = last > first + 1  # between the middles of one piece there is nothing
        upper, whole = PartialPiece(last - 1, last, zero, half, gap_before(last, visible) / 2), last - 1
    lower = PartialPiece(first, first + 1, half, one, gap_before(first + 1, visible) / 2)
    return first + 1, whole, (lower, upper)
