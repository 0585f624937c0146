"""First order and trapezoid on the CPU in eager code: a stock kernel between two fused passes over memory.

The same maths as `first_order.smoothed_attention`, which knows all cases, devices and transforms; here are
those that take most of the time of forecasting: all queries see all knots, or query i sees those up to
i. Done by tensor operations, what surrounds the kernel takes twice as long as the kernel at length 96.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ctsattn._checks import are_plain
from ctsattn.ops.continuous.cpu.passes import GAPS, KIND_OF_TIMES, passes_of
from ctsattn.ops.continuous.cpu.places import Layout, call_of
from ctsattn.ops.continuous.cpu.workers import deal
from ctsattn.ops.continuous.request import Request

# The operators that `stock.py` calls; the first has a binding of its own, which is called in half the time.
_stock = torch._scaled_dot_product_flash_attention_for_cpu  # pyright: ignore[reportPrivateImportUsage]
_stock_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


# Nanoseconds that a pass takes for each number of the keys, measured at length 96.
_PREPARE, _MERGE, _FINISH = 0.6, 0.7, 1.0


def can_fuse(q: Tensor, k: Tensor, v: Tensor, clock: Tensor, causal: bool, full: bool, offset: int) -> bool:
    """Whether this problem is one of those that are fused."""
    if q.dtype not in (torch.float32, torch.float64) or clock.requires_grad or not are_plain(q, k, v, clock):
        return False
    ends_with_queries = causal and offset <= 1 and q.shape[2] + offset == k.shape[2] > 1
    return ends_with_queries or (full and k.shape[2] > 1)


def direct_attention(q: Tensor, k: Tensor, v: Tensor, request: Request, share: float) -> Tensor | None:
    """Outputs where there is nothing to consider but a clock, else None; arguments as in `solve.attend`."""
    times, causal = request.times, request.is_causal
    if times is None or not request.has_only_a_clock or request.query_start != 0 or q.numel() == 0:
        return None
    if not can_fuse(q, k, v, times, causal, not causal, 0):
        return None
    return fused_attention(q, k, v, times, request.scale, causal, 0, share, are_times=True)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    scale: float,
    causal: bool,
    offset: int,
    share: float,
    are_times: bool = False,
) -> Tensor | None:
    """Outputs `[batch, heads, queries, value_dim]`; arguments as in `first_order.smoothed_attention`.

    The clock is gaps in the dtype of `q`, or times. None where a query sees several knots and no time between
    them, for then there is a limit to take, and where a clock falls or is not finite.
    """
    (batch, heads, queries, head_dim), (_, kv_heads, knots, value_dim) = q.shape, v.shape
    width, rows = max(head_dim, value_dim), queries if causal else knots
    hidden = int(causal and not offset)
    sizes = heads, kv_heads, queries, knots, head_dim, value_dim, width, int(causal), hidden, rows, q.itemsize
    q, k, v = _side_by_side(q), _side_by_side(k), _side_by_side(v)
    problem = _Problem(Layout(*sizes), batch, k, scale, share)
    prepared = problem.prepare(k, v, clock, are_times)
    if prepared is None:
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _apply(q, k, v, problem, prepared)
    return problem.answer(q, k, v, prepared)[0]


class _Problem:
    """What `_Fused` is told beside queries, keys and values.

    Args:
        layout: Their sizes.
        batch: Rows of the batch.
        like: A tensor of the dtype.
        scale: Factor on the scores.
        share: How far a key leans towards its neighbours.
    """

    __slots__ = ("batch", "bias", "factors", "layout", "notes", "passes", "places", "scale")

    def __init__(self, layout: Layout, batch: int, like: Tensor, scale: float, share: float):
        self.layout, self.batch, self.scale = layout, batch, scale
        self.passes = passes_of(like.dtype)
        self.bias = like.new_empty((batch, 1, 1, layout.rows))
        # The table, see `smoothing`, and the shares of ends, see `ending`.
        table = 3 * batch * layout.knots
        self.notes = like.new_empty(table + layout.ends * batch * layout.heads * layout.queries)
        self.factors, place = array("d", (scale, share)), self.notes.data_ptr()
        self.places = batch, place, place + table * layout.itemsize, self.factors.buffer_info()[0]

    def prepare(self, k: Tensor, v: Tensor, clock: Tensor, are_times: bool) -> tuple[Tensor, Tensor] | None:
        """Fill table and bias; keys and values for the stock kernel, made where those given do not do.

        None if this is no problem for it, see `fused_attention`.
        """
        layout, batch = self.layout, self.batch
        heads, kv_heads, _, _, head_dim, value_dim, width, ends, hidden, rows, _ = layout
        keep_values = kv_heads == heads and not hidden and value_dim == width
        keep_keys = keep_values and self.factors[1] == 0 and head_dim == width and not ends
        shape = (batch, heads, rows, width)
        keys, values = (None if keep else k.new_empty(shape) for keep in (keep_keys, keep_values))
        clock = _side_by_side(clock)
        kind = KIND_OF_TIMES[clock.dtype] if are_times else GAPS
        told = *self.places, clock.data_ptr(), clock.stride(0) * clock.itemsize, kind
        call = call_of(layout, told, k, v, keys, values, self.bias)
        if not deal(self.passes[0], call, batch, _PREPARE * heads * rows * width):
            return None
        if values is None:
            values = v if layout.rows == layout.knots else v[:, :, :rows]
        return k if keys is None else keys, values

    def answer(self, q: Tensor, k: Tensor, v: Tensor, prepared: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Outputs; and, for the way back, queries and outputs of the kernel's width, and its logarithms."""
        layout, (keys, values) = self.layout, prepared
        width, ends = layout.width, bool(layout.ends)
        asks = _to_width(q, width)
        wide, lse = _stock(asks, keys, values, 0.0, ends, attn_mask=self.bias, scale=self.scale)
        if ends:
            self.merge(q, k, v, wide, lse)
        return wide if width == layout.value_dim else wide[..., : layout.value_dim], asks, wide, lse

    def merge(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        """Add the ends to what the stock kernel answered, in place, and note their shares."""
        layout, tasks = self.layout, self.batch * self.layout.heads
        call = call_of(layout, (*self.places, 0, 0, 0), k, v, q, out, lse)
        deal(self.passes[1], call, tasks, _MERGE * layout.queries * layout.width)

    def finish(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; `grads` are those of what the stock kernel was given."""
        layout, batch = self.layout, self.batch
        heads, kv_heads, _, knots, head_dim, value_dim, width, ends, hidden, _, _ = layout
        dq, dk, dv = grads
        as_given = heads == kv_heads
        if ends or self.factors[1] != 0 or not as_given:
            if not as_given or (ends and not hidden):
                dk = k.new_empty((batch, kv_heads, knots, head_dim))
                dv = k.new_empty((batch, kv_heads, knots, value_dim))
            to_values = None if as_given and not ends else dv
            tensors = k, v, q, out, grad, grads[1], grads[2], dq, dk, to_values
            call = call_of(layout, (*self.places, 0, 0, 0), *tensors)
            deal(self.passes[2], call, batch * kv_heads, _FINISH * heads // kv_heads * knots * width)
        if head_dim != value_dim:
            return dq[..., :head_dim], dk[..., :head_dim], dv[..., :value_dim]
        return dq, dk, dv


class _Fused(torch.autograd.Function):
    """The answer to a problem, and the way back."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: _Problem, prepared: tuple[Tensor, Tensor]
    ) -> Tensor:
        found, asks, wide, lse = problem.answer(q, k, v, prepared)
        ctx.problem = problem
        ctx.save_for_backward(q, k, v, None if asks is q else asks, wide, lse, *prepared)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, *grad_outputs)


# What `_Fused.apply` calls after it has looked for function transforms, which `can_fuse` has done.
_apply = super(torch.autograd.Function, _Fused).apply  # pyright: ignore[reportAttributeAccessIssue]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments of `_Fused`."""
    problem = ctx.problem
    q, k, v, asks, out, lse, keys, values = ctx.saved_tensors
    ends = bool(problem.layout.ends)
    grad = _to_width(_side_by_side(grad), problem.layout.width)
    asks = q if asks is None else asks
    grads = _stock_backward(
        grad, asks, keys, values, out, lse, 0.0, ends, attn_mask=problem.bias, scale=problem.scale
    )
    return *problem.finish(q, k, v, out, grad, *grads), None, None


_differentiate_once = once_differentiable(_differentiate)


def _side_by_side(x: Tensor) -> Tensor:
    """Columns that are neighbours in memory, which the kernels take for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _to_width(x: Tensor, width: int) -> Tensor:
    """Append columns of zeros."""
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))
