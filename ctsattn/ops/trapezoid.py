"""Trapezoid attention: the operator of Continuum Attention, on the same clocks as the exact one."""

from __future__ import annotations

from torch import Tensor

from ctsattn.ops.continuous import plans
from ctsattn.ops.continuous.first_order import kernel_answer, plan_with, smoothed_attention, why_not
from ctsattn.ops.continuous.request import Interval, Tail, autocast, checked_request
from ctsattn.ops.continuous.sink import Sink
from ctsattn.ops.continuous.solve import Rule, attend


def trapezoid_attention(
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
) -> Tensor:
    r"""Softmax attention as an integral over real time, by the trapezoid rule.

    $$o = \sum_i \tfrac12 \Delta_i (e^{a_{i-1}} v_{i-1} + e^{a_i} v_i) \Big/
          \sum_i \tfrac12 \Delta_i (e^{a_{i-1}} + e^{a_i})$$

    This is what Continuum Attention discretises its integral to: ordinary attention whose keys weigh as much
    as the time that is theirs, $(\Delta_i + \Delta_{i+1}) / 2$. `continuous_attention` differs in that it
    integrates the exponential of the straight line itself. Everything about clocks, masks, sinks and ends of
    intervals is the same; on query times inside a piece, the piece up to there is a trapezoid with the
    interpolated score.

    Args:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, keys, head_dim]`.
        v: Values `[batch, kv_heads, keys, value_dim]`.
        times: As in `continuous_attention`, and so are all others.
        query_times: Times of the queries.
        key_mask: True where a key exists.
        is_causal: Whether a query sees only what is not later than itself.
        scale: Factor on the scores; None: `1 / sqrt(head_dim)`.
        sink: A knot before the first key that every query sees.
        interval: "left" or "symmetric".
        tail: "observed", "hold" or "cut".
        cu_seqlens: Borders of series packed in a row.
        cu_seqlens_q: Borders of their queries.
        dropout_p: Probability of dropping a weight.
        enable_gqa: Whether several query heads may share a key head.

    Returns:
        `[batch, heads, queries, value_dim]` in the dtype of `q`.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, device, option or value is wrong, or no stock kernel runs here.

    References:
        Calvello, Kovachki, Levine and Stuart, "Continuum Attention for Neural Operators", arXiv 2406.06486.
    """
    nothing_else = query_times is key_mask is sink is cu_seqlens is cu_seqlens_q is None
    if nothing_else and interval == "left" and tail == "observed" and dropout_p == 0:
        out = plans.answer(q, k, v, times, is_causal, scale, enable_gqa, "trapezoid")
        if out is not None:
            return out
    q, k, v = autocast(q, k, v)
    request = checked_request(
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
    )
    reason = why_not(q, k, v)
    if reason is not None:
        raise ValueError(f"`trapezoid_attention` cannot run here: {reason}.")
    way = plan_with(q, k, v, request, 0.0)
    out = plans.answer_by(way, q, k, v, times, request, is_causal, scale, enable_gqa, "trapezoid")
    return out if out is not None else attend(q, k, v, request, Rule(_core, _piece_weights, _answer))


def _core(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    *,
    causal: bool = False,
    full: bool = False,
    offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """The trapezoid rule over whole pieces: keys that lean towards no neighbour."""
    return smoothed_attention(q, k, v, gaps, first, last, scale, causal, full, offset, share=0.0)


def _piece_weights(a0: Tensor, a1: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Half of a piece's length for each end, times the exponential there."""
    return dt / 2 * a0.exp(), dt / 2 * a1.exp()


def _answer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    *,
    causal: bool = False,
    full: bool = False,
    offset: int = 0,
    may_be_flat: bool = True,
) -> Tensor | None:
    """Outputs where the CPU's kernels have them, else None."""
    del causal, full, offset, may_be_flat
    return kernel_answer(q, k, v, gaps, first, last, scale, 0.0)
