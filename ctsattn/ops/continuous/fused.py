"""First order and trapezoid on the CPU in eager code: a stock kernel between two fused passes over memory.

The same maths as `first_order.smoothed_attention`, which knows all cases, devices and transforms; here are
those that take most of the time of forecasting: all queries see all knots, or query i sees those up to
i. Done by tensor operations, what surrounds the kernel takes twice as long as the kernel at length 96.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.function import once_differentiable

from ctsattn.ops.continuous.cpu import smoothing
from ctsattn.ops.continuous.cpu.launch import flat, strided
from ctsattn.ops.continuous.cpu.workers import share as share_tasks
from ctsattn.ops.continuous.ends import repeat_heads

aten = torch.ops.aten


def can_fuse(q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, causal: bool, full: bool, offset: int) -> bool:
    """Whether this problem is one of those that are fused."""
    if q.dtype != gaps.dtype or gaps.requires_grad:
        return False
    if any(is_functorch_wrapped_tensor(x) for x in (q, k, v, gaps)):
        return False
    ends_with_queries = causal and offset <= 1 and q.shape[2] + offset == k.shape[2] > 1
    return ends_with_queries or (full and k.shape[2] > 1)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, scale: float, causal: bool, offset: int, share: float
) -> Tensor | None:
    """Outputs `[batch, heads, queries, value_dim]`; arguments as in `first_order.smoothed_attention`.

    None where a query sees several knots and no time between them: then there is a limit to take.
    """
    (_, heads, queries, head_dim), (_, kv_heads, knots, value_dim) = q.shape, v.shape
    skip, rows = int(causal and not offset), queries if causal else knots
    width = max(head_dim, value_dim)
    layout = smoothing.Layout(
        heads, kv_heads, queries, knots, head_dim, value_dim, width, int(causal), skip, rows
    )
    fused = _Passes(q, k, v, gaps, layout, scale, share)
    prepared = fused.prepare()
    return None if prepared is None else _Fused.apply(q, k, v, *prepared, fused)


class _Passes:
    """One call: the memory of its tensors and what the passes over it are told.

    Args:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, knots, head_dim]`.
        v: Values `[batch, kv_heads, knots, value_dim]`.
        gaps: Time before each knot `[batch, knots]`.
        layout: Their sizes.
        scale: Factor on the scores.
        share: How far a key leans towards its neighbours.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gaps: Tensor,
        layout: smoothing.Layout,
        scale: float,
        share: float,
    ) -> None:
        self.layout, self.scale, self.share, self.rows = layout, scale, share, q.shape[0] * layout.heads
        (self.q, q_steps), (self.k, k_steps), (self.v, v_steps) = strided(q), strided(k), strided(v)
        self.gaps, self.numbers = flat(gaps), (*layout, *q_steps, *k_steps, *v_steps)
        self.new = gaps.new_empty

    def prepare(self) -> tuple[Tensor, Tensor] | None:
        """Keys and bias for the stock kernel, and the scores of the ends; see `fused_attention`."""
        layout, batch = self.layout, self.rows // self.layout.heads
        keys, bias = (
            self.new((batch, layout.heads, layout.rows, layout.width)),
            self.new((batch, layout.rows)),
        )
        self.scores = np.empty(self.rows * layout.queries if layout.ends else 0, self.gaps.dtype)
        no_time, numbers = np.zeros(1, np.int64), np.array(self.numbers)
        given = (self.q, self.k, self.gaps, numbers, self.scale, self.share)
        found = (flat(keys), flat(bias), self.scores, no_time)
        share_tasks(
            lambda begin, end: smoothing.prepare(*given, begin, end, *found),
            self.rows,
            2 * layout.rows * layout.width,
        )
        return None if no_time[0] else (keys, bias[:, None, None])

    def merge(self, means: Tensor, lse: Tensor) -> Tensor:
        """Outputs, from the stock kernel's; `lse` becomes theirs too."""
        layout = self.layout
        out = self.new((self.rows // layout.heads, layout.queries, layout.heads, layout.width))
        out = (out if layout.width == layout.value_dim else out.zero_()).transpose(1, 2)
        (out_flat, steps), (mean_flat, mean_steps) = strided(out), strided(means)
        lse_flat, lse_steps = strided(lse[..., None])
        self.numbers += (*steps, *mean_steps, *lse_steps)
        given = (self.v, mean_flat, lse_flat, self.scores, np.array(self.numbers))
        share_tasks(
            lambda begin, end: smoothing.merge(*given, begin, end, out_flat),
            self.rows,
            layout.queries * layout.width,
        )
        self.out, self.lse = out_flat, lse_flat
        return out

    def finish(self, grad: Tensor, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v.

        Args:
            grad: That of the output.
            *grads: Those of the stock kernel's keys, values and queries.
        """
        layout = self.layout
        batch, kv_rows = self.rows // layout.heads, self.rows // layout.heads * layout.kv_heads
        read = [strided(x) for x in (grad, *grads)]
        numbers = np.array([*self.numbers, *(step for _, steps in read for step in steps)])
        dq = self.new((batch, layout.heads, layout.queries, layout.head_dim)) if layout.ends else grads[2]
        dk, dv = (
            self.new((batch, layout.kv_heads, layout.knots, width))
            for width in (layout.head_dim, layout.value_dim)
        )
        (grad_flat, _), *rest = read
        given = (self.q, self.k, self.v, self.gaps, self.out, self.lse, grad_flat, self.scores)
        given = (*given, *(x for x, _ in rest), numbers, self.scale, self.share)
        found = flat(dq) if layout.ends else self.scores, flat(dk), flat(dv)
        share_tasks(
            lambda begin, end: smoothing.finish(*given, begin, end, *found),
            kv_rows,
            layout.heads // layout.kv_heads * layout.knots * layout.width,
        )
        return dq[..., : layout.head_dim], dk, dv


class _Fused(torch.autograd.Function):
    """Prepared keys, the stock kernel, the merged ends; and the way back."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, bias: Tensor, passes: _Passes
    ) -> Tensor:
        layout = passes.layout
        call = _stock_arguments(q, keys, v, layout)
        means, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            *call, 0.0, bool(layout.ends), attn_mask=bias, scale=passes.scale
        )
        if layout.ends:
            out = passes.merge(means, lse)
        else:
            out, passes.out, passes.lse = means, passes.scores, passes.scores
            passes.numbers += (0,) * 9
        ctx.save_for_backward(q, k, v, keys, bias, out, lse)
        ctx.passes = passes
        return out if layout.width == layout.value_dim else out[..., : layout.value_dim]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grad_outputs)


@once_differentiable
def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments of `_Fused`."""
    q, _, v, keys, bias, out, lse = ctx.saved_tensors
    layout, scale = ctx.passes.layout, ctx.passes.scale
    grad = _to_width(grad, layout.width)
    asked_grad, asked_out = (x[:, :, 1:] if layout.skip else x for x in (grad, out))
    call = _stock_arguments(q, keys, v, layout)
    dq, grad_keys, grad_values = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        asked_grad, *call, asked_out, lse, 0.0, bool(layout.ends), attn_mask=bias, scale=scale
    )
    return *ctx.passes.finish(grad, grad_keys, grad_values, dq), None, None, None


def _stock_arguments(
    q: Tensor, keys: Tensor, v: Tensor, layout: smoothing.Layout
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as the stock kernel takes them."""
    asks = q[:, :, 1:] if layout.skip else q
    values = v if layout.rows == layout.knots else v[:, :, : layout.rows]
    return _to_width(asks, layout.width), keys, _to_width(repeat_heads(values, layout.heads), layout.width)


def _to_width(x: Tensor, width: int) -> Tensor:
    """Append columns of zeros; the kernels take for granted that columns are neighbours in memory."""
    if x.shape[-1] != width:
        return torch.nn.functional.pad(x, (0, width - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()
