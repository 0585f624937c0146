"""Ways that are kept for calls like earlier ones: they give the same, and let nothing wrong through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ctsattn import continuous_attention
from ctsattn.ops import trapezoid_attention
from ctsattn.ops.continuous import plans
from tests.ops.exact import CLOCKS, Inputs, Shape, inputs

pytest.importorskip("numba")
SHAPE = Shape(2, 4, 2, 13, 13, 8, 6)
Attention = Callable[..., Tensor]

ATTENTIONS: dict[str, Attention] = {
    "cpu": partial(continuous_attention, backend="cpu"),
    "first order": partial(continuous_attention, backend="first_order"),
    "trapezoid": trapezoid_attention,
}


@pytest.fixture(params=ATTENTIONS)
def attention(request: pytest.FixtureRequest) -> Attention:
    return partial(ATTENTIONS[request.param], enable_gqa=True, is_causal=True)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each call went a way that was kept; at first none is."""
    plans._ways.clear()
    seen, answer = [], plans.answer

    def watched(*given: object) -> Tensor | None:
        out = answer(*given)  # pyright: ignore[reportArgumentType]
        seen.append(out is not None)
        return out

    monkeypatch.setattr(plans, "answer", watched)
    yield seen
    plans._ways.clear()


def results(attention: Attention, given: Inputs, **options: object) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    out = attention(*leaves, given.times, **options)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_call_like_an_earlier_one_goes_its_way_and_gives_what_a_first_call_gives(
    attention: Attention, clock: str, dtype: torch.dtype, is_causal: bool, answers: list[bool]
) -> None:
    attend = partial(attention, is_causal=is_causal)
    first, other = inputs(SHAPE, dtype=dtype), inputs(SHAPE, clock, dtype, size=3.0)
    results(attend, first)
    assert answers == [False]
    found = results(attend, other)
    assert answers[1] or clock == "repeated"  # where several are seen and no time, there is a limit to take
    plans._ways.clear()
    for x, y in zip(found, results(attend, other), strict=True):
        assert torch.equal(x, y)


CHANGES: dict[str, Callable[[Inputs], Inputs]] = {
    "dtype": lambda x: Inputs(*(y.float() for y in x[:3]), x.times),
    "dtype of times": lambda x: x._replace(times=(x.times * 2**20).long()),
    "one clock": lambda x: x._replace(times=x.times[0]),
    "one row of times": lambda x: x._replace(times=x.times[1:]),
    "times apart": lambda x: x._replace(times=x.times.mT.contiguous().mT),
    "every other time": lambda x: x._replace(times=x.times.repeat_interleave(2, dim=1)[0, ::2]),
    "order in memory": lambda x: x._replace(v=x.v.transpose(1, 2).contiguous().transpose(1, 2)),
    "columns apart": lambda x: x._replace(q=x.q.mT.contiguous().mT),
    "keys": lambda x: Inputs(x.q, x.k[:, :, :9], x.v[:, :, :9], x.times[:, :9]),
    "negated": lambda x: x._replace(q=torch._neg_view(-x.q)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_that_differs_is_found_to(attention: Attention, change: str, answers: list[bool]) -> None:
    given = inputs(SHAPE)
    results(attention, given)
    results(attention, given)
    other = CHANGES[change](inputs(SHAPE, size=2.0))
    found = [results(attention, other) for _ in range(2)]
    assert answers[:3] == [False, True, False]
    plans._ways.clear()
    for x, y, expected in zip(*found, results(attention, other), strict=True):
        assert torch.equal(x, expected) and torch.equal(y, expected)


@pytest.mark.parametrize("option", [{"scale": 0.3}, {"is_causal": False}], ids=str)
def test_a_call_with_another_option_is_found_to_differ(
    attention: Attention, option: dict[str, object], answers: list[bool]
) -> None:
    given = inputs(SHAPE)
    attention(*given)
    attention(*given, **option)
    assert answers == [False, False]


def test_times_are_looked_at_in_every_call(attention: Attention) -> None:
    q, k, v, times = inputs(SHAPE)
    times = times.clone()
    for _ in range(2):
        attention(q, k, v, times)
    times[1, 5] = torch.nan  # in place: it is the same tensor
    with pytest.raises(ValueError, match="`times` must be finite"):
        attention(q, k, v, times)
    times[1, 5] = -1e6
    with pytest.raises(ValueError, match="must not decrease"):
        attention(q, k, v, times)
    times[:] = 0.0
    limit = attention(q, k, v, torch.arange(13.0))
    torch.testing.assert_close(attention(q, k, v, times), limit)


def test_wrong_arguments_are_refused_after_right_ones_were_kept(attention: Attention) -> None:
    q, k, v, times = inputs(SHAPE)
    attention(q, k, v, times)
    with pytest.raises(TypeError, match="`times` must be a tensor"):
        attention(q, k, v, times.tolist())
    with pytest.raises(TypeError, match="`k` must be a tensor"):
        attention(q, k.tolist(), v, times)
    with pytest.raises(TypeError, match="`scale` must be a number"):
        attention(q, k, v, times, scale=[0.3])
    with pytest.raises(ValueError, match="`scale` must be finite"):
        attention(q, k, v, times, scale=float("nan"))
    with pytest.raises(ValueError, match="enable_gqa"):
        attention(q, k, v, times, enable_gqa=False)


def test_gradients_of_times_are_not_lost(attention: Attention) -> None:
    q, k, v, times = inputs(SHAPE)
    attention(q, k, v, times)
    times = times.clone().requires_grad_()
    (slope,) = torch.autograd.grad(attention(q, k, v, times).square().sum(), times)
    assert slope.abs().sum() > 0


def test_autocast_transforms_and_modes_see_the_call(attention: Attention) -> None:
    q, k, v, times = (x.float() for x in inputs(SHAPE))
    out = attention(q, k, v, times)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v, times).dtype == torch.bfloat16
    mapped = torch.vmap(attention)(*(x[None] for x in (q, k, v, times)))[0]
    torch.testing.assert_close(mapped, out)
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        torch.testing.assert_close(attention(q, k, v, times), out)
    assert seen
    with torch.inference_mode():
        assert torch.equal(attention(*(x.clone() for x in (q, k, v, times))), out)


def test_what_is_saved_for_the_way_back_may_be_moved_and_is_used_again(attention: Attention) -> None:
    given = inputs(SHAPE)
    expected = results(attention, given)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone().mT.contiguous(), lambda x: x.mT):
        leaves = [x.detach().requires_grad_() for x in given[:3]]
        loss = attention(*leaves, given.times[:, :]).square().sum()
    for retain in (True, False):
        for x, y in zip(torch.autograd.grad(loss, leaves, retain_graph=retain), expected[1:], strict=True):
            torch.testing.assert_close(x, y)


def test_no_more_than_some_kinds_are_kept(attention: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_KINDS", 3)
    monkeypatch.setattr(plans, "_ALIKE", 2)
    plans._ways.clear()
    for length in range(3, 9):
        attention(*inputs(SHAPE._replace(queries=length, keys=length)))
    assert len(plans._ways) <= 3
    q, k, v, times = inputs(SHAPE)
    for clock in (times, times.float(), times[0], times[0].float()):
        attention(q, k, v, clock)
    assert all(len(kept) <= 2 for kept in plans._ways.values())
