"""What was asked: the arguments of the operators, checked and brought to one shape."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ctsattn._checks import (
    check_attention_inputs,
    check_clock,
    check_finite,
    check_rows,
    check_tensor,
    may_look_at_values,
)
from ctsattn.ops.continuous.sink import Sink

Interval = Literal["left", "symmetric"]
Tail = Literal["observed", "hold", "cut"]
NARROWED_BY_AUTOCAST = (torch.float16, torch.bfloat16, torch.float32)


class Request(NamedTuple):
    """Arguments of `continuous_attention` beside queries, keys and values; described there.

    `times`, `query_times` and `key_mask` are `[batch, length]`, clocks int64, float32 or float64. Causal
    query i without a time of its own sits at key `query_start + i`, which is how a cache of keys is read.
    """

    times: Tensor | None
    query_times: Tensor | None
    key_mask: Tensor | None
    is_causal: bool
    scale: float
    sink: Sink | None
    interval: Interval
    tail: Tail
    cu_seqlens: Tensor | None
    cu_seqlens_q: Tensor | None
    dropout_p: float
    query_start: int = 0

    @property
    def has_only_a_clock(self) -> bool:
        """Whether every token is a knot, and every interval ends at knots."""
        nothing = self.query_times is self.key_mask is self.sink is self.cu_seqlens is None
        return nothing and self.interval == "left" and self.dropout_p == 0


def checked_request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    times: Tensor | None,
    *,
    query_times: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    sink: Sink | tuple | None = None,
    interval: Interval = "left",
    tail: Tail = "observed",
    cu_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Request:
    """Check the arguments of `continuous_attention`, described there.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, device, option or value is wrong.
    """
    check_attention_inputs(q, k, v, enable_gqa)
    check_choice("interval", interval, ("left", "symmetric"))
    check_choice("tail", tail, ("observed", "hold", "cut"))
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` must be at least 0 and less than 1, but got {dropout_p}.")
    (batch, _, keys, width), queries, device = k.shape, q.shape[2], q.device
    if times is not None:
        times = check_rows("times", check_clock("times", times), batch, keys, device)
    if key_mask is not None:
        key_mask = check_rows("key_mask", _checked_mask(key_mask), batch, keys, device)
    if query_times is not None:
        query_times = check_clock("query_times", query_times)
        query_times = check_rows("query_times", query_times, batch, queries, device)
        if times is None:
            raise ValueError(
                "`query_times` need the `times` of the keys. Pass `torch.arange(keys)` to count keys."
            )
    if cu_seqlens is not None or cu_seqlens_q is not None:
        _check_packing(cu_seqlens, cu_seqlens_q, keys, queries, device)
    if query_times is not None and may_look_at_values(query_times):
        check_finite("query_times", query_times)
    factor = float(width**-0.5) if scale is None else _checked_scale(scale)
    sink = None if sink is None else _checked_sink(sink)
    return Request(
        times,
        query_times,
        key_mask,
        bool(is_causal),
        factor,
        sink,
        interval,
        tail,
        cu_seqlens,
        cu_seqlens_q,
        dropout_p,
    )


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast as autocast does for `scaled_dot_product_attention`; float64 stays."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, x)
    device = q.device.type
    # Older compilers cannot trace the first question, and compile for devices that have autocast.
    known = device in ("cpu", "cuda") or torch.compiler.is_compiling()
    if not known and not torch.amp.is_autocast_available(device):
        return q, k, v
    if not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x.to(dtype) if x.dtype in NARROWED_BY_AUTOCAST else x for x in (q, k, v))
    return q, k, v


def check_choice(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    """Raise a `ValueError` if an option is none of the words it may be."""
    if value not in known:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, known))}, but got {value!r}.")


def _checked_mask(key_mask: Tensor) -> Tensor:
    """The mask, if it is boolean."""
    check_tensor("key_mask", key_mask)
    if key_mask.dtype != torch.bool:
        raise TypeError(
            f"`key_mask` must be boolean, true where a key exists, but its dtype is {key_mask.dtype}."
        )
    return key_mask


def _checked_scale(scale: float) -> float:
    """The scale, if it is a finite number."""
    if isinstance(scale, torch.SymFloat | torch.SymInt):
        return scale
    if not isinstance(scale, Real):
        raise TypeError(
            f"`scale` must be a number, but it is of type {type(scale).__name__}. Multiply `q` by a "
            f"scale that is learned."
        )
    if not isfinite(scale):
        raise ValueError(f"`scale` must be finite, but it is {scale}.")
    return float(scale)


def _checked_sink(sink: Sink | tuple) -> Sink:
    """The sink as a `Sink`, checked."""
    if not isinstance(sink, tuple) or len(sink) > 3:
        raise TypeError(f"`sink` must be a `Sink` or a tuple (key, value, gap), but it is {sink!r}.")
    sink = sink if isinstance(sink, Sink) else Sink(*sink)
    sink.check()
    return sink


def _check_packing(
    cu_seqlens: Tensor | None, cu_seqlens_q: Tensor | None, keys: int, queries: int, device: torch.device
) -> None:
    """Check the borders of packed series, and of their queries."""
    if cu_seqlens is None:
        if cu_seqlens_q is not None:
            raise ValueError("`cu_seqlens_q` needs the borders of the keys: give `cu_seqlens` too.")
        return
    _check_borders("cu_seqlens", cu_seqlens, "keys", keys, device)
    if cu_seqlens_q is None:
        if queries != keys:
            raise ValueError(
                f"Packed series need as many queries as keys, but got {queries} and {keys}. Give the borders "
                f"of the queries as `cu_seqlens_q`."
            )
        return
    _check_borders("cu_seqlens_q", cu_seqlens_q, "queries", queries, device)
    if cu_seqlens.shape != cu_seqlens_q.shape:
        raise ValueError(
            f"`cu_seqlens` has the borders of {len(cu_seqlens) - 1} series, but `cu_seqlens_q` of "
            f"{len(cu_seqlens_q) - 1}. A series without queries has two borders that are equal."
        )


def _check_borders(name: str, borders: Tensor, what: str, count: int, device: torch.device) -> None:
    """Check the borders of packed series."""
    check_tensor(name, borders)
    if borders.dim() != 1 or len(borders) < 2 or borders.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"`{name}` must be int32 or int64 of shape [series + 1], but got {borders.dtype} of shape "
            f"{list(borders.shape)}."
        )
    if borders.device != device:
        raise ValueError(
            f"`q` is on {device}, but `{name}` is on {borders.device}. Move it with `.to(q.device)`."
        )
    if may_look_at_values(borders):
        numbers = borders.tolist()
        if numbers[0] != 0 or numbers[-1] != count or numbers != sorted(numbers):
            raise ValueError(
                f"`{name}` must ascend from 0 to the number of {what}, {count}, but got {numbers}."
            )
