"""Launches of the Triton kernels: block sizes, what depends on the dtype, memory."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ctsattn.ops.continuous.triton.backward import (
    attention_bwd_prepare_kernel,
    attention_bwd_queries_kernel,
)
from ctsattn.ops.continuous.triton.backward_knots import (
    attention_bwd_edges_kernel,
    attention_bwd_knots_kernel,
)
from ctsattn.ops.continuous.triton.forward import attention_fill_kernel, attention_fwd_kernel


class Tile(NamedTuple):
    """How a kernel is cut: queries and columns per tile, warps, stages."""

    queries: int
    columns: int
    warps: int
    stages: int


class Kind(NamedTuple):
    """What the dtype decides.

    Attributes:
        terms: Terms of the series near equal scores; 0: see `primitives.py`.
        radius: Below this rise of the score the series is used.
        normalise: Whether weights are kept relative to the sum so far.
        limit: Largest sum of weights at which none overflows.
    """

    terms: int
    radius: float
    normalise: bool
    limit: float


KINDS = {
    torch.bfloat16: Kind(0, 0.0, False, 1e18),
    torch.float16: Kind(4, 0.25, True, 3e4),
    torch.float32: Kind(10, 1.0, False, 1e18),
}


def interpreted() -> bool:
    """Whether Triton runs in its interpreter, on the CPU."""
    return not isinstance(attention_fwd_kernel, triton.JITFunction)


def _width(size: int) -> int:
    """Width of a tile that holds vectors of `size`."""
    return max(16, triton.next_power_of_2(size))


# Measured on an H200 (capability 9.0) in bfloat16; see experiments/kernels. Kernel and width, rounded up,
# give tiles and the most knots that each is for.
HOPPER: dict[tuple[str, int], tuple[tuple[float, Tile], ...]] = {
    ("forward", 64): ((2048, Tile(64, 64, 4, 3)), (math.inf, Tile(64, 128, 4, 3))),
    ("forward", 128): ((4096, Tile(64, 64, 4, 2)), (math.inf, Tile(128, 128, 8, 2))),
    ("forward", 256): ((math.inf, Tile(64, 64, 4, 1)),),
    ("knots", 64): (
        (56, Tile(64, 64, 4, 1)),
        (64, Tile(64, 128, 4, 1)),
        (1024, Tile(64, 64, 4, 1)),
        (math.inf, Tile(64, 64, 4, 3)),
    ),
    ("knots", 128): ((1024, Tile(64, 64, 4, 2)), (math.inf, Tile(128, 64, 8, 2))),
    ("knots", 256): ((math.inf, Tile(32, 64, 8, 1)),),
    ("queries", 64): ((math.inf, Tile(64, 64, 4, 3)),),
    ("queries", 128): ((math.inf, Tile(64, 64, 4, 2)),),
    ("queries", 256): ((math.inf, Tile(32, 64, 4, 1)),),
}
# Small enough for 100 KB of shared memory; also where products are not in half precision. Not measured.
CAREFUL = {
    ("forward", 64): Tile(64, 64, 4, 1),
    ("forward", 128): Tile(32, 64, 4, 1),
    ("forward", 256): Tile(16, 64, 4, 1),
    ("knots", 64): Tile(32, 64, 4, 1),
    ("knots", 128): Tile(16, 64, 4, 1),
    ("knots", 256): Tile(16, 64, 8, 1),
    ("queries", 64): Tile(32, 64, 4, 1),
    ("queries", 128): Tile(16, 64, 4, 1),
    ("queries", 256): Tile(16, 64, 4, 1),
}
# What a caller measured himself: (kernel, width, dtype) -> tile.
TUNED: dict[tuple[str, int, torch.dtype], Tile] = {}


def choose_tile(kernel: str, q: Tensor, v: Tensor) -> Tile:
    """Tile of a kernel for these tensors."""
    width = max(64, _width(max(q.shape[-1], v.shape[-1])))
    tuned = TUNED.get((kernel, width, q.dtype))
    if tuned is not None:
        return tuned
    if q.dtype == torch.float32 or not q.is_cuda or torch.cuda.get_device_capability(q.device)[0] < 9:
        return CAREFUL[kernel, width]
    return next(tile for most, tile in HOPPER[kernel, width] if v.shape[-2] <= most)


def _shared_arguments(q: Tensor, k: Tensor, v: Tensor, scale: float, simple: bool) -> dict[str, object]:
    """Compile-time arguments that all kernels have."""
    kind = KINDS[q.dtype]
    wide, wide_v = _width(q.shape[-1]), _width(v.shape[-1])
    exact = math.frexp(scale)[0] == 0.5  # a power of two: multiplying by it rounds nothing
    tf32 = q.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest"
    return {
        "D": wide,
        "DV": wide_v,
        "EVEN": q.shape[-1] == wide,
        "EVEN_V": v.shape[-1] == wide_v,
        "SIMPLE": simple,
        "SCALED": exact and q.dtype != torch.float16,
        "TERMS": kind.terms,
        "RADIUS": kind.radius,
        "FAST": not interpreted() and torch.version.hip is None,
        "PRECISION": "tf32" if tf32 else "ieee",
    }


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Strides of all but the last axis."""
    return tuple(stride for x in tensors for stride in x.stride()[:-1])


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    simple: bool,
    fill: bool,
) -> tuple[Tensor, Tensor]:
    """Run the forward kernel: outputs and log-sum-exps."""
    batch, heads, queries, head_dim = q.shape
    knots, value_dim = v.shape[-2:]
    out = torch.empty((batch, heads, queries, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    kind = KINDS[q.dtype]
    tile = choose_tile("forward", q, v)
    grid = (triton.cdiv(queries, tile.queries) * batch * heads,)
    shared = _shared_arguments(q, k, v, scale, simple)
    shapes = (*_strides(q, k, v), heads, heads // k.shape[1], queries, knots, head_dim, value_dim, scale)
    attention_fwd_kernel[grid](
        q, k, v, gaps, first, last, out, lse, *shapes, kind.limit, BM=tile.queries, BN=tile.columns,
        NORMALISE=kind.normalise, **shared, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if fill:
        del shared["SIMPLE"]
        attention_fill_kernel[grid](
            q, k, v, gaps, first, last, out, lse, *shapes, BM=tile.queries, BN=tile.columns,
            NORMALISE=kind.normalise, **shared, num_warps=tile.warps, num_stages=1,
        )  # fmt: skip
    return out, lse


def launch_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    simple: bool,
    fill: bool,
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the backward kernels: gradients of `q`, `k`, `v` and, if `with_gaps`, `gaps`."""
    batch, heads, queries, head_dim = q.shape
    kv_heads, knots, value_dim = v.shape[1:]
    shared = _shared_arguments(q, k, v, scale, simple)
    tile = choose_tile("knots", q, v)
    blocks, tiles = triton.cdiv(queries, tile.queries), triton.cdiv(knots, tile.columns - 8)
    single = tiles == 1
    delta, lse2 = torch.empty_like(lse), torch.empty_like(lse)
    limits = torch.empty((batch, 4, blocks), dtype=torch.int32, device=q.device)
    attention_bwd_prepare_kernel[(blocks * batch * heads,)](
        out, grad_out, lse, grad_lse, first, last, delta, lse2, limits, *_strides(grad_out), heads, queries,
        knots, value_dim, BM=tile.queries, DV=shared["DV"],
    )  # fmt: skip
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    dgaps = torch.zeros((batch, kv_heads, knots if with_gaps else 0), dtype=torch.float32, device=q.device)
    edges = [
        torch.empty(
            (2, batch * kv_heads * (0 if single else tiles), size), dtype=torch.float32, device=q.device
        )
        for size in (head_dim, value_dim)
    ]
    attention_bwd_knots_kernel[(tiles * batch * kv_heads,)](
        q, k, v, gaps, first, last, limits, grad_out, lse2, delta, dq, dk, dv, dgaps, *edges, *_strides(q,
        k, v, grad_out), batch * kv_heads, kv_heads, heads // kv_heads, queries, knots, head_dim, value_dim,
        scale, BM=tile.queries, BN=tile.columns, GAPS=with_gaps, SINGLE=single, FILL=fill, **shared,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if not single:
        attention_bwd_edges_kernel[(tiles * batch * kv_heads,)](
            dk,
            dv,
            *edges,
            batch * kv_heads,
            knots,
            head_dim,
            value_dim,
            BN=tile.columns,
            D=shared["D"],
            DV=shared["DV"],
            num_warps=1,
        )
        tile = choose_tile("queries", q, v)
        attention_bwd_queries_kernel[(triton.cdiv(queries, tile.queries) * batch * heads,)](
            q, k, v, gaps, first, last, grad_out, lse2, delta, dq, *_strides(q, k, v, grad_out), heads,
            heads // kv_heads, queries, knots, head_dim, value_dim, scale, BM=tile.queries, BN=tile.columns,
            FILL=fill, **shared, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return dq, dk, dv, dgaps.sum(1) if with_gaps else torch.zeros_like(gaps)
