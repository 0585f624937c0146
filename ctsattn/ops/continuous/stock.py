"""Stock attention kernels for keys with weights, and for a few more knots that only one query sees.

The kernels behind `scaled_dot_product_attention` take a bias, give the logarithm of the sum of exponentials,
and have a backward pass that recomputes `P = exp(score - lse)` and subtracts `D = dO·O` from `dO·V`. That is
enough to make more of them:

- The ends, knots that only one query sees, are merged with what the kernel returns. Given the merged `O` and
  `lse`, the kernel's own backward pass finds the gradients of the merged result.
- The gradient of `lse` is a part of `D`: one more column, where V is 0, dO is 1 and O is minus that gradient.
- The gradient of the bias is that of one more column of the keys, where the queries have a 1 and the keys a
  0.

The columns are made in the backward pass, and only where such a gradient is wanted.

No public function gives the logarithm of the sum together with a backward pass, so the operators behind
`scaled_dot_product_attention` are called by name; what follows holds for torch 2.6 to 2.13.
On CUDA the memory-efficient kernel takes for granted (`mem_eff_attention/kernel_backward.h`,
`transformers/cuda/attention_backward.cu`):

- The bias is `[batch, heads, queries, keys]` in the dtype of the queries, and its rows are a multiple of 16
  numbers apart; heads that share it have the stride 0.
- Pointers and strides of all operands are aligned to 16 bytes.
- The logarithm is float32 in rows of a multiple of 32.
- The output that its backward pass reads lies in memory as the forward pass wrote it, `[batch, queries,
  heads, width]`: of its strides only those of batch and heads are read. In another order it reads beyond
  the end of the tensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from ctsattn._checks import are_transformed
from ctsattn.ops.continuous.ends import repeat_heads
from ctsattn.ops.mapping import fold_into_batch

aten = torch.ops.aten

# Bias of a key that a query does not see: finite, as the kernels are not all safe with -inf.
HIDDEN = -1e30
# Rows of logarithms on CUDA, and of a bias there, are multiples of this.
LSE_ROW, BIAS_ROW = 32, 16
# Columns that hold a logarithm of a weight in a narrow dtype, each what those before it have rounded off.
BIAS_COLUMNS = 3


@torch.library.custom_op("ctsattn::stock_attention", mutates_args=())
def stock_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    end_scores: Tensor | None,
    end_values: Tensor | None,
    scale: float,
    strictly_before: int | None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention whose keys have weights, and whose queries may have knots of their own.

    Args:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, keys, head_dim]`.
        v: Values `[batch, kv_heads, keys, value_dim]`.
        bias: Logarithms of the keys' weights `[batch, keys]`; -inf for a key that nothing sees. float64 if
            `q` is, else float32.
        mask: `[batch, queries, keys]`, true where a query sees a key; None: everywhere.
        end_scores: Scores `[batch, heads, queries, ends]` of the queries' own knots, weights included.
        end_values: Their values `[batch, heads, queries, ends, value_dim]`.
        scale: Factor on the scores.
        strictly_before: A number of 0 or 1; query i sees only the keys before key `i + strictly_before`. Then
            there are as many keys as queries and that number. None: all keys.

    Returns:
        The mean value `[batch, heads, queries, value_dim]` in the dtype of `q`, and the logarithm of the sum
        of weights `[batch, heads, queries]` in that of `bias`. Where nothing has weight, 0 and -inf.
    """
    call = _kernel_call(q, k, v, bias, mask, scale, strictly_before)
    out, lse = call.forward()
    out, lse = out[..., : v.shape[-1]], lse.to(bias.dtype)
    lse = torch.where(lse > call.lowest, lse, -torch.inf).contiguous()
    if end_scores is not None and end_values is not None:
        for score, value in zip(end_scores.unbind(dim=-1), end_values.unbind(dim=-2), strict=True):
            share = torch.where(score == -torch.inf, 0.0, (score - lse).sigmoid())
            out = out.to(lse.dtype).lerp_(value.to(lse.dtype), share[..., None])
            lse = torch.logaddexp(lse, score)
    out, empty = out.to(q.dtype).contiguous(), lse == -torch.inf
    if q.is_cuda or bool(empty.any()):
        out.masked_fill_(empty[..., None], 0.0)  # it is what the kernel makes of keys that are all hidden
    return out, lse


@stock_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:3], v.shape[-1])), bias.new_empty(q.shape[:3])


