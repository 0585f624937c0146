"""`continuous_attention`: the operator in words, its checks, and the choice of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ctsattn._checks import (
    check_attention_inputs,
    check_clock,
    check_finite,
    check_rows,
    may_look_at_values,
)
from ctsattn.ops.continuous.sink import Sink
from ctsattn.ops.continuous.solve import Core, Request, pose, solve

Backend = Literal["reference", "cpu", "triton", "first_order"]
BACKENDS = ("reference", "cpu", "triton", "first_order")
NARROWED_BY_AUTOCAST = (torch.float16, torch.bfloat16, torch.float32)


def continuous_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    times: Tensor | None = None,
    *,
    query_times: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    sink: Sink | tuple | None = None,
    interval: Literal["left", "symmetric"] = "left",
    tail: Literal["observed", "hold", "cut"] = "observed",
    cu_seqlens: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    r"""Softmax attention as an integral over real time, with keys and values joined by straight lines.

    $$o(q, T) = \int e^{q \cdot k(s)}\, v(s)\, ds \Big/ \int e^{q \cdot k(s)}\, ds$$

    over $[t_0, t_S]$, or over $[t_0, \min(T, t_S)]$ if `is_causal`. Both integrals are exact: the piece
    between two knots, whose score rises by $\delta$ in the time $\Delta$, gives its left knot the weight
    $\Delta e^{a_0} \varphi_2(\delta)$ and its right knot $\Delta e^{a_1} \varphi_2(-\delta)$.

    **What a query sees.** Without `query_times` and with `is_causal`, query i sits at key i and sees the keys
    up to and with number i, whatever their times; queries beyond the last key see all. With `query_times` and
    `is_causal`, a query sees the keys at or before its time. Without `is_causal` it sees all keys. A query
    that sees no key at all, because all are masked or none is early enough, gets 0.

    **Where the interval ends** for a query at $T$ between two keys or after the last, by `tail`:

    - "observed": at the last key that the query sees. Causal.
    - "hold": at $T$; the last key and value it sees are held constant until then. Causal.
    - "cut": at $\min(T, t_S)$, on the line to the key after $T$, whatever `is_causal`. Not causal, because it
      reads that key.

    **Nothing to integrate.** Where all visible keys are at one time, the result is the limit as their gaps
    shrink
    together: the value of a single key, else the result with unit gaps. Keys at one time among others have no
    weight between them, but their outermost two still shape the pieces next to them.

    Args:
        q: Queries `[batch, heads, queries, head_dim]`; float16, bfloat16, float32 or float64.
        k: Keys `[batch, kv_heads, keys, head_dim]`.
        v: Values `[batch, kv_heads, keys, value_dim]`.
        times: Times of the keys `[batch, keys]` or `[keys]`, ascending, any integer or floating dtype and any
            unit: without a sink only ratios of gaps matter. They are differenced before they are narrowed, so
            far origins cost nothing in int64 or float64. None: unit gaps between keys that are not masked.
        query_times: Times of the queries `[batch, queries]` or `[queries]`, in the unit of `times`.
        key_mask: `[batch, keys]` or `[keys]`, true where a key exists. A masked key is no knot: the piece
            runs from the key before it to the key after it. What stands in its place is not read.
        is_causal: Whether a query sees only what is not later than itself.
        scale: Factor on the scores; None: `1 / sqrt(head_dim)`.
        sink: A knot before the first key that every query sees: a `Sink` or a tuple (key, value, gap).
        interval: "left" begins at the first knot. "symmetric" has half a piece at both ends, as in Continuum
            Attention: it runs from the middle of the first piece to the middle of the last one a query sees;
            with `tail="cut"` and queries at keys, to the middle of the piece after (not causal); with
            `tail="hold"`, the last key is held for half of the gap before it. With `query_times`, "hold" and
            "cut" end at the query's time. Where nothing is left in between, "left" applies.
        tail: Where the interval of a query ends, see above.
        cu_seqlens: Borders of series packed in a row, `[series + 1]`, from 0 to `keys`; no piece crosses a
            border, and query i belongs to the series of key i.
        dropout_p: Probability of dropping a weight, applied whenever it is positive, after normalising. It
            needs all weights in memory, so only "reference" has it.
        enable_gqa: Whether several query heads may share a key head.
        backend: None takes the fastest that can run: "triton" on CUDA, else "cpu", else "reference". A named
            one runs or raises. "first_order" is an approximation, exact to first order in the differences of
            scores.

    Returns:
        `[batch, heads, queries, value_dim]` in the dtype of `q`.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, device, option or value is wrong, or the named backend cannot run; the message
            says which and what to do. Values are checked on the CPU in eager code only.

    References:
        Su, "Continuous Softmax Attention", Scientific Spaces, archives/11980.
        Calvello, Kovachki, Levine and Stuart, "Continuum Attention for Neural Operators", arXiv 2406.06486.
    """
    q, k, v = _autocast(q, k, v)
    check_attention_inputs(q, k, v, enable_gqa)
    _check_options(interval, tail, dropout_p, backend)
    core = choose_backend(backend, q, k, v, dropout_p)
    request = _checked_request(
        q, k, times, query_times, key_mask, is_causal, sink, interval, tail, cu_seqlens
    )
    problem = pose(q, k, v, request, q.shape[-1] ** -0.5 if scale is None else scale)
    if dropout_p == 0:
        return solve(problem, core)
    weights = solve(problem.with_values(_one_value_per_knot(problem.v)), core)
    values = problem.v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return dropout(weights, dropout_p) @ values


def choose_backend(backend: str | None, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Core:
    """The core that runs: of the backend that is named, or of the fastest that can.

    Raises:
        ValueError: The named backend cannot run; the message says why.
    """
    fastest_first = ("triton", "reference") if q.is_cuda else ("cpu", "reference")
    reason = None
    for name in fastest_first if backend is None else (backend,):
        if dropout_p > 0 and name != "reference":
            reason = 'dropout on weights needs all weights in memory, which only `backend="reference"` has'
            continue
        try:
            core, why_not = _load(name)
        except ImportError as error:
            reason = f"it cannot be imported ({error})"
            continue
        reason = why_not(q, k, v)
        if reason is None:
            return core
    raise ValueError(
        f"`backend={backend!r}` cannot run here: {reason}. Leave `backend` out to take one that can."
    )


def _load(name: str) -> tuple[Core, Callable[[Tensor, Tensor, Tensor], str | None]]:
    """A backend's core, and what tells why it cannot run; imported only when it is asked for."""
    match name:
        case "triton":
            from ctsattn.ops.continuous.triton import core, why_not
        case "cpu":
            from ctsattn.ops.continuous.cpu import core, why_not
        case "first_order":
            from ctsattn.ops.continuous.first_order import core, why_not
        case _:
            from ctsattn.ops.continuous.reference import core, why_not
    return core, why_not


