"""Triton backend: continuous attention in one pass, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from ctsattn.ops.continuous.triton.launch import KINDS, interpreted, launch_backward, launch_forward
from ctsattn.ops.mapping import fold_into_batch

_MAX_DIM = 256
_FLAT = 1 << 30  # `primitives.FLAT`


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why this backend cannot run on these tensors, and what can; None if it can."""
    del k
    if not q.is_cuda and not interpreted():
        return f'Triton needs tensors on a GPU, but `q` is on {q.device}; `backend="cpu"` runs there'
    if q.dtype == torch.bfloat16 and not q.is_cuda:
        return "Triton's interpreter multiplies bfloat16 matrices wrongly; float16 and float32 run in it"
    if q.dtype not in KINDS:
        return f'it has no kernels for {q.dtype}; `backend="reference"` takes every dtype'
    if max(q.shape[-1], v.shape[-1]) > _MAX_DIM:
        return (
            f"heads are at most {_MAX_DIM} wide, but here they are {q.shape[-1]} (keys) and {v.shape[-1]} "
            f'(values); `backend="reference"` takes every width'
        )
    return None


def core(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    *,
    causal: bool = False,
    full: bool = False,
    offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """Integrate over the whole pieces that each query sees; see `reference.core`."""
    del offset
    return _attention(*_dense(q, k, v, gaps, first, last), scale, causal or full, False)


def answer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    *,
    causal: bool = False,
    full: bool = False,
    offset: int = 0,
    may_be_flat: bool = True,
) -> Tensor:
    """`core`'s outputs, and for queries with nothing to integrate the limit as their gaps shrink together.

    A query that sees one knot gets its value; one that sees several and no time between them, the result with
    unit gaps (`may_be_flat`: whether there may be such). The kernels do it in the same pass.
    """
    del offset
    if may_be_flat:
        seen = last.clamp(min=0).long()
        longer = (gaps > 0).cumsum(dim=-1, dtype=torch.int32)  # pieces with length up to each knot
        begin = longer.gather(-1, first.clamp(max=gaps.shape[-1] - 1).long())
        flat = (last > first) & (longer.gather(-1, seen) == begin)
        first = torch.where(flat, first + _FLAT, first)
    return _attention(*_dense(q, k, v, gaps, first, last), scale, causal or full, True)[0]


core.answer = answer  # `solve.py` takes it where nothing has to be merged afterwards


def _dense(q: Tensor, k: Tensor, v: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Tensors as the kernels read them: vectors in one piece, what belongs to a row without strides."""
    vectors = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return *vectors, *(x.contiguous() for x in rows)


@torch.library.custom_op("ctsattn::continuous_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    scale: float,
    simple: bool,
    fill: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps; `simple`: each `first` is 0 but for a mark; `fill`, mark: see `answer`."""
    return launch_forward(q, k, v, gaps, first, last, scale, simple, fill)


@_attention.register_fake
def _(q, k, v, gaps, first, last, scale, simple, fill):
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("ctsattn::continuous_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    simple: bool,
    fill: bool,
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k`, `v` and `gaps`; the last are 0 unless `with_gaps`."""
    return launch_backward(
        grad_out, grad_lse, q, k, v, gaps, first, last, out, lse, scale, simple, fill, with_gaps
    )


@_attention_backward.register_fake
def _(grad_out, grad_lse, q, k, v, gaps, first, last, out, lse, scale, simple, fill, with_gaps):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, gaps))


def _keep(ctx, inputs, output) -> None:
    """Keep for the backward pass what it needs."""
    *tensors, ctx.scale, ctx.simple, ctx.fill = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad_out, grad_lse):
    """Gradients of all arguments of `_attention`."""
    grad_out = grad_out if grad_out.stride(-1) == 1 else grad_out.contiguous()
    with_gaps = ctx.needs_input_grad[3]
    dq, dk, dv, dgaps = _attention_backward(
        grad_out, grad_lse.contiguous(), *ctx.saved_tensors, ctx.scale, ctx.simple, ctx.fill, with_gaps
    )
    return dq, dk, dv, dgaps if with_gaps else None, None, None, None, None, None


_attention.register_autograd(_differentiate, setup_context=_keep)
_attention.register_vmap(fold_into_batch(_attention))
_attention_backward.register_vmap(fold_into_batch(_attention_backward))
