"""`continuous_attention`: the operator in words, its checks, and the choice of a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import Tensor

from ctsattn._checks import may_carry_tangents
from ctsattn.ops.continuous import plans
from ctsattn.ops.continuous.reference import piece_weights
from ctsattn.ops.continuous.request import Interval, Request, Tail, autocast, check_choice, checked_request
from ctsattn.ops.continuous.sink import Sink
from ctsattn.ops.continuous.solve import Core, Rule, attend

Backend = Literal["reference", "cpu", "triton", "first_order"]
BACKENDS = ("reference", "cpu", "triton", "first_order")


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
    interval: Interval = "left",
    tail: Tail = "observed",
    cu_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
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

    **What is not finite.** A key or value that is NaN or infinite and not masked may also spoil outputs that
    do not see it, those of earlier queries among them: as in `scaled_dot_product_attention`, it is weighted
    with 0 there, and 0 times NaN is NaN. Mask such a token by `key_mask`, and it is not read.

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
            border. Rows of a batch share them.
        cu_seqlens_q: Borders of the queries of those series, `[series + 1]`, from 0 to `queries`; None: query
            i belongs to the series of key i. Without `query_times`, query j of a series sits at its key j.
        dropout_p: Probability of dropping a weight, applied whenever it is positive, after normalising. It
            needs all weights in memory, so only "reference" has it.
        enable_gqa: Whether several query heads may share a key head.
        backend: None takes the fastest that can run: "triton" on CUDA, else "cpu", else "reference", which
            alone passes on tangents of forward-mode differentiation. A named one runs or raises.
            "first_order" is an approximation, exact to first order in the differences of scores.

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
    nothing_else = query_times is key_mask is sink is cu_seqlens is cu_seqlens_q is None
    if nothing_else and interval == "left" and tail == "observed" and dropout_p == 0:
        out = plans.answer(q, k, v, times, is_causal, scale, enable_gqa, backend)
        if out is not None:
            return out
    return attend_from(
        0,
        q,
        k,
        v,
        times,
        query_times=query_times,
        key_mask=key_mask,
        is_causal=is_causal,
        scale=scale,
        sink=sink,
        interval=interval,
        tail=tail,
        cu_seqlens=cu_seqlens,
        cu_seqlens_q=cu_seqlens_q,
        dropout_p=dropout_p,
        enable_gqa=enable_gqa,
        backend=backend,
    )


def attend_from(
    query_start: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    times: Tensor | None,
    *,
    dropout_p: float = 0.0,
    backend: str | None = None,
    **options: Any,
) -> Tensor:
    """`continuous_attention` whose causal query i sits at key `query_start + i`; arguments as there."""
    q, k, v = autocast(q, k, v)
    request = checked_request(q, k, v, times, dropout_p=dropout_p, **options)
    check_choice("backend", backend, (None, *BACKENDS))
    others = (request.times, request.query_times, *(request.sink or ()))
    core = choose_backend(backend, q, k, v, dropout_p, others)
    request = request._replace(query_start=query_start) if query_start else request
    asked = options.get("is_causal", False), options.get("scale"), options.get("enable_gqa", False), backend
    out = _by_own_way(core, q, k, v, times, request, asked)
    if out is not None:
        return out
    return attend(q, k, v, request, Rule(core, piece_weights, getattr(core, "answer", None)))


def _by_own_way(
    core: Core, q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, request: Request, asked: tuple
) -> Tensor | None:
    """Outputs by a backend's own way through, if it has one and does not decline."""
    if hasattr(core, "direct"):
        return core.direct(q, k, v, request)  # pyright: ignore[reportFunctionMemberAccess]
    if hasattr(core, "plan"):  # a way that is kept for other calls
        way = core.plan(q, k, v, request)  # pyright: ignore[reportFunctionMemberAccess]
        return plans.answer_by(way, q, k, v, times, request, *asked)
    return None


def choose_backend(
    backend: str | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    others: Iterable[object] = (),
) -> Core:
    """The core that runs: of the backend that is named, or of the fastest that can.

    `others` are further arguments that may carry a tangent.

    Raises:
        ValueError: The named backend cannot run; the message says why.
    """
    fastest_first = ("triton", "reference") if q.is_cuda else ("cpu", "reference")
    needs_reference = _needs_reference(dropout_p, q, k, v, *others)
    reason = None
    for name in fastest_first if backend is None else (backend,):
        if needs_reference and name != "reference":
            reason = needs_reference
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


def _needs_reference(dropout_p: float, *given: object) -> str | None:
    """Why no other backend than the reference can run, or None."""
    if dropout_p > 0:
        return 'dropout on weights needs all weights in memory, which only `backend="reference"` has'
    if may_carry_tangents(*given):
        return 'tangents of forward-mode differentiation pass through `backend="reference"` alone'
    return None


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
