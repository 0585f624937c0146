"""The sink: a knot before the first token that every query sees."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn._checks import check_finite, may_look_at_values
from ctsattn.ops.continuous.clock import median_gap
from ctsattn.ops.continuous.knots import Knots, take_rows


class Sink(NamedTuple):
    """A knot before the first token that every query sees; the defaults are the post's choice.

    Attributes:
        key: Key, of a shape that broadcasts to `[batch, kv_heads, head_dim]`; a number fills it; "first"
            copies the first token, 0 where there is none.
        value: Value, likewise, to `[batch, kv_heads, value_dim]`.
        gap: Time between the sink and the first token in the unit of `times`: a number, a tensor `[]` or
            `[batch]` (it may be learned, and must not be negative), or "median", the median gap of the row.
            The median reads the whole clock, so with it an output depends on later times.
    """

    key: Tensor | float | Literal["first"] = 0.0
    value: Tensor | float | Literal["first"] = 0.0
    gap: Tensor | float | Literal["median"] = 1.0

    def check(self) -> None:
        """Raise a `ValueError` if a part is a word that means nothing or the gap is no length."""
        for name, given in (("key", self.key), ("value", self.value)):
            if isinstance(given, str) and given != "first":
                raise ValueError(f'`sink.{name}` must be a tensor, a number or "first", not {given!r}.')
        if isinstance(self.gap, str):
            if self.gap != "median":
                raise ValueError(f'`sink.gap` must be a number, a tensor or "median", not {self.gap!r}.')
        elif not isinstance(self.gap, Tensor):
            if not 0 <= self.gap < float("inf"):
                raise ValueError(f"`sink.gap` must be finite and not negative, but it is {self.gap}.")
        elif may_look_at_values(self.gap):
            check_finite("sink.gap", self.gap)
            if bool((self.gap < 0).any()):
                raise ValueError(f"`sink.gap` must not be negative, but it is {self.gap.min().item()}.")

    @property
    def surely_has_length(self) -> bool:
        """Whether the gap is known to be more than 0 without looking at a tensor."""
        return isinstance(self.gap, int | float) and self.gap > 0

    def gap_of(self, knots: Knots, gaps: Tensor) -> Tensor:
        """The gap `[batch, 1]` in the unit and dtype of `gaps`."""
        if isinstance(self.gap, str):
            return median_gap(gaps, knots.piece_before())
        gap = self.gap if isinstance(self.gap, Tensor) else gaps.new_full((), float(self.gap))
        gap = gap.to(gaps.dtype).reshape(-1, 1)
        _check_shape("gap", gap[:, 0], gaps.shape[:1])
        return gap.expand(gaps.shape[0], 1)


def add_sink(
    sink: Sink, gap: Tensor, knots: Knots, gaps: Tensor, borders: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Put the sink before the first knot of every series.

    Args:
        sink: Key and value.
        gap: Gap of the sink `[batch, 1]`, in the unit of `gaps`.
        knots: Knots so far.
        gaps: `[batch, knots]`.
        borders: First knot of each packed series, and the end of the last, `[batch, series + 1]`; None: there
            is one series.

    Returns:
        Keys, values and gaps, with as many knots more as there are series.
    """
    key = _token("key", sink.key, knots.k, borders)
    value = _token("value", sink.value, knots.v, borders)
    k, v = torch.cat([key, knots.k], dim=2), torch.cat([value, knots.v], dim=2)
    if borders is None or knots.series is None:
        return k, v, torch.cat([torch.zeros_like(gap), gap, gaps[:, 1:]], dim=1)[:, : k.shape[2]]
    series = borders.shape[1] - 1
    begins = pad(knots.series.diff(dim=-1) != 0, (1, 0), value=True)[:, : gaps.shape[1]]
    gaps = pad(torch.where(begins, gap, gaps), (series, 0))
    number, place = (torch.arange(n, device=gaps.device) for n in (series, knots.k.shape[2]))
    order = torch.cat([borders[:, :-1] + number, place + knots.series + 1], dim=1).argsort(dim=-1)
    k, v = (take_rows(x, order) for x in (k, v))
    return k, v, gaps.gather(-1, order)


def _token(name: str, given: Tensor | float | str, like: Tensor, borders: Tensor | None) -> Tensor:
    """Key or value of the sink, one for each series: `[batch, kv_heads, series, width]`."""
    batch, heads, length, width = like.shape
    series = 1 if borders is None else borders.shape[1] - 1
    if isinstance(given, str):
        if borders is None or length == 0:
            return pad(like[:, :, :1], (0, 0, 0, 0 if length else series))
        starts, ends = borders[:, :-1], borders[:, 1:]
        first = take_rows(like, starts.clamp(max=length - 1))
        return first.where((starts < ends)[:, None, :, None], 0.0)
    token = given.to(like.dtype) if isinstance(given, Tensor) else like.new_full((), float(given))
    if token.dim() == 4:
        token = token.squeeze(2)
    _check_shape(name, token, (batch, heads, width))
    return token.expand(batch, heads, width)[:, :, None].expand(batch, heads, series, width)


def _check_shape(name: str, given: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a `ValueError` if a part of the sink does not broadcast to a shape."""
    fits = given.dim() <= len(shape) and all(
        size in (1, wanted) for size, wanted in zip(reversed(given.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"`sink.{name}` must broadcast to the shape {list(shape)}, but its shape is {list(given.shape)}."
        )
