"""From tensors to kernels: flat arrays, sizes of tiles, and tasks for the threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ctsattn.ops.continuous.cpu import kernels
from ctsattn.ops.continuous.cpu.products import strip_lanes
from ctsattn.ops.continuous.cpu.tiles import Sizes
from ctsattn.ops.continuous.cpu.workers import share

_TILE_BYTES = 256  # a row of lanes


def forward(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs and log-sum-exps as `reference.core`, and more for the backward pass, see `forward.Answer`."""
    out = gaps.new_empty((*q.shape[:3], v.shape[3]))
    lse, peak, inverse = (gaps.new_empty(q.shape[:3]) for _ in range(3))
    arrays, numbers, sizes = _pack(q, k, v, gaps, first, last)
    found, strides_and_sizes = [flat(x, x.dtype) for x in (out, lse, peak, inverse)], np.array(numbers)

    tiles = -(-sizes.queries // sizes.tile)
    given = *arrays, strides_and_sizes, scale, *found
    share(kernels.forward, given, q.shape[0] * sizes.heads * tiles, sizes.tile * sizes.knots)
    return out.to(q.dtype), lse, peak, inverse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    out: Tensor,
    peak: Tensor,
    inverse: Tensor,
    scale: float,
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and gaps; the last are 0 unless `with_gaps`."""
    arrays, numbers, sizes = _pack(q, k, v, gaps, first, last)
    rows, tiles = q.shape[0] * sizes.kv_heads, -(-sizes.queries // sizes.tile)
    tiles *= sizes.heads // sizes.kv_heads
    # A task adds to a dk and dv of its own, so rows of the batch are split only if threads outnumber them.
    splits = max(1, min(-(-torch.get_num_threads() // max(1, rows)), tiles))
    parts = (q.shape[0], sizes.kv_heads, splits, sizes.knots)
    dq, dgaps = gaps.new_empty(q.shape), gaps.new_empty(parts)
    dk, dv = (gaps.new_empty(*parts, -(-x.shape[3] // sizes.strip) * sizes.strip) for x in (k, v))
    outs, out_strides = strided(out, gaps.dtype)
    grads, grad_strides = strided(grad_out, gaps.dtype)
    all_numbers = np.array([*numbers, *out_strides, *grad_strides, splits, with_gaps])
    rest = [outs, grads] + [flat(x, gaps.dtype) for x in (grad_lse, peak, inverse, dq, dk, dv, dgaps)]

    given = *arrays, all_numbers, scale, *rest
    share(kernels.backward, given, rows * splits, 2 * tiles * sizes.tile * sizes.knots / splits)
    dk, dv = (_joined(total, like) for total, like in ((dk, k), (dv, v)))
    return dq.to(q.dtype), dk, dv, dgaps.sum((1, 2))


def _pack(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor
) -> tuple[list[np.ndarray], list[int], Sizes]:
    """Flat arrays that the kernels read, with the strides of the first three and the sizes; and the sizes."""
    strip = strip_lanes(gaps.itemsize)
    tile = max(strip, _TILE_BYTES // gaps.itemsize)
    sizes = Sizes(q.shape[1], v.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3], tile, strip)
    arrays, numbers = [], []
    for x in (q, k, v):
        memory, strides = strided(x, gaps.dtype)
        arrays.append(memory)
        numbers += strides
    arrays += [flat(gaps, gaps.dtype), flat(first, torch.int32), flat(last, torch.int32)]
    return arrays, [*numbers, *sizes], sizes


def strided(x: Tensor, dtype: torch.dtype | None = None) -> tuple[np.ndarray, tuple[int, ...]]:
    """A tensor's memory and first three strides; no copy where its last stride is 1 and its dtype fits."""
    x = _plain(x, dtype)
    strides = x.stride()
    if strides[3] != 1:
        x = x.contiguous()
        strides = x.stride()
    if x.is_contiguous():
        return x.numpy().reshape(-1), strides[:3]
    span = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)) + 1
    return x.as_strided((span if x.numel() else 0,), (1,)).numpy(), strides[:3]


def flat(x: Tensor, dtype: torch.dtype | None = None) -> np.ndarray:
    """A tensor's elements in order, without a copy where it is contiguous and its dtype fits."""
    return _plain(x, dtype).contiguous().numpy().reshape(-1)


def _plain(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor without its graph, in a dtype."""
    x = x.detach() if x.requires_grad else x
    return x if dtype is None or x.dtype == dtype else x.to(dtype)


def _joined(total: Tensor, like: Tensor) -> Tensor:
    """Sum of what the splits of a row found, without the padding of its width, in the dtype of another."""
    total = total[:, :, 0] if total.shape[2] == 1 else total.sum(dim=2)
    return total[..., : like.shape[3]].to(like.dtype).contiguous()