@torch.library.custom_op("ctsattn::stock_attention_backward", mutates_args=())
def _stock_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    strictly_before: int | None,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k`, `v` and `bias`; the last is empty unless `with_bias`."""
    call = _kernel_call(q, k, v, bias, mask, scale, strictly_before)
    head_dim, value_dim = q.shape[-1], v.shape[-1]
    width = max(call.q.shape[-1] + with_bias, 0 if grad_lse is None else value_dim + 1)
    width += -width % _multiple(q)
    grad_out, out = (_to_width(x, width) for x in (grad_out, out))
    if grad_lse is not None:
        grad_out[..., value_dim] = 1.0
        out[..., value_dim] = -grad_lse.to(out.dtype)
    lse = torch.where(lse == -torch.inf, -HIDDEN, lse)  # then all its exponentials are 0
    grad_q, grad_k, grad_v = call.widened(width, with_bias).backward(grad_out, out, lse)
    grad_bias = grad_k[..., -1:].sum(dim=1) / scale if with_bias else bias.new_zeros((*bias.shape, 1))
    grad_k, grad_v = (_sum_groups(x, k.shape[1]) for x in (grad_k[..., :head_dim], grad_v[..., :value_dim]))
    grad_k, grad_v, grad_bias = (_unaligned(x, strictly_before) for x in (grad_k, grad_v, grad_bias))
    return grad_q[..., :head_dim].contiguous(), grad_k, grad_v, grad_bias.squeeze(-1).to(bias.dtype)


@_stock_attention_backward.register_fake
def _(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), bias.new_empty(bias.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the backward pass reads."""
    *tensors, ctx.scale, ctx.strictly_before = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of the keys' part by the kernel, and of the ends by hand."""
    q, k, v, bias, mask, end_scores, end_values, out, lse = ctx.saved_tensors
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    with_bias = ctx.needs_input_grad[3]
    grads = _stock_attention_backward(
        grad_out, grad_lse, q, k, v, bias, mask, out, lse, ctx.scale, ctx.strictly_before, with_bias
    )
    grad_scores, grad_values = None, None
    if end_scores is not None:
        weights = (end_scores - torch.where(lse == -torch.inf, -HIDDEN, lse)[..., None]).exp()
        rise = torch.linalg.vecdot(
            (end_values - out[..., None, :]).to(lse.dtype), grad_out[..., None, :].to(lse.dtype)
        )
        rise = rise if grad_lse is None else rise + grad_lse[..., None]
        grad_scores = weights * rise
        grad_values = (weights[..., None] * grad_out[..., None, :]).to(end_values.dtype)
    return *grads[:3], grads[3] if with_bias else None, None, grad_scores, grad_values, None, None


stock_attention.register_autograd(_backward, setup_context=_setup)
stock_attention.register_vmap(fold_into_batch(stock_attention))
_stock_attention_backward.register_vmap(fold_into_batch(_stock_attention_backward))


class _StockAttention(torch.autograd.Function):
    """The operator once more, for `torch.func.grad`, which does not see `register_autograd`."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup)

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        return stock_attention(*args)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward_once(ctx, *grad_outputs)


_backward_once = once_differentiable(_backward)


def weighted_attention(*args: Any) -> tuple[Tensor, Tensor]:
    """`stock_attention`, inside function transforms too; arguments as there."""
    return (_StockAttention.apply if are_transformed(*args) else stock_attention)(*args)


class _KernelCall(NamedTuple):
    """Arguments of a stock kernel: heads repeated, one width for all of queries, keys and values.

    A logarithm of a sum of weights that is not above `lowest` comes from hidden keys alone.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    is_causal: bool
    lowest: float

    def forward(self) -> tuple[Tensor, Tensor]:
        """Mean value and logarithm of the sum of weights."""
        q, k, v, bias, scale, is_causal, _ = self
        if q.is_cuda:
            out, lse, *_ = aten._scaled_dot_product_efficient_attention(
                q, k, v, bias, True, 0.0, is_causal, scale=scale
            )
            return out, lse[:, :, : q.shape[2]]
        return aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale
        )

    def backward(self, grad_out: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of `q`, `k` and `v`."""
        q, k, v, bias, scale, is_causal, _ = self
        if q.is_cuda:
            lse = pad(lse, (0, -lse.shape[-1] % LSE_ROW)).contiguous()
            out = out.transpose(1, 2).contiguous().transpose(1, 2)
            seed = torch.zeros((), dtype=torch.int64, device=q.device)  # read for dropout only
            wanted = [True, True, True, False]
            return aten._scaled_dot_product_efficient_attention_backward(
                grad_out, q, k, v, bias, out, lse, seed, seed, 0.0, wanted, is_causal, scale=scale
            )[:3]
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, q, k, v, out, lse, 0.0, is_causal, attn_mask=bias, scale=scale
        )

    def widened(self, width: int, with_bias: bool) -> _KernelCall:
        """The same call with more columns, the last one for the gradient of the bias."""
        q, k, v = (_to_width(x, width) for x in self[:3])
        if with_bias:
            q[..., -1] = 1.0  # it is a copy, since it is wider
        return self._replace(q=q, k=k, v=v)


def _kernel_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    scale: float,
    strictly_before: int | None,
) -> _KernelCall:
    """The call of a stock kernel that answers for the keys; arguments as in `stock_attention`."""
    k, v = (_aligned(x, strictly_before) for x in (k, v))
    bias = _aligned(bias[..., None], strictly_before, -torch.inf).squeeze(-1)
    bias, lowest = bias.clamp(min=HIDDEN), HIDDEN / 2
    if q.is_cuda:
        lowest = max(lowest, torch.finfo(q.dtype).min / 8 * min(scale, 1.0))  # float16 holds no `HIDDEN`
        q, k, shown = *_with_bias_columns(q, k, bias / scale), _shown(q, mask)
    elif mask is None:
        shown = bias[:, None, None]
    else:
        shown = torch.where(mask, bias[:, None], HIDDEN)[:, None]
    k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
    width = max(q.shape[-1], v.shape[-1])
    width += -width % _multiple(q)
    q, k, v = (_to_width(x, width) for x in (q, k, v))
    return _KernelCall(q, k, v, shown, scale, strictly_before is not None, lowest)


def _aligned(x: Tensor, strictly_before: int | None, fill: float = 0.0) -> Tensor:
    """Rows `[..., keys, width]` such that query i sees those up to row i, if it sees only some.

    A hidden row in front keeps the number of rows: the kernels lose much on one row less than a multiple of
        8.
    """
    if strictly_before is None:
        return x
    if strictly_before:
        return x[..., :-1, :]
    return torch.cat([torch.full_like(x[..., :1, :], fill), x[..., :-1, :]], dim=-2)


def _unaligned(grad: Tensor, strictly_before: int | None) -> Tensor:
    """Gradient of what `_aligned` was given, from that of what it made."""
    if strictly_before is None:
        return grad.contiguous()
    rows = grad if strictly_before else grad[..., 1:, :]
    return torch.cat([rows, torch.zeros_like(rows[..., :1, :])], dim=-2)


def _with_bias_columns(q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products have the bias in them, because the kernel's own bias is too narrow."""
    narrow = torch.float16 if q.dtype == torch.float16 else torch.bfloat16
    rest, columns = bias.clamp(min=torch.finfo(narrow).min / 4), []
    for _ in range(BIAS_COLUMNS):
        columns.append(rest.to(narrow).to(q.dtype))
        rest = rest - columns[-1]
    column = torch.stack(columns, dim=-1)[:, None].expand(-1, k.shape[1], -1, -1)
    return pad(q, (0, BIAS_COLUMNS), value=1.0), torch.cat([k, column], dim=-1)


def _shown(q: Tensor, mask: Tensor | None) -> Tensor | None:
    """A bias that hides what `mask` `[batch, queries, keys]` does not show, in aligned rows."""
    if mask is None:
        return None
    hidden = torch.finfo(q.dtype).min / 4
    shown = torch.where(pad(mask, (0, -mask.shape[-1] % BIAS_ROW)), 0.0, hidden).to(q.dtype)
    return shown[:, None, :, : mask.shape[-1]].expand(-1, q.shape[1], -1, -1)


def _multiple(q: Tensor) -> int:
    """What the width of a head must be a multiple of."""
    return 8 if q.is_cuda else 1


def _to_width(x: Tensor, width: int) -> Tensor:
    """Append columns of zeros; the kernels take for granted that columns are neighbours in memory."""
    if x.shape[-1] != width:
        return pad(x, (0, width - x.shape[-1]))
    if x.is_cuda and (x.data_ptr() % 16 or any(step * x.itemsize % 16 for step in x.stride()[:-1])):
        return x.clone(memory_format=torch.contiguous_format)
    return x if x.stride(-1) == 1 else x.contiguous()


def _sum_groups(grad: Tensor, kv_heads: int) -> Tensor:
    """Gradient of keys or values from that of their copies for each query head."""
    if grad.shape[1] == kv_heads:
        return grad
    return grad.unflatten(1, (kv_heads, grad.shape[1] // kv_heads)).sum(dim=2)
