"""The definition in code: the integral of softmax over straight pieces, for any dtype and device.

Notation of Su's post: `a_i = q·k_i` is the score at knot i, `Δ_i` the gap before it, `δ_i = a_i - a_{i-1}`,
and

    o = Σ_i w_i v_i / Σ_i w_i,     w_i = e^{a_i} [Δ_i φ2(a_{i-1} - a_i) + Δ_{i+1} φ2(a_{i+1} - a_i)].

Nothing here is done for speed: all weights are materialised, and autograd finds the gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn.phi import SERIES_RADIUS, phi2

# Largest argument of an exponential of a score that has no weight; e^60 is far from overflow in float32.
MAX_EXPONENT = 60.0


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why this backend cannot run; there is none."""
    del q, k, v
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
    r"""Integrate over the whole pieces that each query sees.

    This is the problem that every backend solves; `api.py` brings all others to it. The last three arguments
    repeat, for the kernels' sake, what `first` and `last` say; this backend has no need of them.

    Args:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, knots, head_dim]`; `kv_heads` divides `heads`.
        v: Values `[batch, kv_heads, knots, value_dim]`.
        gaps: Time before each knot `[batch, knots]`, not negative; `gaps[:, 0]` belongs to no piece. The
            piece between knots j - 1 and j has the length `gaps[:, j]`. float64 if `q` is, else float32.
        first: First knot that each query sees `[batch, queries]`, int32.
        last: Last knot that each query sees `[batch, queries]`, int32. A piece counts for a query if
            `first < j <= last`; a query with `last < first` sees nothing.
        scale: Factor on the scores.
        causal: Every `first` is 0, and `last` of query i is `i + offset`, or the row's last knot if that is
            less.
        full: Every `first` is 0, and every `last` is the row's last knot. In both cases the gaps behind the
            row's last knot are 0, so that it makes no difference whether a query counts them.
        offset: See `causal`.

    Returns:
        `out` `[batch, heads, queries, value_dim]` in the dtype of `q`, and `lse` `[batch, heads, queries]` in
        that of `gaps`, the logarithm of the sum of weights. Where nothing has weight, `out` is 0 and `lse` is
        -inf. Both may be differentiated in `q`, `k`, `v` and `gaps`.

    Notes for backends:
        The peak that is subtracted may come only from knots at an end of a piece that counts and has length:
        see `_shift`. Queries that see nothing must cost next to nothing, because queries that see several
        knots at one time are answered by a second call in which all others see nothing. Padding behind `last`
        is finite.

    References:
        Su, "Continuous Softmax Attention", Scientific Spaces, archives/11980, equations (8) to (10).
    """
    del causal, full, offset
    groups = q.shape[1] // k.shape[1]
    wide = gaps.dtype
    k, v = (x.to(wide).repeat_interleave(groups, dim=1) for x in (k, v))
    scores = q.to(wide) @ k.mT * scale  # [batch, heads, queries, knots]
    visible, dt = _what_counts(gaps, first, last)
    scores, peak = _shift(scores, visible, dt)
    left, right = piece_weights(scores[..., :-1], scores[..., 1:], dt[..., 1:])
    weights = pad(left, (0, 1)) + pad(right, (1, 0))
    total = weights.sum(dim=-1, keepdim=True)
    some = total > 0
    divisor = torch.where(some, total, 1.0)
    out = weights @ v / divisor
    lse = torch.where(some, divisor.log() + peak, -torch.inf)
    return out.to(q.dtype), lse.squeeze(-1)


def piece_weights(a0: Tensor, a1: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    r"""Shares of a straight piece that fall to its left and to its right knot.

    $$\text{left} = \Delta\, e^{a_0} \varphi_2(\delta), \quad
      \text{right} = \Delta\, e^{a_1} \varphi_2(-\delta), \quad \delta = a_1 - a_0$$

    Far from $\delta = 0$ the same is written with the two exponentials alone, because $\varphi_2(\delta)$
    overflows where $e^{a_0} \varphi_2(\delta)$ does not.

    Args:
        a0: Score at the left knot, not so large that its exponential overflows.
        a1: Score at the right knot, likewise.
        dt: Length of the piece.

    Returns:
        Left and right share, in the shape of the three together.
    """
    e0, e1, delta = a0.exp(), a1.exp(), a1 - a0
    near = delta.abs() < SERIES_RADIUS
    inside, outside = torch.where(near, delta, 0.0), torch.where(near, 1.0, delta)
    mass = (e1 - e0) / outside
    left = torch.where(near, e0 * phi2(inside), (mass - e0) / outside)
    right = torch.where(near, e1 * phi2(-inside), (e1 - mass) / outside)
    return dt * left, dt * right


def _what_counts(gaps: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Knots that each query sees, and the length of the piece before each, 0 where it does not count.

    Both are `[batch, 1, queries, knots]`.
    """
    knot = torch.arange(gaps.shape[-1], device=gaps.device)
    first, last = first[:, None, :, None], last[:, None, :, None]
    visible = (first <= knot) & (knot <= last)
    dt = torch.where(visible & (first < knot), gaps[:, None, None], 0.0)
    return visible, dt


def _shift(scores: Tensor, visible: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract the largest score that matters, so that no exponential overflows and not all of them vanish.

    Only the ends of a piece that has length matter: a higher score among repeated times has no weight, and
    subtracting it could turn all true weights to zero. Such a score is held at a value whose exponential is
    finite; it serves the derivative by a gap of length 0 alone.

    Returns:
        The scores less their peak, 0 at knots that are not visible, and the peak `[..., queries, 1]`.
    """
    has_length = dt > 0
    matters = has_length | pad(has_length[..., 1:], (0, 1))
    peak = scores.detach().masked_fill(~matters, -torch.inf).amax(dim=-1, keepdim=True)
    peak = torch.where(matters.any(dim=-1, keepdim=True), peak, 0.0)
    return torch.where(visible, (scores - peak).clamp(max=MAX_EXPONENT), 0.0), peak
