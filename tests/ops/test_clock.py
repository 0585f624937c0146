"""From times to gaps: units of any size, and two ways to find them that agree to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops import trapezoid_attention
from ctsattn.ops.continuous.clock import steps_between, unit_of
from ctsattn.ops.continuous.cpu.clock import plain_gaps
from tests.ops.exact import CLOCKS, EXACT_BACKENDS, Shape, clock, inputs

SMALLEST = {torch.float32: 1e-45, torch.float64: 5e-324}


@pytest.mark.parametrize("dtype", SMALLEST, ids=str)
@pytest.mark.parametrize("gap", ["smallest", 1e-39, 1e-30, 0.0, 1e30])
def test_the_unit_is_a_finite_power_of_two_whatever_the_first_gap(
    dtype: torch.dtype, gap: float | str
) -> None:
    first = SMALLEST[dtype] if gap == "smallest" else gap
    unit = unit_of(torch.tensor([[0.0, 0.0, first, 1.0]], dtype=dtype))
    mantissa, _ = torch.frexp(unit)
    assert mantissa.item() == 0.5 and 2.0**-64 <= unit.item() <= 2.0**64


@pytest.mark.parametrize("backend", [*EXACT_BACKENDS, "first_order"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", SMALLEST, ids=str)
@pytest.mark.parametrize("learned", [True, False])
def test_a_subnormal_first_gap_is_as_good_as_none(
    backend: str, is_causal: bool, dtype: torch.dtype, learned: bool
) -> None:
    q, k, v, _ = inputs(Shape(1, 2, 2, 6, 6, 8, 3), dtype=torch.float32)
    times = torch.tensor([0.0, SMALLEST[dtype], 1.0, 1.0, 3.0, 3.5], dtype=dtype)
    out = continuous_attention(q, k, v, times.requires_grad_(learned), is_causal=is_causal, backend=backend)
    none = times.detach().clone()
    none[1] = 0.0
    torch.testing.assert_close(
        out, continuous_attention(q, k, v, none, is_causal=is_causal, backend=backend), rtol=1e-5, atol=1e-6
    )
    if learned:
        out[:, :, 2:].sum().backward()
        assert times.grad is not None and times.grad[2:].isfinite().all()


@pytest.mark.parametrize("backend", EXACT_BACKENDS)
@pytest.mark.parametrize("dtype", SMALLEST, ids=str)
def test_gaps_over_24_orders_of_magnitude_in_any_order_keep_outputs_between_the_values(
    backend: str, dtype: torch.dtype
) -> None:
    q, k, v, _ = inputs(Shape(1, 2, 2, 25, 25, 8, 3), dtype=torch.float32)
    gaps = 10.0 ** torch.arange(-12, 13, dtype=torch.float64)
    for order in (gaps, gaps.flip(0), gaps[torch.randperm(25)]):
        out = continuous_attention(q, k, v, order.cumsum(0).to(dtype), is_causal=True, backend=backend)
        low, high = v.amin(dim=2, keepdim=True), v.amax(dim=2, keepdim=True)
        assert (out >= low - 1e-5).all() and (out <= high + 1e-5).all()


def by_tensor_operations(times: Tensor, wide: torch.dtype) -> Tensor:
    gaps = steps_between(times, wide)
    return (gaps / unit_of(gaps)).to(wide)


@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_one_pass_finds_the_gaps_of_tensor_operations_to_the_bit(
    name: str, wide: torch.dtype, dtype: torch.dtype
) -> None:
    times = (clock(name, 3, 17) * (1000 if dtype == torch.int64 else 1)).to(dtype)
    gaps = plain_gaps(times, wide)
    assert gaps is not None and torch.equal(gaps, by_tensor_operations(times, wide))


@pytest.mark.parametrize(
    "times", [[0.0, 2.0, 1.0], [0.0, torch.nan, 1.0], [0.0, 1.0, torch.inf], [torch.nan] * 3, [torch.inf] * 3]
)
def test_one_pass_declines_what_falls_or_is_not_finite(times: list[float]) -> None:
    assert plain_gaps(torch.tensor([[0.0, 1.0, 2.0], times]), torch.float32) is None
    q, k, v, _ = inputs(Shape(2, 1, 1, 3, 3, 8, 3))
    for attention in (continuous_attention, trapezoid_attention):
        with pytest.raises(ValueError, match="`times` must"):
            attention(q, k, v, torch.tensor([[0.0, 1.0, 2.0], times]))


def test_one_time_that_is_not_finite_is_refused() -> None:
    q, k, v, _ = inputs(Shape(2, 1, 1, 3, 1, 8, 3))
    with pytest.raises(ValueError, match="`times` must be finite"):
        continuous_attention(q, k, v, torch.tensor([torch.inf]))
