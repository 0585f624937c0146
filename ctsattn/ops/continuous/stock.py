"""Stock attention kernels, with a logarithmic weight for every key, and the logarithm of the sum of weights.

The kernels that stand behind `scaled_dot_product_attention` know nothing of either. The weight of a key
becomes more columns of the keys, which meet ones in the queries. The gradient through the logarithm is had
from the kernels'
own backward pass: it subtracts `D = dO·O` from `dO·V`, and one more column, where V is 0, dO is 1 and O is
minus the gradient, turns `D` into what is needed. So any stock kernel will do, at the cost of a few columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctsattn.ops.continuous.ends import repeat_heads

aten = torch.ops.aten

# Columns that hold a logarithmic weight: in a narrow dtype, what the columns before have rounded off.
WEIGHT_COLUMNS = {torch.float64: 1, torch.float32: 1, torch.bfloat16: 3, torch.float16: 3}


def weighted_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_weight: Tensor,
    scale: float,
    is_causal: bool,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention whose keys have weights.

    Args:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, keys, head_dim]`.
        v: Values `[batch, kv_heads, keys, value_dim]`.
        log_weight: `[batch, keys]`; -inf for a key that nothing sees.
        scale: Factor on the scores.
        is_causal: Whether query i sees only the keys up to i.
        mask: `[batch, 1, queries, keys]`, true where a query sees a key; None: everywhere.

    Returns:
        The mean value `[batch, heads, queries, value_dim]` in the dtype of `q`, and the logarithm of the sum
        of weights `[batch, heads, queries]` in the dtype of `log_weight`. Where nothing has weight, 0 and
        -inf.
    """
    columns = WEIGHT_COLUMNS[q.dtype]
    head_dim, value_dim = q.shape[-1], v.shape[-1]
    width = -(-max(head_dim + columns, value_dim + 1) // 8) * 8
    hidden = max(-1e30, -torch.finfo(q.dtype).max / 2)
    weight = (log_weight / scale).clamp(min=hidden)[:, None, :, None].expand(-1, k.shape[1], -1, 1)
    k = torch.cat([k.to(q.dtype), *_columns(weight, q.dtype, columns)], dim=-1)
    q = pad(pad(q, (0, columns), value=1.0), (0, width - head_dim - columns))
    k, v = pad(k, (0, width - head_dim - columns)), pad(v, (0, width - value_dim))
    k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
    bias = None if mask is None else torch.where(mask, 0.0, hidden).to(q.dtype)
    out, lse = _StockAttention.apply(q, k, v, bias, scale, is_causal)[:2]
    lse = lse[..., : q.shape[2]]
    some = lse > hidden * scale / 2
    out = torch.where(some[..., None], out[..., :value_dim], 0.0)
    return out, torch.where(some, lse.to(log_weight.dtype), -torch.inf)


def _columns(weight: Tensor, dtype: torch.dtype, count: int) -> list[Tensor]:
    """Write wide numbers as sums of `count` narrow ones."""
    columns = [weight.to(dtype)]
    rest = weight.detach()
    while len(columns) < count:
        rest = rest - columns[-1].detach().to(rest.dtype)
        columns.append(rest.to(dtype))
    return columns


class _StockAttention(torch.autograd.Function):
    """A stock kernel with both of its results, and their gradients; the last column of `v` must be 0."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, is_causal: bool
    ) -> tuple[Tensor, ...]:
        """Mean value, logarithm of the sum of weights, and what else the kernel wants back."""
        if q.device.type == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale
            )
        out, lse, *state = aten._scaled_dot_product_efficient_attention(
            q, k, v, mask, True, 0.0, is_causal, scale=scale
        )
        return out, lse, *state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the kernel's backward pass reads."""
        q, k, v, mask, ctx.scale, ctx.is_causal = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(q, k, v, mask, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `q`, `k` and `v` from the kernel's own backward pass."""
        grad_out, grad_lse = grads[:2]
        q, k, v, mask, out, lse, *state = ctx.saved_tensors
        last = torch.arange(v.shape[-1], device=v.device) == v.shape[-1] - 1
        grad_out = torch.where(last, 1.0, grad_out)
        out = torch.where(last, -grad_lse[..., : out.shape[2], None].to(out.dtype), out)
        if q.device.type == "cpu":
            found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_out, q, k, v, out, lse, 0.0, ctx.is_causal, attn_mask=mask, scale=ctx.scale
            )
        else:
            found = aten._scaled_dot_product_efficient_attention_backward(
                grad_out, q, k, v, mask, out, lse, *state, 0.0, [True, True, True, False], ctx.is_causal,
                scale=ctx.scale,
            )  # fmt: skip
        return *found[:3], None, None, None
