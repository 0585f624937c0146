"""First order and trapezoid on the CPU in eager code: a stock kernel between two fused passes over memory.

The same maths as `first_order.smoothed_attention`, which knows all cases, devices and transforms; here are
those that take most of the time of forecasting: all queries see all knots, or query i sees those up to
i. Done by tensor operations, what surrounds the kernel takes twice as long as the kernel at length 96.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ctsattn._checks import are_plain
from ctsattn.ops.continuous.cpu import smoothing
from ctsattn.ops.continuous.cpu.clock import plain_gaps
from ctsattn.ops.continuous.cpu.smoothing import Layout, placed
from ctsattn.ops.continuous.cpu.workers import share as share_tasks
from ctsattn.ops.continuous.request import Request

_stock = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_stock_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def can_fuse(q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, causal: bool, full: bool, offset: int) -> bool:
    """Whether this problem is one of those that are fused."""
    if q.dtype != gaps.dtype or gaps.requires_grad or not are_plain(q, k, v, gaps):
        return False
    ends_with_queries = causal and offset <= 1 and q.shape[2] + offset == k.shape[2] > 1
    return ends_with_queries or (full and k.shape[2] > 1)


def direct_attention(q: Tensor, k: Tensor, v: Tensor, request: Request, share: float) -> Tensor | None:
    """Outputs where there is nothing to consider but a clock, else None; arguments as in `solve.attend`."""
    times, causal = request.times, request.is_causal
    if times is None or not request.has_only_a_clock or request.query_start != 0 or q.numel() == 0:
        return None
    if times.requires_grad or q.dtype not in (torch.float32, torch.float64) or not are_plain(times):
        return None
    gaps = plain_gaps(times, q.dtype)
    if gaps is None or not can_fuse(q, k, v, gaps, causal, not causal, 0):
        return None
    return fused_attention(q, k, v, gaps, request.scale, causal, 0, share)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, scale: float, causal: bool, offset: int, share: float
) -> Tensor | None:
    """Outputs `[batch, heads, queries, value_dim]`; arguments as in `first_order.smoothed_attention`.

    None where a query sees several knots and no time between them: then there is a limit to take.
    """
    (batch, heads, queries, head_dim), (_, kv_heads, knots, value_dim) = q.shape, v.shape
    width, rows = max(head_dim, value_dim), queries if causal else knots
    hidden = int(causal and not offset)
    sizes = heads, kv_heads, queries, knots, head_dim, value_dim, width, int(causal), hidden, rows, q.itemsize
    clock = gaps.detach().numpy()
    table = np.empty((batch, 3, knots), clock.dtype)
    bias = np.empty((batch, 1, 1, rows), clock.dtype)
    if not smoothing.weigh(clock, share, causal, hidden, table, bias):
        return None
    problem = _Problem(Layout(*sizes), table, torch.from_numpy(bias), scale, share)
    return _Fused.apply(q, k, v, problem)


class _Problem(NamedTuple):
    """What `_Fused` is told beside queries, keys and values.

    Attributes:
        layout: Their sizes.
        table: See `smoothing`.
        bias: For the stock kernel `[batch, 1, 1, rows]`.
        scale: Factor on the scores.
        share: How far a key leans towards its neighbours.
    """

    layout: Layout
    table: np.ndarray
    bias: Tensor
    scale: float
    share: float

    def prepare(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as the stock kernel takes them; those given, if nothing has to be done to them."""
        layout, batch = self.layout, len(self.table)
        heads, kv_heads, _, _, head_dim, value_dim, width, _, hidden, rows, _ = layout
        as_given = kv_heads == heads and not hidden
        keep_values = as_given and value_dim == width
        if keep_values and self.share == 0 and head_dim == width and not layout.ends:
            return k, v
        shape = (batch, heads, rows, width)
        keys, values = k.new_empty(shape), None if keep_values else k.new_empty(shape)
        numbers = np.array([*layout, *placed(k, v, keys, values)])
        share_tasks(
            lambda begin, end: smoothing.prepare(numbers, self.table, begin, end),
            batch * heads,
            2 * rows * width,
        )
        if values is None:
            values = v if rows == layout.knots else v[:, :, :rows]
        return keys, values

    def merge(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> np.ndarray:
        """Add the ends to what the stock kernel answered, in place, and return their shares."""
        layout, tasks = self.layout, len(self.table) * self.layout.heads
        weights = np.empty(tasks * layout.queries, self.table.dtype)
        numbers = np.array([*layout, *placed(k, v, q, out, lse)])
        given = numbers, self.table, weights, self.scale, self.share
        share_tasks(
            lambda begin, end: smoothing.merge(*given, begin, end), tasks, 2 * layout.queries * layout.width
        )
        return weights

    def finish(
        self, weights: np.ndarray, q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; `grads` are those of what the stock kernel was given."""
        layout, batch = self.layout, len(self.table)
        heads, kv_heads, _, knots, head_dim, value_dim, width, ends, _, _, _ = layout
        dq, dk, dv = grads
        if ends or self.share != 0 or heads != kv_heads:
            dk, dv = (
                k.new_empty((batch, kv_heads, knots, head_dim)),
                k.new_empty((batch, kv_heads, knots, value_dim)),
            )
            numbers = np.array([*layout, *placed(k, v, q, out, grad, *grads[1:], dq, dk, dv)])
            given = numbers, self.table, weights, self.scale, self.share
            share_tasks(
                lambda begin, end: smoothing.finish(*given, begin, end),
                batch * kv_heads,
                heads // kv_heads * knots * width,
            )
        if head_dim != value_dim:
            return dq[..., :head_dim], dk[..., :head_dim], dv[..., :value_dim]
        return dq, dk, dv


class _Fused(torch.autograd.Function):
    """Prepared keys, the stock kernel, the merged ends; and the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: _Problem) -> Tensor:
        layout = problem.layout
        q, k, v = (_side_by_side(x) for x in (q, k, v))
        keys, values = problem.prepare(k, v)
        asks = _to_width(q, layout.width)
        out, lse = _stock(
            asks, keys, values, 0.0, bool(layout.ends), attn_mask=problem.bias, scale=problem.scale
        )
        ctx.weights = problem.merge(q, k, v, out, lse) if layout.ends else problem.table.ravel()
        ctx.problem = problem
        ctx.save_for_backward(q, k, v, asks, keys, values, out, lse)
        return out if layout.width == layout.value_dim else out[..., : layout.value_dim]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grad_outputs)


@once_differentiable
def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments of `_Fused`."""
    problem = ctx.problem
    q, k, v, asks, keys, values, out, lse = ctx.saved_tensors
    grad = _to_width(_side_by_side(grad), problem.layout.width)
    grads = _stock_backward(
        grad,
        asks,
        keys,
        values,
        out,
        lse,
        0.0,
        bool(problem.layout.ends),
        attn_mask=problem.bias,
        scale=problem.scale,
    )
    return *problem.finish(ctx.weights, q, k, v, out, grad, *grads), None


def _side_by_side(x: Tensor) -> Tensor:
    """Columns that are neighbours in memory, which the kernels take for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _to_width(x: Tensor, width: int) -> Tensor:
    """Append columns of zeros."""
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))
