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
from ctsattn.ops.continuous.triton.backward_knots import attention_bwd_knots_kernel
from ctsattn.ops.continuous.triton.clock import CHUNK, gaps_kernel
from ctsattn.ops.continuous.triton.columns import RUNS as _RUNS
from ctsattn.ops.continuous.triton.edges import attention_bwd_edges_kernel
from ctsattn.ops.continuous.triton.forward import attention_fwd_kernel

RUNS = _RUNS.value  # how many columns of a tile have no piece


class Tile(NamedTuple):
    """How a kernel is cut.

    Attributes:
        queries: Queries per tile.
        columns: Columns per tile.
        warps: Warps of a program.
        stages: Tiles that are loaded ahead, and one.
        registers: The most that a thread may have; None: the compiler decides.
    """

    queries: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Options of the compiler."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else options | {"maxnreg": self.registers}


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
    torch.float32: Kind(14, 2.0, False, 1e18),
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
    ("forward", 64): ((1024, Tile(64, 64, 4, 2, 168)), (math.inf, Tile(64, 64, 4, 3, 168))),
    ("forward", 128): ((math.inf, Tile(64, 64, 4, 2)),),
    ("forward", 256): ((math.inf, Tile(64, 64, 4, 1)),),
    ("knots", 64): ((64, Tile(64, 64, 4, 1)), (1024, Tile(64, 64, 4, 2)), (math.inf, Tile(64, 64, 4, 3))),
    ("knots", 128): ((2048, Tile(64, 64, 4, 2)), (math.inf, Tile(128, 64, 8, 2))),
    ("knots", 256): ((math.inf, Tile(32, 64, 8, 1)),),
    ("queries", 64): ((1024, Tile(64, 64, 4, 2, 168)), (math.inf, Tile(64, 64, 4, 3, 168))),
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
# Most knots of a row for which, at widths up to 64, tiles do not overlap in the queries kernel, and by
# `Sight.kind` in the knots kernel; measured on an H200.
SHORT = 1024
CLOSED = {0: 512, 1: 512, 2: 256}
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


def _fast(q: Tensor, tf32: bool) -> int:
    """0: no inline assembly; 1: within an element; 2: also between the four threads with a row of a product.

    Which threads these are was read off the layouts that the compiler gives products of the matrix unit of
    compute capability 8 and 9. Elsewhere, and in full float32, which does not use that unit, 1 asks the
    compiler to move the elements.
    """
    if interpreted() or torch.version.hip:
        return 0
    return 2 if tf32 and torch.cuda.get_device_capability(q.device)[0] in (8, 9) else 1


def _shared_arguments(
    sight: Sight, scale: float, q: Tensor, k: Tensor, v: Tensor, *more: Tensor
) -> dict[str, object]:
    """Compile-time arguments that all kernels have."""
    kind = KINDS[q.dtype]
    wide, wide_v = _width(q.shape[-1]), _width(v.shape[-1])
    exact = math.frexp(scale)[0] == 0.5  # a power of two: multiplying by it rounds nothing
    tf32 = q.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest"
    dense = all(x.stride(-2) == _width(x.shape[-1]) for x in (q, k, v, *more))
    return {
        "D": wide,
        "DV": wide_v,
        "EVEN": q.shape[-1] == wide,
        "EVEN_V": v.shape[-1] == wide_v,
        "DENSE": dense,
        "SIGHT": sight.kind,
        "SIMPLE": sight.simple,
        "FILL": sight.fill,
        "SCALED": exact and q.dtype != torch.float16,
        "TERMS": kind.terms,
        "RADIUS": kind.radius,
        "FAST": _fast(q, tf32),
        "PRECISION": "tf32" if tf32 else "ieee",
    }


