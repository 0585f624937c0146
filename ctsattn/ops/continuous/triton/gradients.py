"""Triton: gradients of scores of a tile, for both kernels of the backward pass. Maths in `backward.py`."""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.columns import (
    RUNS,
    first_of_runs,
    join_eight,
    join_four,
    join_pairs,
    join_two,
    last_of_runs,
    split_in_eight,
    split_in_two,
    turn,
    turn_back,
)
from ctsattn.ops.continuous.triton.primitives import LOG2E, piece_gradients

# Largest exponent of 2 of a knot in the backward pass; only knots without weight exceed it.
CEILING = tl.constexpr(60.0)


@triton.jit
def exponential(s, lse, TERMS: tl.constexpr, CLAMP: tl.constexpr):
    """Exponential of scores relative to the sum of weights; `CLAMP`: there may be knots without weight."""
    x = s * (2.0 * LOG2E if TERMS == 0 else LOG2E) - lse[:, None]
    return tl.exp2(tl.minimum(x, CEILING) if CLAMP else x)


@triton.jit
def gradient_step(
    s, g, gap, lse, s1, g1, e1, w1, h1, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, GAPS:
    tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """One piece of each run: completes weight and gradient of its right knots, begins those of the left."""
    e = exponential(s, lse, TERMS, CLAMP)
    d = s1 - s
    if GAPS:
        unit = tl.full(d.shape, 0.25 if TERMS == 0 else 1.0, tl.float32)
        left, right, c = piece_gradients(d, e, e1, unit, 0.0, TERMS, RADIUS, FAST)
        per_gap = left * g + right * g1
        length = gap * (4.0 if TERMS == 0 else 1.0)
        left = length * left
        w1 = length * right + w1
        c = length * c
    else:
        left, w1, c = piece_gradients(d, e, e1, gap, w1, TERMS, RADIUS, FAST)
        per_gap = left
    h = c * (g1 - g)
    return w1, w1 * g1 + (h1 - h), e, left, h, per_gap


@triton.jit
def eight_gradient_steps(
    s, g, gap, lse, s8, g8, e, w, h, M: tl.constexpr, LAST: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr, GAPS: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """Pieces of 32 columns, eight knots of each run, from the last to the first; the last of all begins none.

    Returns weights and gradients as `forward.eight_steps` does the weights; score, its gradient, exponential
    and `h` with which the next eight go on; gradients per gap [M, 32].
    """
    s0, s1, s2, s3, s4, s5, s6, s7 = split_in_eight(s, M)
    g0, g1, g2, g3, g4, g5, g6, g7 = split_in_eight(g, M)
    p0, p1, p2, p3, p4, p5, p6, p7 = split_in_eight(gap, M)
    if LAST:
        e = exponential(s7, lse, TERMS, CLAMP)
        w8 = w
        a8 = w
        t7 = w
    else:
        w8, a8, e, w, h, t7 = gradient_step(
            s7, g7, p7, lse, s8, g8, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
    w7, a7, e, w, h, t6 = gradient_step(s6, g6, p6, lse, s7, g7, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w6, a6, e, w, h, t5 = gradient_step(s5, g5, p5, lse, s6, g6, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w5, a5, e, w, h, t4 = gradient_step(s4, g4, p4, lse, s5, g5, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w4, a4, e, w, h, t3 = gradient_step(s3, g3, p3, lse, s4, g4, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w3, a3, e, w, h, t2 = gradient_step(s2, g2, p2, lse, s3, g3, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w2, a2, e, w, h, t1 = gradient_step(s1, g1, p1, lse, s2, g2, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w1, a1, e, w, h, t0 = gradient_step(s0, g0, p0, lse, s1, g1, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w_odd = join_four(w1, w3, w5, w7, M, 16)
    a_odd = join_four(a1, a3, a5, a7, M, 16)
    t = join_eight(t0, t2, t4, t6, join_four(t1, t3, t5, t7, M, 16), M) if GAPS else t0
    return w, w2, w4, w6, w_odd, w8, w * g0 + h, a2, a4, a6, a_odd, a8, s0, g0, e, h, t


@triton.jit
def tile_gradients(
    s, g, gap, lse, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr, GAPS: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """Weights, gradients of scores, and gradient per gap, [M, N], of a tile's columns.

    Where `TERMS` is 0, `s` is half the scores and `gap` a quarter of the gaps.
    """
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, N)
    g_low, g_high = split_in_two(g, M, N)
    p_low, p_high = split_in_two(gap, M, N)
    if N == 64:
        w8, w10, w12, w14, w_high, _w, a8, a10, a12, a14, a_high, _a, s, g, e, h, t_high = (
            eight_gradient_steps(
                s_high, g_high, p_high, lse, none, none, none, none, none, M, True, TERMS, RADIUS, FAST, GAPS,
                CLAMP,
            )
        )  # fmt: skip
        w0, w2, w4, w6, w_low, w8, a0, a2, a4, a6, a_low, a8, s, g, e, h, t_low = eight_gradient_steps(
            s_low, g_low, p_low, lse, s, g, e, w8, h, M, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w = join_two(join_eight(w0, w2, w4, w6, w_low, M), join_eight(w8, w10, w12, w14, w_high, M), M, 64)
        a = join_two(join_eight(a0, a2, a4, a6, a_low, M), join_eight(a8, a10, a12, a14, a_high, M), M, 64)
        return w, a, join_two(t_low, t_high, M, 64) if GAPS else t_low
    else:
        s0, s8 = split_in_two(s_low, M, 64)
        s16, s24 = split_in_two(s_high, M, 64)
        g0, g8 = split_in_two(g_low, M, 64)
        g16, g24 = split_in_two(g_high, M, 64)
        p0, p8 = split_in_two(p_low, M, 64)
        p16, p24 = split_in_two(p_high, M, 64)
        w24, w26, w28, w30, w_d, _w, a24, a26, a28, a30, a_d, _a, s, g, e, h, t_d = eight_gradient_steps(
            s24, g24, p24, lse, none, none, none, none, none, M, True, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w16, w18, w20, w22, w_c, w24, a16, a18, a20, a22, a_c, a24, s, g, e, h, t_c = eight_gradient_steps(
            s16, g16, p16, lse, s, g, e, w24, h, M, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w8, w10, w12, w14, w_b, w16, a8, a10, a12, a14, a_b, a16, s, g, e, h, t_b = eight_gradient_steps(
            s8, g8, p8, lse, s, g, e, w16, h, M, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w0, w2, w4, w6, w_a, w8, a0, a2, a4, a6, a_a, a8, s, g, e, h, t_a = eight_gradient_steps(
            s0, g0, p0, lse, s, g, e, w8, h, M, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w_a = join_two(join_eight(w0, w2, w4, w6, w_a, M), join_eight(w8, w10, w12, w14, w_b, M), M, 64)
        w_c = join_two(join_eight(w16, w18, w20, w22, w_c, M), join_eight(w24, w26, w28, w30, w_d, M), M, 64)
        a_a = join_two(join_eight(a0, a2, a4, a6, a_a, M), join_eight(a8, a10, a12, a14, a_b, M), M, 64)
        a_c = join_two(join_eight(a16, a18, a20, a22, a_c, M), join_eight(a24, a26, a28, a30, a_d, M), M, 64)
        t = join_four(t_a, t_b, t_c, t_d, M, 128) if GAPS else t_a
        return join_two(w_a, w_c, M, 128), join_two(a_a, a_c, M, 128), t


@triton.jit
def open_tile_gradients(
    s, g, gap, lse, s_next, g_next, a_next, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """Gradients [M, N] of the scores of the knots after a tile's columns; arguments as in `tile_gradients`.

    `s_next`, `g_next`, `a_next` [M, RUNS]: in the last column, score, `g` and the begun gradient of the knot
    after the tile. Returned are the same for the tile before.
    """
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, N)
    g_low, g_high = split_in_two(g, M, N)
    p_low, p_high = split_in_two(gap, M, N)
    s_next, s_end = turn(first_of_runs(s_low, M, N // 2), s_next, M, FAST)
    g_next, g_end = turn(first_of_runs(g_low, M, N // 2), g_next, M, FAST)
    e = exponential(s_end, lse, TERMS, CLAMP)
    if N == 64:
        _w, _w, _w, _w, _w, _w, begun8, a10, a12, a14, odd9, a16, s8, g8, e, _h, _t = eight_gradient_steps(
            s_high, g_high, p_high, lse, s_end, g_end, e, none, none, M, False, TERMS, RADIUS, FAST, False,
            CLAMP,
        )  # fmt: skip
        _w, _w, _w, _w, _w, _w, begun0, a2, a4, a6, odd1, a8, _s, _g, _e, _h, _t = eight_gradient_steps(
            s_low, g_low, p_low, lse, s8, g8, e, none, none, M, False, TERMS, RADIUS, FAST, False, CLAMP
        )
        a_next, begun16 = turn(begun0, a_next, M, FAST)
        low = join_pairs(odd1, join_four(a2, a4, a6, a8 + begun8, M, 16), M, 32)
        high = join_pairs(odd9, join_four(a10, a12, a14, a16 + begun16, M, 16), M, 32)
        return join_two(low, high, M, 64), s_next, g_next, a_next
    else:
        s0, s8 = split_in_two(s_low, M, 64)
        s16, s24 = split_in_two(s_high, M, 64)
        g0, g8 = split_in_two(g_low, M, 64)
        g16, g24 = split_in_two(g_high, M, 64)
        p0, p8 = split_in_two(p_low, M, 64)
        p16, p24 = split_in_two(p_high, M, 64)
        _w, _w, _w, _w, _w, _w, begun24, a26, a28, a30, odd25, a32, s, g, e, _h, _t = eight_gradient_steps(
            s24, g24, p24, lse, s_end, g_end, e, none, none, M, False, TERMS, RADIUS, FAST, False, CLAMP
        )
        _w, _w, _w, _w, _w, _w, begun16, a18, a20, a22, odd17, a24, s, g, e, _h, _t = eight_gradient_steps(
            s16, g16, p16, lse, s, g, e, none, none, M, False, TERMS, RADIUS, FAST, False, CLAMP
        )
        _w, _w, _w, _w, _w, _w, begun8, a10, a12, a14, odd9, a16, s, g, e, _h, _t = eight_gradient_steps(
            s8, g8, p8, lse, s, g, e, none, none, M, False, TERMS, RADIUS, FAST, False, CLAMP
        )
        _w, _w, _w, _w, _w, _w, begun0, a2, a4, a6, odd1, a8, _s, _g, _e, _h, _t = eight_gradient_steps(
            s0, g0, p0, lse, s, g, e, none, none, M, False, TERMS, RADIUS, FAST, False, CLAMP
        )
        a_next, begun32 = turn(begun0, a_next, M, FAST)
        a1 = join_pairs(odd1, join_four(a2, a4, a6, a8 + begun8, M, 16), M, 32)
        a9 = join_pairs(odd9, join_four(a10, a12, a14, a16 + begun16, M, 16), M, 32)
        a17 = join_pairs(odd17, join_four(a18, a20, a22, a24 + begun24, M, 16), M, 32)
        a25 = join_pairs(odd25, join_four(a26, a28, a30, a32 + begun32, M, 16), M, 32)
        return join_four(a1, a9, a17, a25, M, 128), s_next, g_next, a_next


@triton.jit
def closed_tile_gradients(
    s, g, gap, gap_before, lse, s_rim, g_rim, M: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr,
    FAST: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """Weights, and gradients of scores, [M, 64] of a tile's knots, from all pieces that end at one of them.

    `gap_before` [M, RUNS]: gaps before the first knots of runs. `s_rim`, `g_rim` [M, RUNS]: score and `g` of
    the knot before the tile in the first column, of the knot after it in the last.
    """
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, 64)
    g_low, g_high = split_in_two(g, M, 64)
    p_low, p_high = split_in_two(gap, M, 64)
    _s, s_end = turn(first_of_runs(s_low, M, 32), s_rim, M, FAST)
    _g, g_end = turn(first_of_runs(g_low, M, 32), g_rim, M, FAST)
    s_before = turn_back(last_of_runs(s_high, M, 32), s_rim, M, FAST)
    g_before = turn_back(last_of_runs(g_high, M, 32), g_rim, M, FAST)
    e = exponential(s_end, lse, TERMS, CLAMP)
    w, w10, w12, w14, w_high, _w, _a, a10, a12, a14, a_high, _a, s, g, e, h, _t = eight_gradient_steps(
        s_high, g_high, p_high, lse, s_end, g_end, e, none, none, M, False, TERMS, RADIUS, FAST, False, CLAMP
    )
    w, w2, w4, w6, w_low, w8, _a, a2, a4, a6, a_low, a8, s, g, e, h, _t = eight_gradient_steps(
        s_low, g_low, p_low, lse, s, g, e, w, h, M, False, TERMS, RADIUS, FAST, False, CLAMP
    )
    w0, a0, _e, _w, _h, _t = gradient_step(
        s_before, g_before, gap_before, lse, s, g, e, w, h, TERMS, RADIUS, FAST, False, CLAMP
    )
    w = join_two(join_eight(w0, w2, w4, w6, w_low, M), join_eight(w8, w10, w12, w14, w_high, M), M, 64)
    a = join_two(join_eight(a0, a2, a4, a6, a_low, M), join_eight(a8, a10, a12, a14, a_high, M), M, 64)
    return w, a
