"""A forward kernel in Gluon: a prototype, for measuring, that no part of the package uses.

Gluon is Triton's lower level: layouts, shared memory, barriers and groups of warps are written out. The
kernel is that of `ctsattn/ops/continuous/triton/forward.py` with one group of warps that only copies keys,
values and gaps to shared memory, and three that compute, each for 64 queries. `gluon.py` says what it is for
and what it lacks.

Tiles are `[64, 64]`. A thread has sixteen columns of each of its rows; `pieces` takes a tile apart into
sixteen `[64, 4]`, of which a thread holds one element a row, so that the pieces of a run follow each other
within a thread, and `weights` puts them together again. By `assert_trivial` no element moves.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ctsattn.ops.continuous.triton.columns import turn
from ctsattn.ops.continuous.triton.forward import piece_step
from ctsattn.ops.continuous.triton.primitives import exponent_scale

_MMA = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
_LOAD = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
# A tile of scores or outputs, its rows and its columns.
MMA = gl.constexpr(_MMA)
ROWS = gl.constexpr(gl.SliceLayout(1, _MMA))
COLS = gl.constexpr(gl.SliceLayout(0, _MMA))
# A tile as it is copied, its rows and its columns; and a line of 64 gaps.
LOAD = gl.constexpr(_LOAD)
LOAD_ROWS = gl.constexpr(gl.SliceLayout(1, _LOAD))
LOAD_COLS = gl.constexpr(gl.SliceLayout(0, _LOAD))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
# `[64, 4]`: what the splits of `pieces` leave of `MMA`.
RUN = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 4]
    )
)


@gluon.jit
def halves(x, N: gl.constexpr):
    """A tile `[64, N]` as its left and right halves."""
    return gl.split(gl.permute(gl.reshape(x, (64, 2, N // 2)), (0, 2, 1)))


@gluon.jit
def run(x):
    """One piece of each run, in the layout `RUN`."""
    return gl.convert_layout(x, RUN, assert_trivial=True)


@gluon.jit
def quarters(x):
    """[64, 16] as four [64, 4]."""
    a, b = halves(x, 16)
    x0, x1 = halves(a, 8)
    x2, x3 = halves(b, 8)
    return run(x0), run(x1), run(x2), run(x3)


@gluon.jit
def pieces(x):
    """[64, 64] as sixteen [64, 4]."""
    low, high = halves(x, 64)
    e, o = gl.split(gl.reshape(low, (64, 16, 2)))
    x0, x2, x4, x6 = quarters(e)
    x1, x3, x5, x7 = quarters(o)
    e, o = gl.split(gl.reshape(high, (64, 16, 2)))
    x8, x10, x12, x14 = quarters(e)
    x9, x11, x13, x15 = quarters(o)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@gluon.jit
def two(a, b, N: gl.constexpr):
    """Two tiles beside each other: `[64, N]`."""
    return gl.reshape(gl.permute(gl.join(a, b), (0, 2, 1)), (64, N))


@gluon.jit
def four(a, b, c, d):
    """Four `[64, 4]` beside each other."""
    return two(two(a, b, 8), two(c, d, 8), 16)


@gluon.jit
def weights(s, gap, m, s_next, w_next, FAST: gl.constexpr):
    """Weights of a tile's columns from its scores, the last piece first, and what the next tile needs."""
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15 = pieces(s)
    g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, g10, g11, g12, g13, g14, g15 = pieces(gap)
    m = as_runs(m)
    s_next, end = turn(s0, s_next, 64, FAST)
    e = gl.exp2(end * exponent_scale(0) - m)
    w16, e, w = piece_step(s15, g15, m, end, e, 0.0, 0, 0.0, FAST)
    w15, e, w = piece_step(s14, g14, m, s15, e, w, 0, 0.0, FAST)
    w14, e, w = piece_step(s13, g13, m, s14, e, w, 0, 0.0, FAST)
    w13, e, w = piece_step(s12, g12, m, s13, e, w, 0, 0.0, FAST)
    w12, e, w = piece_step(s11, g11, m, s12, e, w, 0, 0.0, FAST)
    w11, e, w = piece_step(s10, g10, m, s11, e, w, 0, 0.0, FAST)
    w10, e, w = piece_step(s9, g9, m, s10, e, w, 0, 0.0, FAST)
    w9, e, w = piece_step(s8, g8, m, s9, e, w, 0, 0.0, FAST)
    w8, e, w = piece_step(s7, g7, m, s8, e, w, 0, 0.0, FAST)
    w7, e, w = piece_step(s6, g6, m, s7, e, w, 0, 0.0, FAST)
    w6, e, w = piece_step(s5, g5, m, s6, e, w, 0, 0.0, FAST)
    w5, e, w = piece_step(s4, g4, m, s5, e, w, 0, 0.0, FAST)
    w4, e, w = piece_step(s3, g3, m, s4, e, w, 0, 0.0, FAST)
    w3, e, w = piece_step(s2, g2, m, s3, e, w, 0, 0.0, FAST)
    w2, e, w = piece_step(s1, g1, m, s2, e, w, 0, 0.0, FAST)
    w1, e, w = piece_step(s0, g0, m, s1, e, w, 0, 0.0, FAST)
    w_next, begun = turn(w, w_next, 64, FAST)
    w16 += begun
    low = gl.reshape(gl.join(four(w1, w3, w5, w7), four(w2, w4, w6, w8)), (64, 32))
    high = gl.reshape(gl.join(four(w9, w11, w13, w15), four(w10, w12, w14, w16)), (64, 32))
    return gl.convert_layout(two(low, high, 64), MMA, assert_trivial=True), s_next, w_next


