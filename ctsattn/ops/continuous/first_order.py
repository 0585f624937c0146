"""The operator to first order in score differences: a short convolution on the keys, and stock attention.

The logarithm of a knot's weight over its score, `b_i = log(Δ_i φ2(a_{i-1} - a_i) + Δ_{i+1} φ2(a_{i+1} -
a_i))`, is

    b_i ≈ log((Δ_i + Δ_{i+1}) / 2) + [Δ_i (a_{i-1} - a_i) + Δ_{i+1} (a_{i+1} - a_i)] / (3 (Δ_i + Δ_{i+1}))

for small differences. That is linear in the scores, so it is attention on smoothed keys with a weight for
each, and runs on the stock kernels. On a smooth signal the error shrinks as the square of the gap. The first
and the last knot that a query sees have a piece on one side only; where that is not so for all queries alike,
they are left out, and merged with the rest through the logarithm of the sum of weights. So no output reads a
key after its query's.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn.ops.continuous.ends import combine, repeat_heads, take_knots
from ctsattn.ops.continuous.stock import weighted_attention

# A straight piece gives its left knot e^(a0) (1/2 + δ/6 + …) = e^(a0 + δ/3 + …) / 2.
SHARE_OF_NEIGHBOUR = 1 / 3


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why this backend cannot run, if there is one."""
    if q.device.type not in ("cpu", "cuda"):
        return f"it runs on the CPU and on CUDA, not on {q.device.type}"
    if q.is_cuda and q.dtype == torch.float64:
        return "the stock kernels on CUDA know no float64"
    return None


def core(
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
    """Integrate over the whole pieces that each query sees, to first order; arguments as in `reference.core`.

    Without `causal` or `full` it materialises a mask `[batch, queries, knots]`.
    """
    return smoothed_attention(q, k, v, gaps, first, last, scale, causal, full, offset, SHARE_OF_NEIGHBOUR)


def smoothed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    causal: bool,
    full: bool,
    offset: int,
    share: float,
) -> tuple[Tensor, Tensor]:
    """Attention with widths `(Δ_i + Δ_{i+1}) / 2` as weights on keys that lean towards their neighbours.

    Args:
        q: As in `reference.core`, and so are the others but the last.
        k: Keys.
        v: Values.
        gaps: Time before each knot.
        first: First knot that each query sees.
        last: Last knot that each query sees.
        scale: Factor on the scores.
        causal: See `reference.core`.
        full: See `reference.core`.
        offset: See `reference.core`.
        share: How far a key leans towards its neighbours; 0 is the trapezoid rule.

    Returns:
        Mean value and logarithm of the sum of weights, as `reference.core`.
    """
    before = gaps.masked_fill(torch.arange(gaps.shape[1], device=gaps.device) == 0, 0.0)
    keys, log_width = _smooth(k.to(gaps.dtype), before, share)
    if full:
        return weighted_attention(q, keys, v, log_width, scale, is_causal=False)
    if causal and q.shape[2] + offset == k.shape[2]:
        inner = _strictly_before(q, keys, v, log_width, scale, offset)
        return _with_end(*inner, q, *_aligned_ends(k, v, before, offset, share), scale)
    knot = torch.arange(k.shape[2], device=k.device)
    between = (first[..., None] < knot) & (knot < last[..., None])
    out, lse = weighted_attention(q, keys, v, log_width, scale, False, between[:, None])
    for end, neighbour, piece in ((first, first + 1, first + 1), (last, last - 1, last)):
        gap = before.gather(-1, piece.long().clamp(0, k.shape[2] - 1)).where(last > first, 0.0)
        key, other = (take_knots(k, index, q.shape[1], gaps.dtype) for index in (end, neighbour))
        value = take_knots(v, end, q.shape[1], gaps.dtype)
        out, lse = _with_end(out, lse, q, key + share * (other - key), value, _log(gap / 2)[:, None], scale)
    return out, lse


def _smooth(k: Tensor, before: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Keys that lean towards their neighbours, by the gaps on both sides, and their logarithmic widths."""
    after = pad(before[:, 1:], (0, 1))
    both = before + after
    lean = (share / torch.where(both > 0, both, 1.0))[:, None, :, None]
    steps = k.diff(dim=2)
    to_next = pad(steps, (0, 0, 0, 1)) * after[:, None, :, None]
    to_previous = pad(steps, (0, 0, 1, 0)) * before[:, None, :, None]
    return k + lean * (to_next - to_previous), _log(both / 2)


def _strictly_before(
    q: Tensor, keys: Tensor, v: Tensor, log_width: Tensor, scale: float, offset: int
) -> tuple[Tensor, Tensor]:
    """Attention of query i to the knots before knot `i + offset`."""
    skipped = 1 - offset  # a query at the first knot has none before it
    keys, v, log_width = keys[:, :, :-1], v[:, :, :-1], log_width[:, :-1]
    if q.shape[2] == skipped:
        nothing = torch.full(q.shape[:3], -torch.inf, dtype=log_width.dtype, device=q.device)
        return q.new_zeros(*q.shape[:3], v.shape[-1]), nothing
    out, lse = weighted_attention(q[:, :, skipped:], keys, v, log_width, scale, is_causal=True)
    return pad(out, (0, 0, skipped, 0)), pad(lse, (skipped, 0), value=-torch.inf)


def _aligned_ends(
    k: Tensor, v: Tensor, before: Tensor, offset: int, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Key, value and logarithmic width `[batch, 1, queries]` of knot `i + offset` as the end of query i."""
    k = k.to(before.dtype)
    ends = k - share * pad(k.diff(dim=2), (0, 0, 1, 0))
    return ends[:, :, offset:], v[:, :, offset:], _log(before / 2)[:, None, offset:]


def _with_end(
    out: Tensor, lse: Tensor, q: Tensor, key: Tensor, value: Tensor, log_width: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Merge one more knot for each query: its key and value are `[batch, kv_heads, queries, width]`."""
    key, value = (repeat_heads(x.to(lse.dtype), q.shape[1]) for x in (key, value))
    score = (q.to(lse.dtype) * key).sum(dim=-1) * scale + log_width
    peak = torch.maximum(lse, score).detach()
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    mixed, lse = combine(out, lse, peak, [((score - peak).exp(), value)])
    return mixed.to(q.dtype), lse


def _log(width: Tensor) -> Tensor:
    """Logarithm, -inf at 0 with gradient 0 there."""
    some = width > 0
    return torch.where(some, torch.where(some, width, 1.0).log(), -torch.inf)
