"""What records operators or sends tangents through them sees all that is computed, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ctsattn import continuous_attention
from ctsattn.ops import trapezoid_attention
from tests.ops.exact import Shape, inputs

# Torch's scripts, which tracing and tangents use, warn of their age.
pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")

Attention = Callable[..., Tensor]

ATTENTIONS: dict[str, Attention] = {
    "cpu": partial(continuous_attention, backend="cpu"),
    "first order": partial(continuous_attention, backend="first_order"),
    "trapezoid": trapezoid_attention,
}


@pytest.fixture(params=ATTENTIONS)
def attention(request: pytest.FixtureRequest) -> Attention:
    return ATTENTIONS[request.param]


def _inputs() -> list[Tensor]:
    return [x.float() for x in inputs(Shape(2, 2, 2, 7, 7, 8, 8))]


def _others() -> list[Tensor]:
    q, k, v, times = _inputs()
    return [2 * q, k + v, v.flip(2), 1 + times.square()]


def _traced(attention: Attention, *like: Tensor) -> Attention:
    return torch.jit.trace(lambda *x: attention(*x), like, check_trace=False)


def _graph(attention: Attention, *like: Tensor) -> Attention:
    return make_fx(attention)(*like)


@pytest.mark.parametrize("record", [_traced, _graph])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_recording_gives_for_other_inputs_what_the_operator_gives(
    attention: Attention, record: Callable[..., Attention], is_causal: bool
) -> None:
    recorded = record(partial(_call, attention, is_causal), *_inputs())
    torch.testing.assert_close(recorded(*_others()), attention(*_others(), is_causal=is_causal))


def _call(attention: Attention, is_causal: bool, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
    return attention(q, k, v, times, is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_lazily_negated_tensor_is_read_with_its_sign(attention: Attention, is_causal: bool) -> None:
    given = _inputs()
    negated = [torch._neg_view(-x) for x in given]
    torch.testing.assert_close(
        attention(*negated, is_causal=is_causal), attention(*given, is_causal=is_causal)
    )
