"""Triton backend: continuous attention in one pass, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from ctsattn.ops.continuous.request import Request
from ctsattn.ops.continuous.triton.launch import (
    KINDS,
    Sight,
    chunks_of,
    interpreted,
    launch_backward,
    launch_forward,
    launch_gaps,
)
from ctsattn.ops.mapping import fold_into_batch

_MAX_DIM = 256
_FLAT = 1 << 30  # `views.FLAT`
_CAUSAL, _FULL = 1, 2  # `Sight.kind`


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


def direct(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor | None:
    """Answer an ordinary request from times to outputs in two kernels; None if it is not ordinary.

    Ordinary is what has a clock at most: no mask, sink, packed series, or interval that ends between knots.
    """
    times = request.times
    special = (request.key_mask, request.query_times, request.cu_seqlens, request.sink)
    if any(x is not None for x in special) or request.interval != "left" or request.dropout_p > 0:
        return None
    if k.shape[2] == 0 or q.numel() == 0 or (times is not None and times.requires_grad):
        return None
    q, k, v = _dense(q, k, v)
    return _clocked_attention(q, k, v, times, request.scale, request.is_causal, request.query_start)[0]


core.answer = answer  # `solve.py` takes it where nothing has to be merged afterwards
core.direct = direct  # `api.py` takes it first


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
    return launch_forward(q, k, v, gaps, Sight(first, last, 0, 0, simple, fill), scale)


@_attention.register_fake
def _(q, k, v, gaps, first, last, scale, simple, fill):
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("ctsattn::clocked_continuous_attention", mutates_args=())
def _clocked_attention(
    q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, scale: float, causal: bool, offset: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, log-sum-exps, and the results of `launch_gaps`."""
    clock = launch_gaps(times, k)
    sight = Sight(*clock[1:], _CAUSAL if causal else _FULL, offset, True, True)
    return *launch_forward(q, k, v, clock[0], sight, scale), *clock


@_clocked_attention.register_fake
def _(q, k, v, times, scale, causal, offset):
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    gaps = q.new_empty((k.shape[0], k.shape[2]), dtype=torch.float32)
    begin = q.new_empty((k.shape[0],), dtype=torch.int32)
    return out, lse, gaps, begin, q.new_empty((k.shape[0], chunks_of(k.shape[2])), dtype=torch.int32)


@torch.library.custom_op("ctsattn::continuous_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    first: Tensor,
    last: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    kind: int,
    offset: int,
    simple: bool,
    fill: bool,
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k`, `v` and `gaps`; the last are [batch, 0] unless `with_gaps`."""
    sight = Sight(first, last, kind, offset, simple, fill)
    return launch_backward(grad_out, grad_lse, q, k, v, gaps, sight, out, lse, scale, with_gaps)


@_attention_backward.register_fake
def _(grad_out, grad_lse, q, k, v, gaps, first, last, out, lse, scale, kind, offset, simple, fill, with_gaps):
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    return dq, dk, dv, gaps.new_empty(gaps.shape if with_gaps else (gaps.shape[0], 0))


def _keep(ctx, inputs, output) -> None:
    """Keep for the backward pass what it needs."""
    *tensors, ctx.scale, ctx.simple, ctx.fill = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad_out, grad_lse):
    """Gradients of all arguments of `_attention`."""
    tensors, with_gaps = ctx.saved_tensors, ctx.needs_input_grad[3]
    grad_out = torch.zeros_like(tensors[-2]) if grad_out is None else _rows(grad_out)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    dq, dk, dv, dgaps = _attention_backward(
        grad_out, grad_lse, *tensors, ctx.scale, 0, 0, ctx.simple, ctx.fill, with_gaps
    )
    return dq, dk, dv, dgaps if with_gaps else None, None, None, None, None, None


def _keep_clocked(ctx, inputs, output) -> None:
    """As `_keep`."""
    q, k, v, _times, ctx.scale, ctx.causal, ctx.offset = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiate_clocked(ctx, grad_out, *_unused):
    """Gradients of all arguments of `_clocked_attention`, of which only the outputs are used."""
    if grad_out is None:
        return (None,) * 7
    q, k, v, out, lse, gaps, begin, weightless = ctx.saved_tensors
    kind = _CAUSAL if ctx.causal else _FULL
    dq, dk, dv, _ = _attention_backward(
        _rows(grad_out), None, q, k, v, gaps, begin, weightless, out, lse, ctx.scale, kind, ctx.offset, True,
        True, False,
    )  # fmt: skip
    return dq, dk, dv, None, None, None, None


def _rows(grad: Tensor) -> Tensor:
    """A gradient whose vectors are in one piece."""
    return grad if grad.stride(-1) == 1 else grad.contiguous()


_attention.register_autograd(_differentiate, setup_context=_keep)
_clocked_attention.register_autograd(_differentiate_clocked, setup_context=_keep_clocked)
for _operator in (_attention, _clocked_attention, _attention_backward):
    _operator.register_vmap(fold_into_batch(_operator))
