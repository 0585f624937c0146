"""The registered operators of the cpu backend: opcheck, torch.compile, torch.func, autocast and export."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops.continuous import cpu


def problem(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Two rows of four query heads and two key heads: q, k, v, gaps."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3))
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v, torch.rand(2, 7, generator=generator)


FIRST, LAST = torch.zeros(2, 5, dtype=torch.int32), torch.tensor([[6, 6, 3, 2, 1]] * 2, dtype=torch.int32)


def attend(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
    """The public operator on the cpu backend."""
    return continuous_attention(q, k, v, times, enable_gqa=True, backend="cpu")


def clocked(seed: int = 0) -> tuple[Tensor, ...]:
    """q, k, v and times."""
    q, k, v, gaps = problem(seed)
    return q, k, v, gaps.cumsum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_forward_operator_passes_opcheck(dtype: torch.dtype) -> None:
    leaves = [x.requires_grad_() for x in problem(dtype=dtype)]
    torch.library.opcheck(cpu._attention, (*leaves, FIRST, LAST, 0.5))


@pytest.mark.parametrize("with_gaps", [True, False])
def test_the_backward_operator_passes_opcheck(with_gaps: bool) -> None:
    given = (*problem(), FIRST, LAST)
    out, lse, peak, inverse = cpu._attention(*given, 0.5)
    arguments = (torch.randn_like(out), torch.randn_like(lse), *given, out, peak, inverse, 0.5, with_gaps)
    torch.library.opcheck(cpu._attention_backward, arguments)


@pytest.mark.parametrize("dynamic", [True, False])
def test_it_compiles_into_one_graph_with_its_gradients(dynamic: bool) -> None:
    torch.compiler.reset()
    eager, compiled = ([x.requires_grad_() for x in clocked()] for _ in range(2))
    out = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*compiled)
    out.square().sum().backward()
    attend(*eager).square().sum().backward()
    for x, y in zip(compiled, eager, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_vmap_equals_a_loop_with_mapped_and_with_shared_times() -> None:
    rows = [clocked(seed) for seed in range(3)]
    q, k, v, times = (torch.stack(x) for x in zip(*rows, strict=True))
    torch.testing.assert_close(
        torch.func.vmap(attend)(q, k, v, times), torch.stack([attend(*row) for row in rows])
    )
    shared = torch.func.vmap(attend, in_dims=(0, 0, 0, None))(q, k, v, times[0])
    torch.testing.assert_close(shared, torch.stack([attend(*row[:3], times[0]) for row in rows]))


def test_vmap_of_the_gradient_equals_a_loop() -> None:
    def loss(*x: Tensor) -> Tensor:
        return attend(*x).square().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    rows = [clocked(seed) for seed in range(3)]
    found = torch.func.vmap(gradient)(*(torch.stack(x) for x in zip(*rows, strict=True)))
    for x, *parts in zip(found, *(gradient(*row) for row in rows), strict=True):
        torch.testing.assert_close(x, torch.stack(parts))


def test_autocast_keeps_the_clock_in_float32() -> None:
    q, k, v, times = clocked()
    times = times + 1000  # in bfloat16 all of them would be one number
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k, v, times)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attend(q, k, v, times), rtol=0.03, atol=0.03)


class Module(torch.nn.Module):
    """Linear maps around the operator, as a module that can be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return continuous_attention(q, k, v, times, is_causal=True, backend="cpu").transpose(1, 2).flatten(2)


def test_a_module_exports_with_any_batch_size_and_length() -> None:
    module, batch, length = Module(), torch.export.Dim("batch"), torch.export.Dim("length", min=3, max=512)
    shapes = {"x": {0: batch, 1: length}, "times": {0: batch, 1: length}}
    arguments = torch.randn(3, 9, 8), torch.rand(3, 9).cumsum(-1)
    exported = torch.export.export(module, arguments, dynamic_shapes=shapes).module()
    more = torch.randn(2, 70, 8), torch.rand(2, 70).cumsum(-1)
    torch.testing.assert_close(exported(*more), module(*more))
