"""Triton: gradients of scores of a tile, for both kernels of the backward pass. Maths in `backward.py`."""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.primitives import (
    CEILING,
    LOG2E,
    RUNS,
    join_four,
    join_two,
    piece_curvature,
    piece_weights,
    split_in_four,
    split_in_two,
)


@triton.jit
def exponential(s, lse, CLAMP: tl.constexpr):
    """Exponential of scores relative to the sum of weights; `CLAMP`: there may be knots without weight."""
    x = s * LOG2E - lse[:, None]
    return tl.exp2(tl.minimum(x, CEILING) if CLAMP else x)


@triton.jit
def gradient_step(
    s,
    g,
    gap,
    lse,
    s1,
    g1,
    e1,
    w1,
    h1,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    FAST: tl.constexpr,
    GAPS: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """One group's pieces: completes weight and gradient of its right knots, begins those of the left."""
    e = exponential(s, lse, CLAMP)
    d = s1 - s
    if GAPS:
        left, right, r = piece_weights(d, e, e1, 1.0, 0.0, TERMS, RADIUS, FAST)
        per_gap = left * g + right * g1
        left = gap * left
        right = gap * right
    else:
        left, right, r = piece_weights(d, e, e1, gap, 0.0, TERMS, RADIUS, FAST)
        per_gap = left
    h = piece_curvature(d, e, gap, left, right, r, TERMS, RADIUS) * (g1 - g)
    w1 = w1 + right
    return w1, w1 * g1 + (h1 - h), e, left, h, per_gap


@triton.jit
def four_gradient_steps(
    s, g, gap, lse, s4, g4, e, w, h, M: tl.constexpr, N: tl.constexpr, LAST: tl.constexpr, TERMS:
    tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, GAPS: tl.constexpr, CLAMP:
    tl.constexpr,
):  # fmt: skip
    """Pieces of four groups, from the last to the first; the last of all begins none."""
    s0, s1, s2, s3 = split_in_four(s, M, N)
    g0, g1, g2, g3 = split_in_four(g, M, N)
    p0, p1, p2, p3 = split_in_four(gap, M, N)
    if LAST:
        e = exponential(s3, lse, CLAMP)
        w4 = w
        a4 = w
        t3 = w
    else:
        w4, a4, e, w, h, t3 = gradient_step(
            s3, g3, p3, lse, s4, g4, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
    w3, a3, e, w, h, t2 = gradient_step(s2, g2, p2, lse, s3, g3, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w2, a2, e, w, h, t1 = gradient_step(s1, g1, p1, lse, s2, g2, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    w1, a1, e, w, h, t0 = gradient_step(s0, g0, p0, lse, s1, g1, e, w, h, TERMS, RADIUS, FAST, GAPS, CLAMP)
    t = join_four(t0, t1, t2, t3, M, N) if GAPS else t0
    return w, w1, w2, w3, w4, w * g0 + h, a1, a2, a3, a4, s0, g0, e, h, t


@triton.jit
def tile_gradients(
    s, g, gap, lse, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr, GAPS: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    """Weights, gradients of scores, and gradient per gap, [M, N], of a tile's columns."""
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, N)
    g_low, g_high = split_in_two(g, M, N)
    p_low, p_high = split_in_two(gap, M, N)
    if N == 64:
        w4, w5, w6, w7, _w, a4, a5, a6, a7, _a, s, g, e, h, t_high = four_gradient_steps(
            s_high,
            g_high,
            p_high,
            lse,
            none,
            none,
            none,
            none,
            none,
            M,
            32,
            True,
            TERMS,
            RADIUS,
            FAST,
            GAPS,
            CLAMP,
        )
        w0, w1, w2, w3, w4, a0, a1, a2, a3, a4, s, g, e, h, t_low = four_gradient_steps(
            s_low, g_low, p_low, lse, s, g, e, w4, h, M, 32, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w = join_two(join_four(w0, w1, w2, w3, M, 32), join_four(w4, w5, w6, w7, M, 32), M, 64)
        a = join_two(join_four(a0, a1, a2, a3, M, 32), join_four(a4, a5, a6, a7, M, 32), M, 64)
        return w, a, join_two(t_low, t_high, M, 64) if GAPS else t_low
    else:
        s0, s4 = split_in_two(s_low, M, 64)
        s8, s12 = split_in_two(s_high, M, 64)
        g0, g4 = split_in_two(g_low, M, 64)
        g8, g12 = split_in_two(g_high, M, 64)
        p0, p4 = split_in_two(p_low, M, 64)
        p8, p12 = split_in_two(p_high, M, 64)
        w12, w13, w14, w15, _w, a12, a13, a14, a15, _a, s, g, e, h, t12 = four_gradient_steps(
            s12, g12, p12, lse, none, none, none, none, none, M, 32, True, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w8, w9, w10, w11, w12, a8, a9, a10, a11, a12, s, g, e, h, t8 = four_gradient_steps(
            s8, g8, p8, lse, s, g, e, w12, h, M, 32, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w4, w5, w6, w7, w8, a4, a5, a6, a7, a8, s, g, e, h, t4 = four_gradient_steps(
            s4, g4, p4, lse, s, g, e, w8, h, M, 32, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w0, w1, w2, w3, w4, a0, a1, a2, a3, a4, s, g, e, h, t0 = four_gradient_steps(
            s0, g0, p0, lse, s, g, e, w4, h, M, 32, False, TERMS, RADIUS, FAST, GAPS, CLAMP
        )
        w_low = join_two(join_four(w0, w1, w2, w3, M, 32), join_four(w4, w5, w6, w7, M, 32), M, 64)
        w_high = join_two(join_four(w8, w9, w10, w11, M, 32), join_four(w12, w13, w14, w15, M, 32), M, 64)
        a_low = join_two(join_four(a0, a1, a2, a3, M, 32), join_four(a4, a5, a6, a7, M, 32), M, 64)
        a_high = join_two(join_four(a8, a9, a10, a11, M, 32), join_four(a12, a13, a14, a15, M, 32), M, 64)
        t = join_four(t0, t4, t8, t12, M, 128) if GAPS else t0
        return join_two(w_low, w_high, M, 128), join_two(a_low, a_high, M, 128), t
