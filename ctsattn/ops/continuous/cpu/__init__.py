"""cpu backend (docstring to come)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why this backend cannot run on these tensors, and what to do; None if it can."""
    del k, v
    if q.device.type != "cpu":
        return f'it runs on the CPU, but `q` is on {q.device}; `backend="triton"` or "reference" runs there'
    if q.dtype not in _DTYPES:
        return f'it has no arithmetic for {q.dtype}; `backend="reference"` takes every dtype'
    if find_spec("numba") is None:
        return "numba is not installed: `pip install numba`"
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
    del causal, full, offset  # the kernels read what they need from `first` and `last`
    operator = _attention if torch.compiler.is_compiling() else _Attention.apply
    out, lse, _, _ = operator(q, k, v, gaps, first, last, scale)
    return out, lse


@torch.library.custom_op("ctsattn::cpu_attention", mutates_args=(), device_types="cpu")
def _attention(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, log-sum-exps, and peaks and inverse sums of weights, which only the backward pass wants."""
    from ctsattn.ops.continuous.cpu import launch

    return launch.forward(q, k, v, gaps, first, last, scale)


@_attention.register_fake
def _(q, k, v, gaps, first, last, scale):
    return q.new_empty((*q.shape[:3], v.shape[3])), *(gaps.new_empty(q.shape[:3]) for _ in range(3))


@torch.library.custom_op("ctsattn::cpu_attention_backward", mutates_args=(), device_types="cpu")
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
    peak: Tensor,
    inverse: Tensor,
    scale: float,
    with_gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k`, `v` and `gaps`; the last are 0 unless `with_gaps`."""
    from ctsattn.ops.continuous.cpu import launch

    return launch.backward(
        grad_out, grad_lse, q, k, v, gaps, first, last, out, peak, inverse, scale, with_gaps
    )


@_attention_backward.register_fake
def _(grad_out, grad_lse, q, k, v, gaps, first, last, out, peak, inverse, scale, with_gaps):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, gaps))


def _save(ctx, inputs, output) -> None:
    """Keep for the backward pass what it needs."""
    *tensors, ctx.scale = inputs
    out, _, peak, inverse = output
    ctx.mark_non_differentiable(peak, inverse)
    ctx.save_for_backward(*tensors, out, peak, inverse)


def _differentiate(ctx, grad_out, grad_lse, *_):
    """Gradients of all arguments."""
    with_gaps = ctx.needs_input_grad[3]
    *grads, dgaps = _attention_backward(grad_out, grad_lse, *ctx.saved_tensors, ctx.scale, with_gaps)
    return *grads, dgaps if with_gaps else None, None, None, None


def _vmap(operator: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple]:
    """Rule that maps an operator by putting the mapped axis in front of the batch."""

    def rule(info, in_dims, *args):
        def folded(x, dim):
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        outputs = operator(*(folded(x, dim) for x, dim in zip(args, in_dims, strict=True)))
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in outputs), (0,) * len(outputs)

    return rule


_attention.register_autograd(_differentiate, setup_context=_save)
_attention.register_vmap(_vmap(_attention))
_attention_backward.register_vmap(_vmap(_attention_backward))


class _Attention(torch.autograd.Function):
    """The operator once more, for `torch.func.grad`, which does not see `register_autograd`."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)
    backward = staticmethod(once_differentiable(_differentiate))

    @staticmethod
    def forward(*args):
        """Call the operator."""
        return _attention(*args)
