"""The operator to first order in score differences: a short convolution on the keys, and softmax attention.

The logarithm of a knot's weight over its score, `b_i = log(Δ_i φ2(a_{i-1} - a_i) + Δ_{i+1} φ2(a_{i+1} -
a_i))`, is

    b_i ≈ log((Δ_i + Δ_{i+1}) / 2) + [Δ_i (a_{i-1} - a_i) + Δ_{i+1} (a_{i+1} - a_i)] / (3 (Δ_i + Δ_{i+1}))

for small differences. That is linear in the scores, so it is attention on smoothed keys with a weight for
each, and runs on the stock kernels. On a smooth signal the error shrinks as the square of the gap. The first
and the last knot that a query sees have a piece on one side only; where that is not so for all queries alike,
they are left out, and merged with the rest through the logarithm of the sum of weights. So no output reads a
key after its query's.

On the CPU, in eager code, the same sums are taken by the kernels of the `cpu` backend (`cpu/knots.py`), which
smooth the scores where those are. Around a stock kernel three more passes over memory, or two dozen tensor
operations, take a third or more of its time on a short series; they stay for all else: CUDA, compiled code,
function transforms, narrow dtypes, and gradients of times.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn.ops.continuous.cpu import has_numba
from ctsattn.ops.continuous.ends import repeat_heads, take_knots
from ctsattn.ops.continuous.plans import Way
from ctsattn.ops.continuous.request import Request
from ctsattn.ops.continuous.stock import weighted_attention

# A straight piece gives its left knot e^(a0) (1/2 + δ/6 + …) = e^(a0 + δ/3 + …) / 2.
SHARE_OF_NEIGHBOUR = 1 / 3
MAX_ROWS = 2**16 - 1  # what CUDA can count along the last axis of a grid


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why this backend cannot run, if there is one."""
    if q.device.type not in ("cpu", "cuda"):
        return f"it runs on the CPU and on CUDA, not on {q.device.type}"
    if q.is_cuda and q.dtype == torch.float64:
        return "the stock kernels on CUDA know no float64"
    if q.is_cuda and q.shape[0] > MAX_ROWS:
        return f"the stock kernels on CUDA take at most {MAX_ROWS} rows, not {q.shape[0]}; split the batch"
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


def answer(
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
    """Outputs where the CPU's kernels have them, else None; arguments as in `core`."""
    del causal, full, offset, may_be_flat
    return kernel_answer(q, k, v, gaps, first, last, scale, SHARE_OF_NEIGHBOUR)


def plan(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Way | None:
    """A way from times to outputs where there is nothing but a clock, else None."""
    return plan_with(q, k, v, request, SHARE_OF_NEIGHBOUR)


# `api.py` takes the one first, and `solve.py` the other where nothing has to be merged afterwards.
core.plan = plan  # pyright: ignore[reportFunctionMemberAccess]
core.answer = answer  # pyright: ignore[reportFunctionMemberAccess]


def plan_with(q: Tensor, k: Tensor, v: Tensor, request: Request, share: float) -> Way | None:
    """A way to the outputs of `smoothed_attention`, if the CPU's kernels have one."""
    if torch.compiler.is_compiling() or not q.is_cpu or not has_numba():
        return None
    from ctsattn.ops.continuous.cpu.direct import plan_of

    return plan_of(q, k, v, request, share)


def kernel_answer(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float, share: float
) -> Tensor | None:
    """Outputs of `smoothed_attention` by the CPU's kernels, if they have them."""
    if torch.compiler.is_compiling() or not q.is_cpu or not has_numba():
        return None
    from ctsattn.ops.continuous.cpu.direct import first_order_answer

    return first_order_answer(q, k, v, gaps, first, last, scale, share)


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
    if scale <= 0:  # the kernels divide by it
        q, scale = q * scale, 1.0
    before = gaps.masked_fill(torch.arange(gaps.shape[1], device=gaps.device) == 0, 0.0)
    k, wide_q = k.to(gaps.dtype), q.to(gaps.dtype)
    none = torch.zeros_like(k[:, :, :1])
    steps = torch.cat([none, k.diff(dim=2), none], dim=2)  # into each knot, and out of the last
    keys, bias = _smooth(k, steps, before, share)
    keys = keys.to(q.dtype)
    if full:
        return weighted_attention(q, keys, v, bias, None, None, None, scale, None)
    if causal and offset <= 1 and q.shape[2] + offset == k.shape[2]:
        key = repeat_heads(torch.add(k, steps[:, :, :-1], alpha=-share)[:, :, offset:], q.shape[1])
        score = (wide_q * key).sum(dim=-1) * scale + _log(before[:, None, offset:] / 2)
        value = repeat_heads(v, q.shape[1])[:, :, offset:]
        return weighted_attention(
            q, keys, v, bias, None, score[..., None], value[..., None, :], scale, offset
        )
    knot = torch.arange(k.shape[2], device=k.device)
    between = (first[..., None] < knot) & (knot < last[..., None])
    scores, values = [], []
    for end, neighbour, piece in ((first, first + 1, first + 1), (last, last - 1, last)):
        gap = before.gather(-1, piece.long().clamp(0, k.shape[2] - 1)).where(last > first, 0.0)
        key, other = (take_knots(k, index, q.shape[1], gaps.dtype) for index in (end, neighbour))
        key = key + share * (other - key)
        scores.append((wide_q * key).sum(dim=-1) * scale + _log(gap / 2)[:, None])
        values.append(take_knots(v, end, q.shape[1], v.dtype))
    ends = torch.stack(scores, dim=-1), torch.stack(values, dim=-2)
    return weighted_attention(q, keys, v, bias, between, *ends, scale, None)


def _smooth(k: Tensor, steps: Tensor, before: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Keys that lean towards their neighbours, by the gaps on both sides, and their logarithmic widths."""
    after = pad(before[:, 1:], (0, 1))
    both = before + after
    if share == 0:
        return k, _log(both / 2)
    lean = share / torch.where(both > 0, both, 1.0)
    to_next, to_previous = ((lean * gap)[:, None, :, None] for gap in (after, before))
    keys = torch.addcmul(torch.addcmul(k, steps[:, :, 1:], to_next), steps[:, :, :-1], to_previous, value=-1)
    return keys, _log(both / 2)


def _log(width: Tensor) -> Tensor:
    """Logarithm, -inf at 0 with gradient 0 there."""
    some = width > 0
    return torch.where(some, torch.where(some, width, 1.0).log(), -torch.inf)