@gluon.jit
def offsets(c):
    """Which knot a column of the tile holds: runs of sixteen follow each other within a thread."""
    return c % 8 // 2 * 16 + c // 8 * 2 + c % 2


@gluon.jit
def producer(k_ptr, v_ptr, gap_ptr, k_s, v_s, g_s, ready, empty, tiles, num_knots, S: gl.constexpr):
    """Copy keys, values and gaps of each tile, the last tile first, as soon as a stage is free."""
    row = offsets(gl.arange(0, 64, LOAD_ROWS))
    col = gl.arange(0, 64, LOAD_COLS)
    line = offsets(gl.arange(0, 64, LINE))
    for i in range(tiles):
        st = i % S
        mbarrier.wait(empty.index(st), ((i // S) & 1) ^ 1)
        n0 = (tiles - 1 - i) * 64
        at = (n0 + row)[:, None] * 64 + col[None, :]
        async_copy.async_copy_global_to_shared(k_s.index(st), k_ptr + at)
        after = gl.minimum(n0 + row + 1, num_knots - 1)
        async_copy.async_copy_global_to_shared(v_s.index(st), v_ptr + after[:, None] * 64 + col[None, :])
        async_copy.async_copy_global_to_shared(
            g_s.index(st), gap_ptr + n0 + line + 1, mask=n0 + line + 1 < num_knots
        )
        async_copy.mbarrier_arrive(ready.index(st), increment_count=False)


@gluon.jit
def as_runs(x):
    """[64] rows as [64, 4] by the splits that a tile undergoes."""
    return gl.convert_layout(x, gl.SliceLayout(1, RUN))[:, None] + gl.zeros([64, 4], gl.float32, RUN)


@gluon.jit
def scores(q_s, k_s, ready, i, S: gl.constexpr):
    """Begin the product of the queries with the keys of tile `i` once they have arrived."""
    st = i % S
    mbarrier.wait(ready.index(st), (i // S) & 1)
    fence_async_shared()
    return warpgroup_mma(
        q_s, k_s.index(st).permute((1, 0)), gl.zeros([64, 64], gl.float32, MMA), use_acc=False, is_async=True
    )


@gluon.jit
def arithmetic(s, total, m, s_next, w_next, g_s, i, S: gl.constexpr, FAST: gl.constexpr):
    """Weights of tile `i` as an operand, and the sum of weights."""
    gap = g_s.index(i % S).load(COLS)[None, :] + gl.zeros([64, 64], gl.float32, MMA)
    w, s_next, w_next = weights(s, gap, m, s_next, w_next, FAST)
    total += gl.sum(w, 1)
    a = gl.convert_layout(w.to(gl.bfloat16), gl.DotOperandLayout(0, MMA, 2))
    return a, total, s_next, w_next


@gluon.jit
def consumer(
    q_ptr,
    v_ptr,
    out_ptr,
    k_s,
    v_s,
    g_s,
    q_s,
    ready,
    empty,
    tiles,
    num_knots,
    scale,
    WHO: gl.constexpr,
    S: gl.constexpr,
    FAST: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Outputs of 64 queries."""
    row = gl.arange(0, 64, LOAD_ROWS) + WHO * 64
    col = gl.arange(0, 64, LOAD_COLS)
    inside = (row < num_knots)[:, None] & (col < 64)[None, :]
    q = gl.load(q_ptr + row[:, None] * 64 + col[None, :], mask=inside, other=0.0)
    q = (q * scale).to(gl.bfloat16)
    q_s.store(q)
    fence_async_shared()
    acc = gl.zeros([64, 64], gl.float32, MMA)
    total = gl.zeros([64], gl.float32, ROWS)
    w_next = gl.zeros([64, 4], gl.float32, RUN)
    s_next = w_next - 3.0e38
    s = warpgroup_mma_wait(0, deps=[scores(q_s, k_s, ready, 0, S)])
    m = gl.max(s, 1) * exponent_scale(0)
    a, total, s_next, w_next = arithmetic(s, total, m, s_next, w_next, g_s, 0, S, FAST)
    for i in range(1, tiles):
        before = (i - 1) % S
        if OVERLAP:
            # In this order ptxas does not serialise the products: the scores are awaited at once, the product
            # with the values of the tile before only after the arithmetic.
            token = scores(q_s, k_s, ready, i, S)
            running = warpgroup_mma(a, v_s.index(before), acc, is_async=True)
            s = warpgroup_mma_wait(1, deps=[token])
            b, total, s_next, w_next = arithmetic(s, total, m, s_next, w_next, g_s, i, S, FAST)
            acc, a = warpgroup_mma_wait(0, deps=[running, a])
            mbarrier.arrive(empty.index(before), count=1)
            a = b
        else:
            acc = warpgroup_mma_wait(0, deps=[warpgroup_mma(a, v_s.index(before), acc, is_async=True)])
            mbarrier.arrive(empty.index(before), count=1)
            s = warpgroup_mma_wait(0, deps=[scores(q_s, k_s, ready, i, S)])
            a, total, s_next, w_next = arithmetic(s, total, m, s_next, w_next, g_s, i, S, FAST)
    acc = warpgroup_mma_wait(0, deps=[warpgroup_mma(a, v_s.index((tiles - 1) % S), acc, is_async=True)])
    value = gl.load(v_ptr + gl.arange(0, 64, COLS)).to(gl.float32)
    last = gl.arange(0, 4, gl.SliceLayout(0, RUN)) == 3
    begun = gl.sum(gl.where(last[None, :], w_next, 0.0), 1)
    begun = gl.convert_layout(begun, ROWS)
    acc = acc + begun[:, None] * value[None, :]
    acc = acc * (1.0 / (total + begun))[:, None]
    o = gl.convert_layout(acc.to(gl.bfloat16), LOAD)
    gl.store(out_ptr + row[:, None] * 64 + col[None, :], o, mask=inside)


@gluon.jit(do_not_specialize=["num_knots"])
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    gap_ptr,
    out_ptr,
    heads,
    num_knots,
    scale,
    S: gl.constexpr,
    FAST: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Outputs of 192 queries of a row and head."""
    BLOCK: gl.constexpr = 3 * 64
    blocks = (num_knots + BLOCK - 1) // BLOCK
    block = gl.program_id(0) % blocks
    bh = (gl.program_id(0) // blocks).to(gl.int64)
    gap_ptr += (bh // heads) * num_knots
    k_ptr += bh * num_knots * 64
    v_ptr += bh * num_knots * 64
    q_ptr += (bh * num_knots + block * BLOCK) * 64
    out_ptr += (bh * num_knots + block * BLOCK) * 64
    left = num_knots - block * BLOCK
    lay: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k_s = gl.allocate_shared_memory(gl.bfloat16, [S, 64, 64], lay)
    v_s = gl.allocate_shared_memory(gl.bfloat16, [S, 64, 64], lay)
    q_s = gl.allocate_shared_memory(gl.bfloat16, [3, 64, 64], lay)
    g_s = gl.allocate_shared_memory(gl.float32, [S, 64], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    ready = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(S):
        mbarrier.init(ready.index(i), count=128)
        mbarrier.init(empty.index(i), count=3)
    tiles = (num_knots + 63) // 64
    # fmt: off
    gl.warp_specialize(
        [
            (consumer, (q_ptr, v_ptr, out_ptr, k_s, v_s, g_s, q_s.index(0), ready, empty, tiles,
                        left, scale, 0, S, FAST, OVERLAP)),
            (consumer, (q_ptr, v_ptr, out_ptr, k_s, v_s, g_s, q_s.index(1), ready, empty, tiles,
                        left, scale, 1, S, FAST, OVERLAP)),
            (consumer, (q_ptr, v_ptr, out_ptr, k_s, v_s, g_s, q_s.index(2), ready, empty, tiles,
                        left, scale, 2, S, FAST, OVERLAP)),
            (producer, (k_ptr, v_ptr, gap_ptr, k_s, v_s, g_s, ready, empty, tiles, num_knots, S)),
        ],
        [4, 4, 4],
        [160, 160, 24],
    )
    # fmt: on
