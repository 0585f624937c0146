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
    out, lse = _stock_attention(q, k, v, bias, scale, is_causal)
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


@torch.library.custom_op("ctsattn::stock_attention", mutates_args=())
def _stock_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Mean value and logarithm of the sum of weights by a stock kernel; the last column of `v` must be 0."""
    if q.is_cuda:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, 0.0, is_causal, scale=scale
        )
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale
        )
    return out.contiguous(), lse.contiguous()


@_stock_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, is_causal: bool
) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    rows = (queries + 31) // 32 * 32 if q.is_cuda else queries  # that kernel pads its logarithms
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(batch, heads, queries, v.shape[-1]), q.new_empty(batch, heads, rows, dtype=wide)


@torch.library.custom_op("ctsattn::stock_attention_backward", mutates_args=())
def _stock_attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k` and `v`, from the kernel's own backward pass."""
    if q.is_cuda:
        seed = torch.zeros((), dtype=torch.int64, device=q.device)  # read for dropout only
        wanted = [True, True, True, False]
        grads = aten._scaled_dot_product_efficient_attention_backward(
            grad_out, q, k, v, bias, out, lse, seed, seed, 0.0, wanted, is_causal, scale=scale
        )
    else:
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, q, k, v, out, lse, 0.0, is_causal, attn_mask=bias, scale=scale
        )
    grad_q, grad_k, grad_v = (grad.contiguous() for grad in grads[:3])
    return grad_q, grad_k, grad_v


@_stock_attention_backward.register_fake
def _(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the backward pass reads."""
    q, k, v, bias, ctx.scale, ctx.is_causal = inputs
    ctx.save_for_backward(q, k, v, bias, *output)


def _backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    """Turn `D = dO·O` into `D` less the gradient of the logarithm, by the last column: see the file's top."""
    q, k, v, bias, out, lse = ctx.saved_tensors
    last = torch.arange(v.shape[-1], device=v.device) == v.shape[-1] - 1
    grad_out = torch.where(last, 1.0, grad_out)
    out = torch.where(last, -grad_lse[..., : out.shape[2], None].to(out.dtype), out)
    grads = _stock_attention_backward(grad_out, q, k, v, bias, out, lse, ctx.scale, ctx.is_causal)
    return *grads, None, None, None


_stock_attention.register_autograd(_backward, setup_context=_setup)
