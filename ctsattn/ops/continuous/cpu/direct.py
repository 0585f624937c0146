"""The CPU's kernels in eager code where no clock needs a gradient: one to the outputs, and one back.

The tensor operations that else find gaps and limits take longer over a short series than the kernels.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ctsattn._checks import are_plain
from ctsattn.ops.continuous.cpu import tiles
from ctsattn.ops.continuous.cpu.clock import GAPS, KIND_OF_TIMES
from ctsattn.ops.continuous.cpu.kernels import EXACT, FIRST_ORDER, kernels_of
from ctsattn.ops.continuous.cpu.launch import (
    call_of,
    found_for,
    joined,
    run_backward,
    run_forward,
    sizes_of,
)
from ctsattn.ops.continuous.cpu.places import CLOCK, CLOCK_STEP, put
from ctsattn.ops.continuous.request import Request


def can_do(q: Tensor, k: Tensor, v: Tensor, clock: Tensor) -> bool:
    """Whether these tensors may be handed to the kernels by their addresses, and no gradient is lost."""
    known = q.dtype in (torch.float32, torch.float64) and min(q.numel(), k.numel(), v.numel()) > 0
    return known and not clock.requires_grad and are_plain(q, k, v, clock)


def plan_of(q: Tensor, k: Tensor, v: Tensor, request: Request, share: float | None = None) -> Plan | None:
    """How calls like this one are answered, if there is only a clock and `Plan` can do it, else None."""
    times, causal, (queries, knots) = request.times, request.is_causal, (q.shape[2], k.shape[2])
    if times is None or not request.has_only_a_clock or request.query_start != 0:
        return None
    if not can_do(q, k, v, times) or (causal and queries != knots):
        return None
    last = torch.arange(queries) if causal else torch.full((queries,), knots - 1)
    last = last.int().expand(len(q), -1).contiguous()
    limits = torch.zeros_like(last), last
    return Plan(q, k, v, times, request.scale, *limits, share, KIND_OF_TIMES[times.dtype])


def first_order_answer(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float, share: float
) -> Tensor | None:
    """Outputs of `first_order.smoothed_attention`, the limits with them, else None; arguments as there."""
    if not can_do(q, k, v, gaps):
        return None
    gaps, first, last = (x.contiguous() for x in (gaps, first, last))
    return Plan(q, k, v, gaps, scale, first, last, share, GAPS)(q, k, v, gaps)


class Plan:
    """What calls have in common whose tensors are alike in sizes, strides and dtypes, and whose options are.

    Args:
        q: Queries of one of the calls, and so on.
        k: Keys.
        v: Values.
        clock: Times of this kind, or gaps in the dtype of `q`, `[batch, knots]`.
        scale: Factor on the scores.
        first: First knot that each query sees, `[batch, queries]`, int32 and contiguous.
        last: Last knot.
        share: See `first_order.smoothed_attention`; None: the integral is exact.
        kind: Kind of the clock.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        clock: Tensor,
        scale: float,
        first: Tensor,
        last: Tensor,
        share: float | None,
        kind: int,
    ):
        self.batch, self.sizes, self.dtype = q.shape[0], sizes_of(q, v, q.itemsize), q.dtype
        self.kernels = kernels_of(q.dtype, EXACT if share is None else FIRST_ORDER)
        self.factors, self.limits = array("d", (scale, share or 0.0)), (first, last)
        self.apart = any(x.stride(-1) != 1 for x in (q, k, v, clock))
        self.noted = self.batch * self.sizes.heads * self.sizes.queries * q.itemsize
        self.out = (self.batch, self.sizes.heads, self.sizes.queries, self.sizes.value_dim)
        self.call = call_of(self.batch, self.sizes, kind, self.factors)
        self.call[tiles.LIMITS] = 1
        self.call[tiles.FIRSTS], self.call[tiles.LASTS] = first.data_ptr(), last.data_ptr()
        self.call[CLOCK_STEP] = clock.stride(0)
        self.tell(self.call, q, k, v, clock)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, clock: Tensor) -> Tensor | None:
        """Outputs; None where a clock is none, or a query sees several knots and no time between them."""
        call = self.call[:]
        if self.apart:
            q, k, v, clock = (_side_by_side(x) for x in (q, k, v, clock))
            self.tell(call, q, k, v, clock)
        else:  # their strides are known
            call[CLOCK], call[tiles.Q] = clock.data_ptr(), q.data_ptr()
            call[tiles.K], call[tiles.V] = k.data_ptr(), v.data_ptr()
        out, notes = q.new_empty(self.out), bytearray(2 * self.noted)
        call[tiles.OUT] = out.data_ptr()
        _note(call, notes, self.noted)
        if not run_forward(call, self.batch, self.sizes, self.kernels[0]):
            return None
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            return _apply(q, k, v, clock, self, (out, notes))
        return out

    def tell(self, call: array, q: Tensor, k: Tensor, v: Tensor, clock: Tensor) -> None:
        """Tell a call where lies what both kernels read."""
        call[CLOCK] = clock.data_ptr()
        if call[CLOCK_STEP] != 0:  # else all rows have one clock, and it may be `[knots]`
            call[CLOCK_STEP] = clock.stride(0) * clock.itemsize
        for place, x in ((tiles.Q, q), (tiles.K, k), (tiles.V, v)):
            put(call, place, x)

    def differentiate(
        self, grad: Tensor, out: Tensor, notes: bytearray, *saved: Tensor
    ) -> tuple[Tensor, ...]:
        """Gradients of q, k and v."""
        call, sizes, batch = self.call[:], self.sizes, self.batch
        self.tell(call, *saved)
        _note(call, notes, self.noted)
        dq, dk, dv = found_for(call, saved[0], batch, sizes, self.dtype)
        put(call, tiles.OUT, out)
        put(call, tiles.DOUT, grad)
        run_backward(call, batch, sizes, self.kernels[1])
        return dq, joined(dk, sizes.head_dim), joined(dv, sizes.value_dim)


def _note(call: array, notes: bytearray, size: int) -> None:
    """Tell a call where the one kernel notes peaks and inverse sums for the other."""
    call[tiles.PEAK] = place = ctypes.addressof(ctypes.c_char.from_buffer(notes))
    call[tiles.INVERSE] = place + size


class _Direct(torch.autograd.Function):
    """What a plan has answered, and the way back."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, clock: Tensor, plan: Plan, found: tuple[Tensor, bytearray]
    ) -> Tensor:
        out, ctx.notes = found
        ctx.plan = plan
        ctx.save_for_backward(out, q, k, v, clock)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, *grad_outputs)


# What `_Direct.apply` calls after it has looked for function transforms, which `can_do` has done.
_apply = super(torch.autograd.Function, _Direct).apply  # pyright: ignore[reportAttributeAccessIssue]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments of `_Direct`."""
    out, *saved = (_side_by_side(x) for x in ctx.saved_tensors)  # hooks may have moved them
    grads = ctx.plan.differentiate(_side_by_side(grad), out, ctx.notes, *saved)
    return *grads, None, None, None


_differentiate_once = once_differentiable(_differentiate)


def _side_by_side(x: Tensor) -> Tensor:
    """Columns that are neighbours in memory, which the kernels take for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()
