"""Forward-mode differentiation: tangents come through the reference, and no backend loses one in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from ctsattn.ops import Sink, continuous_attention
from tests.ops.exact import Shape, inputs

# PyTorch scripts its own decompositions when the first tangent is made.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

SHAPE = Shape(2, 2, 2, 6, 6, 4, 3)
WAYS = {
    "plain": {},
    "causal": {"is_causal": True},
    "masked": {"key_mask": torch.tensor([True, True, False, True, True, True])},
    "asked": {"query_times": torch.linspace(0.0, 4.0, 6, dtype=torch.float64)},
}


def dual(operator: Callable[..., Tensor], given: list[Tensor], which: int) -> Tensor | None:
    """Tangent of the result where one argument has the tangent 1, by `forward_ad`."""
    with forward_ad.dual_level():
        given = list(given)
        given[which] = forward_ad.make_dual(given[which], torch.ones_like(given[which]))
        return forward_ad.unpack_dual(operator(*given)).tangent


def jvp(operator: Callable[..., Tensor], given: list[Tensor], which: int) -> Tensor:
    """The same by `torch.func`."""

    def of_one(x: Tensor) -> Tensor:
        return operator(*given[:which], x, *given[which + 1 :])

    return torch.func.jvp(of_one, (given[which],), (torch.ones_like(given[which]),))[1]


def difference(operator: Callable[..., Tensor], given: list[Tensor], which: int) -> Tensor:
    """The same by central differences."""
    step = 1e-5
    ends = [[x + sign * step * (i == which) for i, x in enumerate(given)] for sign in (1, -1)]
    return (operator(*ends[0]) - operator(*ends[1])) / (2 * step)


@pytest.fixture(params=WAYS)
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    return WAYS[request.param]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("way", [dual, jvp])
def test_a_tangent_comes_through_where_no_backend_is_named(way, which, options):
    given = list(inputs(SHAPE))

    def operator(*x: Tensor) -> Tensor:
        return continuous_attention(*x, **options)

    torch.testing.assert_close(
        way(operator, given, which), difference(operator, given, which), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("backend", ["cpu", "triton", "first_order"])
@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("way", [dual, jvp])
def test_a_named_backend_refuses_a_tangent_rather_than_lose_it(way, which, backend, options):
    given = list(inputs(SHAPE))
    with pytest.raises(ValueError, match=f"`backend='{backend}'` cannot run here: tangents of forward-mode"):
        way(lambda *x: continuous_attention(*x, backend=backend, **options), given, which)


@pytest.mark.parametrize("part", ["key", "value", "gap"])
def test_the_tangent_of_a_sink_is_one_too(part):
    given = inputs(SHAPE)

    def tangent(backend: str | None) -> Tensor | None:
        with forward_ad.dual_level():
            learned = forward_ad.make_dual(torch.tensor(0.5).double(), torch.tensor(1.0).double())
            out = continuous_attention(*given, sink=Sink(**{part: learned}), backend=backend)
            return forward_ad.unpack_dual(out).tangent

    assert tangent(None).abs().max() > 1e-3
    with pytest.raises(ValueError, match="tangents of forward-mode differentiation"):
        tangent("cpu")


@pytest.mark.parametrize("way", [dual, jvp])
def test_a_call_like_one_that_was_answered_before_is_looked_at_anew(way):
    given = list(inputs(SHAPE))
    for _ in range(2):
        continuous_attention(*given)
    expected = difference(continuous_attention, given, 0)
    torch.testing.assert_close(way(continuous_attention, given, 0), expected, rtol=1e-5, atol=1e-7)


def test_what_carries_no_tangent_runs_on_any_backend_beside_what_does():
    given = inputs(SHAPE)
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.ones(2), torch.ones(2))
        out = continuous_attention(*given, backend="cpu")
    torch.testing.assert_close(out, continuous_attention(*given, backend="reference"))


def test_the_jacobian_is_the_same_forwards_and_backwards():
    q, k, v, times = inputs(SHAPE)

    def of_times(x: Tensor) -> Tensor:
        return continuous_attention(q, k, v, x, is_causal=True).sum(dim=(1, 3))

    torch.testing.assert_close(torch.func.jacfwd(of_times)(times), torch.func.jacrev(of_times)(times))
