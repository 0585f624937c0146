"""Triton: what one straight piece of the score gives to its two knots.

A piece is named after its left knot. With `δ` the rise of the score over it, `e0`, `e1` the exponentials at
its ends and `Δ` its length, its shares and what the gradient needs are

    left = Δ (e1 - e0 - e0 δ) / δ²    right = Δ (e1 δ - e1 + e0) / δ²    c = (right - left) / δ

which cancel near `δ = 0`. `TERMS = 0` is the way of bfloat16: numerator and denominator are shifted so that
their quotient goes to the limit by itself, without a second branch (comparisons run at half the rate, and the
shifts cost nothing, because they ride on multiplications and additions in one): see `piece_weights` and
`piece_gradients`. Otherwise a series of `TERMS` terms takes over inside a radius at which both are as good as
float32 allows.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# Above this rise of the score its reciprocal counts as 0.
STEEPEST = tl.constexpr(1.0e38)
# Shift of the shares: below a rise of the score of about sqrt(2 SHIFT) they are blended with their series.
SHIFT = tl.constexpr(3.0e-4)
# Shift of the gradients', in which the rise is halved.
SHIFT_C = tl.constexpr(2.0e-5)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """`1 / x` to one unit in the last place, and 0 beyond `STEEPEST`."""
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.where(tl.abs(x) > STEEPEST, 0.0, 1.0 / x)


@triton.jit
def times_power_of_two(x, scale, FAST: tl.constexpr):
    """`x * scale`, which rounds nothing; bfloat16 in pairs, for which the compiler goes by way of float32."""
    if FAST == 2 and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 none;
            mov.b32 none, 0x80008000;
            fma.rn.bf16x2 $0, $1, $2, none;
            }
            """,
            "=r,r,r",
            [x, scale.to(tl.bfloat16)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        return (x * scale).to(x.dtype)


@triton.jit
def hat_series(d, TERMS: tl.constexpr):
    """`φ2(d)` and `φ2(-d)` to `TERMS` terms, an even number: the sum of `d^n / (n + 2)!`."""
    even = tl.full(d.shape, 1.0, tl.float32)
    odd = even
    square = d * d
    for i in tl.static_range(TERMS // 2 - 1, 0, -1):
        even = 1.0 + even * square * (1.0 / ((2 * i + 1) * (2 * i + 2)))
        odd = 1.0 + odd * square * (1.0 / ((2 * i + 2) * (2 * i + 3)))
    even = 0.5 * even
    odd = d * odd * (1.0 / 6.0)
    return even + odd, even - odd


@triton.jit
def bump_series(d, TERMS: tl.constexpr):
    """Integral of `s (1 - s) e^{s d}` over [0, 1], to `TERMS` terms `d^n / (n! (n + 2) (n + 3))`."""
    total = tl.full(d.shape, 1.0, tl.float32)
    for i in tl.static_range(TERMS - 1, 0, -1):
        total = 1.0 + total * d * ((i + 1.0) / (i * (i + 3.0)))
    return total * (1.0 / 6.0)


@triton.jit
def exponent_scale(TERMS: tl.constexpr):
    """Factor from a score to the exponent of 2; see `piece_weights`."""
    return LOG2E * (1.0 + SHIFT / 3.0) if TERMS == 0 else LOG2E


@triton.jit
def piece_weights(d, e0, e1, gap, begun, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """`left` and `begun + right` of a piece.

    `TERMS = 0`: with `η = SHIFT`, `left = Δ (e1 - e0 - e0 d + η e0) / (d² + 2 η)` is a mean of the true
    value and of `Δ e0 / 2`, with weights `d²` and `2 η`. With `e1 / e0 = e^d` it would lack `Δ e0 d / 6` near
    0; with the exponentials of `(1 + η / 3) d`, which `exponent_scale` gives them, it has it, and errs by
    `η / 12` of itself at most. Rounding of the exponentials gives `1e-7 / η`.
    """
    if TERMS == 0:
        p = gap * reciprocal(d * d + 2.0 * SHIFT, FAST)
        left = p * ((e1 - (1.0 - SHIFT) * e0) - e0 * d)
        return left, begun + p * (e1 * d - ((1.0 - SHIFT) * e1 - e0))
    else:
        near = tl.abs(d) < RADIUS
        r = reciprocal(tl.where(near, 1.0, d), FAST)
        mass = (e1 - e0) * r
        rising, falling = hat_series(tl.where(near, d, 0.0), TERMS)
        left = tl.where(near, e0 * rising, (mass - e0) * r)
        right = tl.where(near, e1 * falling, (e1 - mass) * r)
        return gap * left, gap * right + begun


@triton.jit
def piece_gradients(d, e0, e1, gap, begun, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """`left`, `begun + right`, and `c`, by which a piece's mass moves to its right end as the score tilts.

    `TERMS = 0`: `d` is half the rise and `gap` a quarter of the gap `Δ`. With `A = e0 + e1`, `D = e1 - e0`
    it is `c = Δ (A d² - D d) / (4 d⁴)`, which is `Δ A / 12` near 0. With `η = SHIFT_C` and `y = d² + η`,
    `(A y - D d) / (y² + 3 η)` is a mean of both with weights `d⁴` and `3 η`, and errs by `sqrt(η) / 3` of
    itself at most. The shares follow: their sum is `Δ A / 2 - 2 c d²`, their difference `2 c d`.
    """
    if TERMS == 0:
        y = d * d + SHIFT_C
        total = e0 + e1
        c = (total * y - (e1 - e0) * d) * (gap * reciprocal(y * y + 3.0 * SHIFT_C, FAST))
        half = total * gap - c * y
        return half - c * d, (begun + half) + c * d, c
    else:
        near = tl.abs(d) < RADIUS
        left, right = piece_weights(d, e0, e1, gap, 0.0, TERMS, RADIUS, FAST)
        series = gap * e0 * bump_series(tl.where(near, d, 0.0), TERMS)
        c = tl.where(near, series, (right - left) * reciprocal(tl.where(near, 1.0, d), FAST))
        return left, begun + right, c
