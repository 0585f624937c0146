"""The public operator under torch.compile, vmap, export and autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops import Sink
from tests.ops.exact import EXACT_BACKENDS, Shape, inputs

SMALL = Shape(2, 4, 2, 7, 7, 8, 3)
MASK = torch.tensor(
    [[True, True, False, True, True, False, True], [False, True, True, True, True, True, False]]
)
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "masked sink": {"is_causal": True, "key_mask": MASK, "sink": Sink("first", 0.0, "median")},
    "packed sink": {"cu_seqlens": torch.tensor([0, 3, 7]), "sink": Sink()},
    "packed queries": {
        "cu_seqlens": torch.tensor([0, 3, 7]),
        "cu_seqlens_q": torch.tensor([0, 5, 7]),
        "query_times": torch.linspace(0.0, 5.0, 7),
        "is_causal": True,
        "tail": "hold",
    },
    "cut": {"is_causal": True, "tail": "cut", "query_times": torch.linspace(0.0, 5.0, 7)},
    "symmetric": {"is_causal": True, "interval": "symmetric", "tail": "hold"},
}

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def attention(case: str) -> Attention:
    return lambda *x: continuous_attention(*x, enable_gqa=True, backend="reference", **CASES[case])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def test_it_compiles_into_one_graph_with_the_same_gradient(attention: Attention, case: str) -> None:
    eager, compiled = ([x.float().requires_grad_() for x in inputs(SMALL)] for _ in range(2))
    through = "aot_eager" if case == "masked sink" else "eager"  # the first also traces the backward pass
    out = torch.compile(attention, fullgraph=True, backend=through)(*compiled)
    expected = attention(*eager)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    for x, y in zip(compiled, eager, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_vmap_equals_a_loop_with_mapped_and_with_shared_times(attention: Attention, case: str) -> None:
    rows = [inputs(SMALL, seed=seed) for seed in range(3)]
    q, k, v, times = (torch.stack(x) for x in zip(*rows, strict=True))
    if "query_times" not in CASES[case]:  # torch warns where only one of the two clocks is mapped
        out = torch.func.vmap(attention)(q, k, v, times)
        torch.testing.assert_close(out, torch.stack([attention(*row) for row in rows]))
    out = torch.func.vmap(attention, in_dims=(0, 0, 0, None))(q, k, v, times[0])
    torch.testing.assert_close(out, torch.stack([attention(*row[:3], times[0]) for row in rows]))


@pytest.mark.parametrize("backend", EXACT_BACKENDS)
def test_autocast_runs_in_the_low_dtype_as_stock_attention_does(backend: str) -> None:
    q, k, v, times = (x.float() for x in inputs(SMALL))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = continuous_attention(q, k, v, times, enable_gqa=True, backend=backend)
        stock = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        mixed = continuous_attention(q, k.bfloat16(), v, times, enable_gqa=True, backend=backend)
        double = continuous_attention(
            *(x.double() for x in (q, k, v, times)), enable_gqa=True, backend=backend
        )
    assert out.dtype == stock.dtype == mixed.dtype == torch.bfloat16
    assert double.dtype == torch.float64
    expected = continuous_attention(q, k, v, times, enable_gqa=True, backend="reference")
    torch.testing.assert_close(out.float(), expected, rtol=0.03, atol=0.03)


class Module(torch.nn.Module):
    """The operator as a module that can be exported."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        return continuous_attention(q, k, v, times, key_mask=mask, enable_gqa=True, **self.options)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "sink": Sink()}], ids=str)
@pytest.mark.parametrize("backend", EXACT_BACKENDS)
def test_it_exports_with_any_batch_size(options: dict[str, object], backend: str) -> None:
    module = Module(backend=backend, **options)
    arguments = (*(x.float() for x in inputs(SMALL)), MASK)
    shapes = {name: {0: torch.export.Dim("batch")} for name in ("q", "k", "v", "times", "mask")}
    exported = torch.export.export(module, arguments, dynamic_shapes=shapes).module()
    more = tuple(torch.cat([x, x[:1]]) for x in arguments)
    torch.testing.assert_close(exported(*more), module(*more))
