"""Triton: from times to gaps in one pass; `continuous/clock.py` says in which unit."""

import triton
import triton.language as tl

# Exponent of a float64, and the smallest normal one.
EXPONENT = tl.constexpr(0x7FF0000000000000)
SMALLEST = tl.constexpr(2.2250738585072014e-308)
# Knots of a program.
CHUNK = tl.constexpr(1024)


@triton.jit
def steps_before(times_ptr, stride, knot, num_knots, TIMES: tl.constexpr):
    """Time before knots in float64, 0 before the first and beyond the last; without `TIMES`, 1."""
    piece = (knot > 0) & (knot < num_knots)
    if TIMES:
        at = times_ptr + knot.to(tl.int64) * stride
        now = tl.load(at, mask=piece, other=0)
        before = tl.load(at - stride, mask=piece, other=0)
        if times_ptr.dtype.element_ty == tl.int64:
            return (now - before).to(tl.float64)
        else:
            return now.to(tl.float64) - before.to(tl.float64)
    else:
        return piece.to(tl.float64)


@triton.jit(do_not_specialize=["num_knots", "stride_b", "stride"])
def gaps_kernel(
    times_ptr, gap_ptr, begin_ptr, weightless_ptr, stride_b, stride, num_knots, TIMES: tl.constexpr
):
    """Gaps [batch, num_knots] in float32, and for each row the first knot before which time has passed.

    And for each row and chunk, whether there are knots without weight: with gaps of 0 on both sides.
    """
    b = tl.program_id(0)
    times_ptr += b.to(tl.int64) * stride_b
    here = tl.arange(0, CHUNK)
    begin = num_knots
    start = 0
    while (begin == num_knots) & (start < num_knots):
        gap = steps_before(times_ptr, stride, start + here, num_knots, TIMES)
        begin = tl.min(tl.where(gap > 0, start + here, num_knots), 0)
        start += CHUNK
    first_gap = tl.max(steps_before(times_ptr, stride, begin + tl.arange(0, 1), num_knots, TIMES), 0)
    bits = first_gap.to(tl.int64, bitcast=True) & EXPONENT
    unit = tl.where(first_gap > 0, tl.maximum(2.0 * bits.to(tl.float64, bitcast=True), SMALLEST), 1.0)
    knot = tl.program_id(1) * CHUNK + here
    gap = steps_before(times_ptr, stride, knot, num_knots, TIMES) / unit
    gap = gap.to(tl.float32)
    tl.store(gap_ptr + b.to(tl.int64) * num_knots + knot, gap, mask=knot < num_knots)
    after = (steps_before(times_ptr, stride, knot + 1, num_knots, TIMES) / unit).to(tl.float32)
    weightless = (gap <= 0) & (after <= 0) & (knot < num_knots)
    weightless_ptr += b * tl.num_programs(1) + tl.program_id(1)
    tl.store(weightless_ptr, tl.max(weightless.to(tl.int32), 0))
    if tl.program_id(1) == 0:
        tl.store(begin_ptr + b, begin)