def _check_options(interval: str, tail: str, dropout_p: float, backend: str | None) -> None:
    """Check the options that are words or numbers."""
    for name, value, known in (
        ("interval", interval, ("left", "symmetric")),
        ("tail", tail, ("observed", "hold", "cut")),
        ("backend", backend, (None, *BACKENDS)),
    ):
        if value not in known:
            raise ValueError(f"`{name}` must be one of {', '.join(map(repr, known))}, but got {value!r}.")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` must be at least 0 and less than 1, but got {dropout_p}.")


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast as autocast does for `scaled_dot_product_attention`; float64 stays."""
    device = q.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x.to(dtype) if x.dtype in NARROWED_BY_AUTOCAST else x for x in (q, k, v))
    return q, k, v


def _checked_request(
    q: Tensor,
    k: Tensor,
    times: Tensor | None,
    query_times: Tensor | None,
    key_mask: Tensor | None,
    is_causal: bool,
    sink: Sink | tuple | None,
    interval: str,
    tail: str,
    cu_seqlens: Tensor | None,
) -> Request:
    """Check what says where keys and queries stand in time, and bring it to one shape."""
    batch, keys, queries, device = k.shape[0], k.shape[2], q.shape[2], q.device
    if times is not None:
        times = check_rows("times", check_clock("times", times), batch, keys, device)
    if key_mask is not None:
        if key_mask.dtype != torch.bool:
            raise TypeError(
                f"`key_mask` must be boolean, true where a key exists, but its dtype is {key_mask.dtype}."
            )
        key_mask = check_rows("key_mask", key_mask, batch, keys, device)
    if query_times is not None:
        if times is None:
            raise ValueError(
                "`query_times` need the `times` of the keys. Pass `torch.arange(keys)` to count keys."
            )
        if cu_seqlens is not None:
            raise ValueError(
                "`query_times` and `cu_seqlens` do not go together. Give each series a batch row, and mask "
                "the padding with `key_mask`."
            )
        query_times = check_rows(
            "query_times", check_clock("query_times", query_times), batch, queries, device
        )
    if times is not None and may_look_at_values(times, key_mask, query_times):
        check_finite("times", times if key_mask is None else times.masked_fill(~key_mask, 0))
        if query_times is not None:
            check_finite("query_times", query_times)
    if cu_seqlens is not None:
        _check_borders(cu_seqlens, keys, queries, device)
    if sink is not None:
        sink = sink if isinstance(sink, Sink) else Sink(*sink)
        sink.check()
    return Request(times, query_times, key_mask, is_causal, sink, interval, tail, cu_seqlens)


def _check_borders(cu_seqlens: Tensor, keys: int, queries: int, device: torch.device) -> None:
    """Check the borders of packed series."""
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"`cu_seqlens` must be int32 or int64 of shape [series + 1], but got {cu_seqlens.dtype} of shape "
            f"{list(cu_seqlens.shape)}."
        )
    if cu_seqlens.device != device:
        raise ValueError(f"`q` is on {device}, but `cu_seqlens` is on {cu_seqlens.device}.")
    if queries != keys:
        raise ValueError(f"Packed series need as many queries as keys, but got {queries} and {keys}.")
    if may_look_at_values(cu_seqlens):
        borders = cu_seqlens.tolist()
        if borders[0] != 0 or borders[-1] != keys or borders != sorted(borders):
            raise ValueError(
                f"`cu_seqlens` must ascend from 0 to the number of keys, {keys}, but got {borders}."
            )


def _one_value_per_knot(v: Tensor) -> Tensor:
    """Values whose mean is the row of weights: the identity, for every head."""
    identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device)
    return identity.expand(*v.shape[:2], -1, -1)