def _early(possible: bool, q: Tensor) -> dict[str, bool]:
    """Whether a kernel may begin before the one before it ends, and what tells the compiler so."""
    early = possible and not interpreted() and not torch.version.hip
    early = early and torch.cuda.get_device_capability(q.device)[0] >= 9
    return {"EARLY": early} | ({"launch_pdl": True} if early else {})


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Strides of all but the last axis."""
    return tuple(stride for x in tensors for stride in x.stride()[:-1])


class Sight(NamedTuple):
    """What each query sees.

    Attributes:
        first: First knots `[batch, queries]`; unless `kind` is 0, for each row the first knot before which
            time has passed, `[batch]`; int32.
        last: Last knots `[batch, queries]`; unless `kind` is 0, for each row and chunk of knots whether there
            are some without weight, `[batch, chunks]`.
        kind: 0: what `first` and `last` say; 1: query i, the knots up to `i + offset`; 2: all.
        offset: See `kind`.
        simple: Whether all see the first knot.
        fill: Whether queries with nothing to integrate get what `answer` says.
    """

    first: Tensor
    last: Tensor
    kind: int
    offset: int
    simple: bool
    fill: bool


def chunks_of(knots: int) -> int:
    """Chunks of `gaps_kernel`."""
    return triton.cdiv(knots, CHUNK.value)


def launch_gaps(times: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gaps `[batch, knots]` of keys `like`, and `first` and `last` of `Sight`."""
    batch, knots = like.shape[0], like.shape[2]
    gaps = torch.empty((batch, knots), dtype=torch.float32, device=like.device)
    begin = torch.empty((batch,), dtype=torch.int32, device=like.device)
    chunks = chunks_of(knots)
    weightless = torch.empty((batch, chunks), dtype=torch.int32, device=like.device)
    strides = (0, 0) if times is None else times.stride()
    gaps_kernel[(batch, chunks)](
        gaps if times is None else times, gaps, begin, weightless, *strides, knots, TIMES=times is not None
    )
    return gaps, begin, weightless


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, sight: Sight, scale: float
) -> tuple[Tensor, Tensor]:
    """Run the forward kernel: outputs and log-sum-exps."""
    batch, heads, queries, head_dim = q.shape
    knots, value_dim = v.shape[-2:]
    out = torch.empty((batch, heads, queries, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    kind = KINDS[q.dtype]
    tile = choose_tile("forward", q, v)
    exact = sight.kind != 0 and queries % tile.queries == 0 and knots % tile.columns == 0
    attention_fwd_kernel[(triton.cdiv(queries, tile.queries) * batch * heads,)](
        q, k, v, gaps, sight.first, sight.last, out, lse, *_strides(q, k, v), heads, heads // k.shape[1],
        queries, knots, head_dim, value_dim, scale, sight.offset, kind.limit, BM=tile.queries,
        BN=tile.columns, NORMALISE=kind.normalise, PEEL=kind.terms == 0 and head_dim + value_dim <= 256,
        EXACT=exact, **_shared_arguments(sight, scale, q, k, v), **tile.options,
        **_early(sight.kind != 0, q),
    )  # fmt: skip
    return out, lse


def launch_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    sight: Sight,
    out: Tensor,
    lse: Tensor,
    scale: float,
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the backward kernels: gradients of `q`, `k`, `v` and `gaps`, empty unless `with_gaps`."""
    batch, heads, queries, head_dim = q.shape
    kv_heads, knots, value_dim = v.shape[1:]
    shared = _shared_arguments(sight, scale, q, k, v, grad_out)
    strides = _strides(q, k, v, grad_out)
    tile = choose_tile("knots", q, v)
    narrow = head_dim + value_dim <= 128
    closed = narrow and knots <= CLOSED[sight.kind] and tile.columns == 64 and not with_gaps
    step = tile.columns - (0 if closed else RUNS)
    blocks, tiles = triton.cdiv(queries, tile.queries), triton.cdiv(knots, step)
    single = tiles == 1
    delta, lse2 = torch.empty_like(lse), torch.empty_like(lse)
    limits = torch.empty((batch, 4, blocks), dtype=torch.int32, device=q.device)
    attention_bwd_prepare_kernel[(blocks * batch * heads,)](
        out, grad_out, lse, lse if grad_lse is None else grad_lse, sight.first, sight.last, delta, lse2,
        limits, *strides[-3:], heads, queries, knots, value_dim, sight.offset, BM=tile.queries,
        DV=shared["DV"], SIGHT=sight.kind, WITH_LSE=grad_lse is not None,
        LIMITS=sight.kind == 0 or not closed,
    )  # fmt: skip
    early = _early(True, q)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    dgaps = torch.empty((batch, kv_heads, knots if with_gaps else 0), dtype=torch.float32, device=q.device)
    parts = 0 if single or closed else batch * kv_heads * tiles
    edges = [
        torch.empty((2, parts, size), dtype=torch.float32, device=q.device) for size in (head_dim, value_dim)
    ]
    attention_bwd_knots_kernel[(tiles * batch * kv_heads,)](
        q, k, v, gaps, sight.first, sight.last, limits, grad_out, lse2, delta, dq, dk, dv, dgaps,
        *edges, *strides, tiles, kv_heads, heads // kv_heads, queries, knots, head_dim, value_dim,
        scale, sight.offset, BM=tile.queries, BN=tile.columns, GAPS=with_gaps, SINGLE=single, STEP=step,
        **shared, **tile.options, **early,
    )  # fmt: skip
    if not (single or closed):
        attention_bwd_edges_kernel[(tiles * batch * kv_heads,)](
            dk, dv, *edges, tiles, knots, head_dim, value_dim, BN=tile.columns, D=shared["D"],
            DV=shared["DV"], num_warps=1, **early,
        )  # fmt: skip
    if not single:
        tile = choose_tile("queries", q, v)
        shared_ends = RUNS if knots > SHORT or not narrow else 0
        attention_bwd_queries_kernel[(triton.cdiv(queries, tile.queries) * batch * heads,)](
            q, k, v, gaps, sight.first, sight.last, grad_out, lse2, delta, dq, *strides, heads, heads //
            kv_heads, queries, knots, head_dim, value_dim, scale, sight.offset, BM=tile.queries,
            BN=tile.columns, PIECES=tile.columns - shared_ends, **shared, **tile.options, **early,
        )  # fmt: skip
    return dq, dk, dv, dgaps.sum(1)
