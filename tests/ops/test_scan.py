"""Recurrences against step-by-step loops and matrix exponentials."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ctsattn.ops.scan import delta_scan, linear_scan

F64 = torch.float64


def run_linear(decay: Tensor, inputs: Tensor) -> Tensor:
    state, states = torch.zeros_like(inputs[:, 0]), []
    for i in range(inputs.shape[1]):
        state = decay[:, i] * state + inputs[:, i]
        states.append(state)
    return torch.stack(states, dim=1)


def run_delta(q: Tensor, k: Tensor, v: Tensor, strength: Tensor) -> Tensor:
    state, outputs = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for i in range(q.shape[2]):
        error = v[:, :, i] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, i])
        state = state + strength[:, :, i, None, None] * k[:, :, i, :, None] * error[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, i]))
    return torch.stack(outputs, dim=2)


def delta_inputs(length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, 3, length, size, dtype=F64) for size in (4, 4, 5))
    return q, k, v, torch.rand(2, 3, length, dtype=F64) * 0.5


@pytest.mark.parametrize("length", [1, 2, 9, 10, 17])
@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_linear_scan_is_the_loop(length, dtype):
    decay, inputs = (torch.randn(2, length, 3, dtype=dtype) * 0.7 for _ in range(2))
    torch.testing.assert_close(linear_scan(decay, inputs), run_linear(decay, inputs), rtol=1e-13, atol=1e-13)


def test_linear_scan_passes_gradcheck():
    decay, inputs = (torch.randn(1, 5, 2, dtype=F64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(linear_scan, (decay, inputs))


@pytest.mark.parametrize("length", [1, 5, 32, 71])
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_delta_scan_is_the_loop_whatever_the_chunk(length, chunk):
    parts = delta_inputs(length)
    torch.testing.assert_close(delta_scan(*parts, chunk=chunk), run_delta(*parts), rtol=1e-12, atol=1e-12)


def test_a_token_of_strength_zero_changes_no_other():
    q, k, v, strength = delta_inputs(8)
    strength[:, :, 3] = 0.0
    keep = [i for i in range(8) if i != 3]
    whole = delta_scan(q, k, v, strength)[:, :, keep]
    torch.testing.assert_close(whole, delta_scan(*(x[:, :, keep] for x in (q, k, v, strength))))


def test_delta_scan_passes_gradcheck():
    parts = [x[:1, :1].clone().requires_grad_() for x in delta_inputs(6)]
    assert torch.autograd.gradcheck(lambda *x: delta_scan(*x, chunk=3), parts)


def test_half_precision_is_computed_in_single():
    parts = [x.bfloat16() for x in delta_inputs(40)]
    low, high = delta_scan(*parts), delta_scan(*(x.double() for x in parts))
    assert low.dtype == torch.bfloat16
    assert ((low.double() - high).abs() <= 0.01 * high.abs() + 1e-6).all()
