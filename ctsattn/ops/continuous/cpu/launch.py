"""From tensors to kernels: calls, sizes of tiles, and tasks for the threads."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from ctsattn.ops.continuous.cpu import tiles
from ctsattn.ops.continuous.cpu.clock import GAPS
from ctsattn.ops.continuous.cpu.kernels import kernels_of
from ctsattn.ops.continuous.cpu.places import BATCH, CLOCK, CLOCK_KIND, put
from ctsattn.ops.continuous.cpu.products import strip_lanes
from ctsattn.ops.continuous.cpu.tiles import Sizes
from ctsattn.ops.continuous.cpu.workers import deal

_TILE_BYTES = 256  # a row of lanes


def sizes_of(q: Tensor, v: Tensor, itemsize: int) -> Sizes:
    """Sizes of a problem whose numbers have so many bytes."""
    strip = strip_lanes(itemsize)
    tile = max(strip, _TILE_BYTES // itemsize)
    return Sizes(q.shape[1], v.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3], tile, strip)


def call_of(batch: int, sizes: Sizes, kind: int, factors: array) -> array:
    """What kernels are told in all calls of this kind; `factors`, scale and share, must outlive them."""
    call = array("q", bytes(8 * tiles.MOST))
    call[BATCH], call[CLOCK_KIND], call[tiles.FACTORS] = batch, kind, factors.buffer_info()[0]
    call[tiles.SIZES : tiles.SIZES + len(sizes)] = array("q", sizes)
    return call


def run_forward(call: array, batch: int, sizes: Sizes, kernel: Any) -> bool:
    """Have a call answered; whether that could be done."""
    tasks = batch * sizes.heads * -(-sizes.queries // sizes.tile)
    return deal(kernel, call, tasks, sizes.tile * sizes.knots, finely=True)


def splits_of(batch: int, sizes: Sizes) -> int:
    """Tasks for each key head: each has a dk and dv of its own, so one unless there are more threads."""
    rows, threads = batch * sizes.kv_heads, torch.get_num_threads()
    if rows >= threads:
        return 1
    tiles_of_row = -(-sizes.queries // sizes.tile) * sizes.heads // sizes.kv_heads
    return max(1, min(-(-threads // max(1, rows)), tiles_of_row))


def run_backward(call: array, batch: int, sizes: Sizes, kernel: Any) -> None:
    """Have a call differentiated."""
    splits = call[tiles.SPLITS]
    work = -(-sizes.queries // sizes.tile) * sizes.heads // sizes.kv_heads * sizes.tile * sizes.knots
    deal(kernel, call, batch * sizes.kv_heads * splits, 2 * work / splits, finely=True)


def found_for(
    call: array, like: Tensor, batch: int, sizes: Sizes, real: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for dq, dk and dv, told to a call: the last two by splits, their widths whole strips."""
    heads, kv_heads, queries, knots, head_dim, value_dim, _, strip = sizes
    call[tiles.SPLITS] = splits = splits_of(batch, sizes)
    dq = like.new_empty((batch, heads, queries, head_dim), dtype=real)
    dk = like.new_empty((batch, kv_heads, splits, knots, -(-head_dim // strip) * strip), dtype=real)
    dv = like.new_empty((batch, kv_heads, splits, knots, -(-value_dim // strip) * strip), dtype=real)
    call[tiles.DQ], call[tiles.DK], call[tiles.DV] = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
    return dq, dk, dv


def joined(total: Tensor, width: int) -> Tensor:
    """Sum of what the splits of a row found, without the padding of its width."""
    total = total[:, :, 0] if total.shape[2] == 1 else total.sum(dim=2)
    return total if total.shape[3] == width else total[..., :width].contiguous()


def forward(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs and log-sum-exps as `reference.core`, and more for the backward pass, see `forward.Answer`."""
    out = gaps.new_empty((*q.shape[:3], v.shape[3]))
    lse, peak, inverse = (gaps.new_empty(q.shape[:3]) for _ in range(3))
    sizes, factors = sizes_of(q, v, gaps.itemsize), array("d", (scale, 0.0))
    call = call_of(q.shape[0], sizes, GAPS, factors)
    held = _tell(call, q, k, v, gaps, first, last)
    for place, x in ((tiles.OUT, out), (tiles.LSE, lse), (tiles.PEAK, peak), (tiles.INVERSE, inverse)):
        call[place] = x.data_ptr()
    run_forward(call, q.shape[0], sizes, kernels_of(gaps.dtype)[0])
    del held
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
    batch, sizes, factors = q.shape[0], sizes_of(q, v, gaps.itemsize), array("d", (scale, 0.0))
    call = call_of(batch, sizes, GAPS, factors)
    held = _tell(call, q, k, v, gaps, first, last)
    dq, dk, dv = found_for(call, q, batch, sizes, gaps.dtype)
    dgaps = gaps.new_empty(dk.shape[:4]) if with_gaps else gaps.new_zeros((batch, 1, 1, sizes.knots))
    call[tiles.WITH_GAPS], call[tiles.DGAPS] = int(with_gaps), dgaps.data_ptr()
    read = [_strided(x, gaps.dtype) for x in (out, grad_out)]
    put(call, tiles.OUT, read[0])
    put(call, tiles.DOUT, read[1])
    flat = [x.to(gaps.dtype).contiguous() for x in (grad_lse, peak, inverse)]
    for place, x in zip((tiles.DLSE, tiles.PEAK, tiles.INVERSE), flat, strict=True):
        call[place] = x.data_ptr()
    run_backward(call, batch, sizes, kernels_of(gaps.dtype)[1])
    del held
    dk, dv = joined(dk, k.shape[3]).to(k.dtype), joined(dv, v.shape[3]).to(v.dtype)
    return dq.to(q.dtype), dk, dv, dgaps.sum((1, 2))


def _tell(
    call: array, q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor
) -> list[Tensor]:
    """Tell a call what is read; the tensors that it reads, which must outlive it."""
    read = [_strided(x, gaps.dtype) for x in (q, k, v)]
    for place, x in zip((tiles.Q, tiles.K, tiles.V), read, strict=True):
        put(call, place, x)
    flat = [gaps.contiguous(), first.int().contiguous(), last.int().contiguous()]
    for place, x in zip((CLOCK, tiles.FIRSTS, tiles.LASTS), flat, strict=True):
        call[place] = x.data_ptr()
    return read + flat


def _strided(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in a dtype, whose columns are neighbours in memory and whose sign is not to be turned yet."""
    x = x.to(dtype).resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()
