"""CPU backend: continuous attention in blocks, forward and backward, compiled by numba.

Memory is linear in the length: a pass holds the scores of 64 queries and 64 knots, and the backward pass
computes them again. Blocks that no query of a tile sees are not visited, and query heads that share a key
head read the same memory.

**Why numba.** Three ways were looked at, in float32 at batch 4, 4 heads and width 32:

- Operations of torch on cache-sized blocks, in place, took 2 to 3.5 times stock attention's time. The weights
  of the pieces take 25 passes over a block, each of which moves more memory than it computes, and every pass
  waits for all threads, so that another process on one core makes it many times slower.
- `torch.compile` needs a C++ compiler wherever it runs.
- numba makes one loop of it, and needs nothing but its wheel. Its optimiser finds few vectors in such loops,
  so the innermost ones are written as vector instructions (`lanes`). A lane is a query and a row is a knot:
  the neighbour that a piece needs is the row before, and the online maximum needs no reduction. The products
  of tiles reach 200 GFLOP/s on one core where the library behind `torch.mm` reaches 100 at these shapes, and
  the weights take 1.4 times as long as one of the products.

**Threads** are torch's own where that has GNU's OpenMP, else those of a pool (`workers`). They take a few
tiles at a time and never wait for each other within a pass. What a kernel reads it is told by addresses
(`places`), which is all that a thread of OpenMP can be given, and takes no time to prepare. Where there is
nothing but a clock, one kernel leads from times to outputs and one back (`direct`); the choice of this way is
kept for calls of the same kind (`plans`). Both count on short series: at 96 the tensor operations around the
kernels took longer than the kernels. Times beside stock attention's are in `experiments/kernels`.

**Exactness.** The weight of a piece has a series near 0 and divided differences elsewhere, see
`pieces.shares`. Errors of the differences just outside the radius of the series, relative to the weight, and
the terms that make the series more exact than that:

| radius in delta / ln 2 | 0.8 | 1.0 | 1.2 | 1.6 | 2.0 |
|---|---|---|---|---|---|
| float32, least number of terms | 4 | 5 | 6 | 7 | 9 |
| float32, error of the differences | 1.4e-6 | 1.1e-6 | 9.1e-7 | 6.3e-7 | 5.4e-7 |
| float64, least number of terms | 12 | – | 14 | 18 | 22 |
| float64, error of the differences | 2.4e-15 | – | 1.7e-15 | 1.1e-15 | 9.4e-16 |

float32 takes 1.6 and 7 terms, float64 1.2 and 14. float16 and bfloat16 are computed in float32.

The first call in a fresh installation compiles for some seconds; the result is kept on disk.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ctsattn._checks import are_transformed
from ctsattn.ops.continuous.plans import Way
from ctsattn.ops.continuous.request import Request
from ctsattn.ops.mapping import fold_into_batch

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


_HAS_NUMBA = find_spec("numba") is not None


def has_numba() -> bool:
    """Whether numba is installed."""
    return _HAS_NUMBA


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why this backend cannot run on these tensors, and what to do; None if it can."""
    del k, v
    if q.device.type != "cpu":
        return f'it runs on the CPU, but `q` is on {q.device}; `backend="triton"` or "reference" runs there'
    if q.dtype not in _DTYPES:
        return f'it has no arithmetic for {q.dtype}; `backend="reference"` takes every dtype'
    if not has_numba():
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
    operator = _Attention.apply if are_transformed(q, k, v, gaps) else _attention
    out, lse, _, _ = operator(q, k, v, gaps, first, last, scale)
    return out, lse


def plan(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Way | None:
    """A way from times to outputs where there is nothing but a clock, else None."""
    if torch.compiler.is_compiling():
        return None
    from ctsattn.ops.continuous.cpu.direct import plan_of

    return plan_of(q, k, v, request)


core.plan = plan  # pyright: ignore[reportFunctionMemberAccess]


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


_differentiate_once = once_differentiable(_differentiate)


_attention.register_autograd(_differentiate, setup_context=_save)
_attention.register_vmap(fold_into_batch(_attention))
_attention_backward.register_vmap(fold_into_batch(_attention_backward))


class _Attention(torch.autograd.Function):
    """The operator once more, for `torch.func.grad`, which does not see `register_autograd`."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*args):
        """Call the operator."""
        return _attention(*args)

    @staticmethod
    def backward(ctx, *grad_outputs):
        """Gradients of all arguments."""
        return _differentiate_once(ctx, *grad_outputs)
