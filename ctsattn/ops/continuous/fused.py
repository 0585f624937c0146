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
from ctsattn.ops.continuous.cpu import passes
from ctsattn.ops.continuous.cpu.places import Layout, placed
from ctsattn.ops.continuous.cpu.workers import share as share_tasks
from ctsattn.ops.continuous.request import Request

# The operators that `stock.py` calls; the first has a binding of its own, which is called in half the time.
_stock = torch._scaled_dot_product_flash_attention_for_cpu  # pyright: ignore[reportPrivateImportUsage]
_stock_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


# Nanoseconds that a pass takes for each number of the keys, measured at length 96.
_PREPARE, _MERGE, _FINISH = 0.6, 0.7, 1.0
_DTYPES = {4: np.float32, 8: np.float64}


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
    k, v = _side_by_side(k), _side_by_side(v)
    bias, table = k.new_empty((batch, 1, 1, rows)), np.empty((batch, 3, knots), _DTYPES[q.itemsize])
    problem = _Problem(Layout(*sizes), table, bias, scale, share)
    prepared = problem.prepare(k, v, clock, are_times)
    return None if prepared is None else _Fused.apply(_side_by_side(q), k, v, problem, prepared)


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

    def prepare(
        self, k: Tensor, v: Tensor, clock: Tensor, are_times: bool
    ) -> tuple[Tensor | None, Tensor | None] | None:
        """Fill table and bias, and make keys and values for the stock kernel, where those given do not do.

        None if this is no problem for it, see `fused_attention`.
        """
        layout, batch = self.layout, len(self.table)
        heads, kv_heads, _, _, head_dim, value_dim, width, ends, hidden, rows, _ = layout
        keep_values = kv_heads == heads and not hidden and value_dim == width
        keep_keys = keep_values and self.share == 0 and head_dim == width and not ends
        shape = (batch, heads, rows, width)
        keys, values = (None if keep else k.new_empty(shape) for keep in (keep_keys, keep_values))
        numbers = np.array([*layout, *placed(k, v, keys, values, self.bias)])
        given = clock.contiguous().numpy(), are_times, numbers, self.table, self.share
        ordinary = share_tasks(passes.prepare, given, batch, _PREPARE * heads * rows * width)
        return (keys, values) if ordinary else None

    def merge(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> np.ndarray:
        """Add the ends to what the stock kernel answered, in place, and return their shares."""
        layout, tasks = self.layout, len(self.table) * self.layout.heads
        weights = np.empty(tasks * layout.queries, self.table.dtype)
        numbers = np.array([*layout, *placed(k, v, q, out, lse)])
        given = numbers, self.table, weights, self.scale, self.share
        share_tasks(passes.merge, given, tasks, _MERGE * layout.queries * layout.width)
        return weights

    def finish(
        self, weights: np.ndarray, q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; `grads` are those of what the stock kernel was given."""
        layout, batch = self.layout, len(self.table)
        heads, kv_heads, _, knots, head_dim, value_dim, _, ends, hidden, _, _ = layout
        dq, dk, dv = grads
        as_given = heads == kv_heads
        if ends or self.share != 0 or not as_given:
            if not as_given or (ends and not hidden):
                dk = k.new_empty((batch, kv_heads, knots, head_dim))
                dv = k.new_empty((batch, kv_heads, knots, value_dim))
            to_values = None if as_given and not ends else dv
            numbers = np.array([*layout, *placed(k, v, q, out, grad, *grads[1:], dq, dk, to_values)])
            given = numbers, self.table, weights, self.scale, self.share
            share_tasks(
                passes.finish, given, batch * kv_heads, _FINISH * heads // kv_heads * knots * layout.width
            )
        if head_dim != value_dim:
            return dq[..., :head_dim], dk[..., :head_dim], dv[..., :value_dim]
        return dq, dk, dv


class _Fused(torch.autograd.Function):
    """Prepared keys, the stock kernel, the merged ends; and the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        problem: _Problem,
        prepared: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        layout, (keys, values) = problem.layout, prepared
        keys = k if keys is None else keys
        values = v[:, :, : layout.rows] if values is None else values
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
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, *grad_outputs)


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
    return *problem.finish(ctx.weights, q, k, v, out, grad, *grads), None, None


_differentiate_once = once_differentiable(_differentiate)


def _side_by_side(x: Tensor) -> Tensor:
    """Columns that are neighbours in memory, which the kernels take for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _to_width(x: Tensor, width: int) -> Tensor:
    """Append columns of zeros."""
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))
