"""Launches of the Triton kernels: block sizes, what depends on the dtype, memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ctsattn.ops.continuous.triton.backward import (
    attention_bwd_edges_kernel,
    attention_bwd_knots_kernel,
    attention_bwd_prepare_kernel,
    attention_bwd_queries_kernel,
)
from ctsattn.ops.continuous.triton.forward import attention_fwd_kernel


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


def _interpreted() -> bool:
    """Whether Triton runs in its interpreter, on the CPU."""
    return not isinstance(attention_fwd_kernel, triton.JITFunction)


def _width(size: int) -> int:
    """Width of a tile that holds vectors of `size`."""
    return max(16, triton.next_power_of_2(size))


def forward_tile(dtype: torch.dtype, width: int, knots: int) -> Tile:
    """Tile of the forward kernel."""
    if dtype == torch.float32:
        return Tile(64, 64, 4, 1)
    if knots <= 64:
        return Tile(64, 64, 4, 1)
    if width <= 64:
        return Tile(64, 128, 4, 2)
    return Tile(128, 128, 8, 2) if width <= 128 else Tile(64, 64, 4, 1)


def knots_tile(dtype: torch.dtype, width: int, knots: int) -> Tile:
    """Tile of the backward kernel that holds knots."""
    if dtype == torch.float32:
        return Tile(32, 64, 4, 1)
    if width <= 64 and knots <= 64:
        return Tile(64, 64, 4, 1)
    if width <= 64:
        return Tile(64, 128, 8, 2)
    return Tile(64, 128, 8, 1) if width <= 128 else Tile(32, 64, 8, 1)


def queries_tile(dtype: torch.dtype, width: int) -> Tile:
    """Tile of the backward kernel that holds queries."""
    if dtype == torch.float32:
        return Tile(32, 64, 4, 1)
    if width <= 64:
        return Tile(64, 128, 4, 2)
    return Tile(64, 64, 4, 2) if width <= 128 else Tile(32, 64, 4, 1)


def _shared_arguments(q: Tensor, k: Tensor, v: Tensor, scale: float, simple: bool) -> dict[str, object]:
    """Compile-time arguments that all kernels have."""
    kind = KINDS[q.dtype]
    wide, wide_v = _width(q.shape[-1]), _width(v.shape[-1])
    exact = abs(scale) == 2.0 ** round(torch.tensor(abs(scale)).log2().item()) if scale else False
    tf32 = q.dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32
    return {
        "D": wide,
        "DV": wide_v,
        "EVEN": q.shape[-1] == wide,
        "EVEN_V": v.shape[-1] == wide_v,
        "SIMPLE": simple,
        "SCALED": exact and q.dtype != torch.float16,
        "TERMS": kind.terms,
        "RADIUS": kind.radius,
        "FAST": not _interpreted() and torch.version.hip is None,
        "PRECISION": "tf32" if tf32 else "ieee",
    }


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Strides of all but the last axis."""
    return tuple(stride for x in tensors for stride in x.stride()[:-1])


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float, simple: bool
) -> tuple[Tensor, Tensor]:
    """Run the forward kernel: outputs and log-sum-exps."""
    batch, heads, queries, head_dim = q.shape
    knots, value_dim = v.shape[-2:]
    out = torch.empty((batch, heads, queries, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    kind = KINDS[q.dtype]
    tile = forward_tile(q.dtype, _width(max(head_dim, value_dim)), knots)
    grid = (triton.cdiv(queries, tile.queries) * batch * heads,)
    attention_fwd_kernel[grid](
        q, k, v, gaps, first, last, out, lse, *_strides(q, k, v), heads, heads // k.shape[1], queries, knots,
        head_dim, value_dim, scale, kind.limit, BM=tile.queries, BN=tile.columns, NORMALISE=kind.normalise, **_shared_arguments(q, k, v, scale, simple),
        num_warps=tile.warps, num_stages=tile.stages,
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
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the backward kernels: gradients of `q`, `k`, `v` and, if `with_gaps`, `gaps`."""
    batch, heads, queries, head_dim = q.shape
    kv_heads, knots, value_dim = v.shape[1:]
    shared = _shared_arguments(q, k, v, scale, simple)
    width = _width(max(head_dim, value_dim))
    tile = knots_tile(q.dtype, width, knots)
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
        torch.empty((2, batch * kv_heads * (0 if single else tiles), size), dtype=torch.float32, device=q.device)
        for size in (head_dim, value_dim)
    ]
    attention_bwd_knots_kernel[(tiles * batch * kv_heads,)](
        q, k, v, gaps, first, last, limits, grad_out, lse2, delta, dq, dk, dv, dgaps, *edges,
        *_strides(q, k, v, grad_out), batch * kv_heads, kv_heads, heads // kv_heads, queries, knots, head_dim, value_dim, scale,
        BM=tile.queries, BN=tile.columns, GAPS=with_gaps, SINGLE=single, **shared,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if not single:
        attention_bwd_edges_kernel[(tiles * batch * kv_heads,)](
            dk, dv, *edges, batch * kv_heads, knots, head_dim, value_dim, BN=tile.columns, D=shared["D"], DV=shared["DV"], num_warps=1
        )
        tile = queries_tile(q.dtype, width)
        attention_bwd_queries_kernel[(triton.cdiv(queries, tile.queries) * batch * heads,)](
            q, k, v, gaps, first, last, grad_out, lse2, delta, dq, *_strides(q, k, v, grad_out), heads,
            heads // kv_heads, queries, knots, head_dim, value_dim, scale, BM=tile.queries, BN=tile.columns,
            **shared, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return dq, dk, dv, dgaps.sum(1) if with_gaps else torch.zeros_like(gaps)
