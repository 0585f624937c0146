"""Invariants of the operator on problems that hypothesis draws: any gaps, any scores, any values."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops import Sink
from tests.ops.exact import EXACT_BACKENDS

MODES = {
    backend: partial(continuous_attention, scale=1.0, backend=backend) for backend in EXACT_BACKENDS
}  # fmt: skip
GAPS = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
SCORES = st.one_of(st.floats(-3.0, 3.0), st.floats(-1e4, 1e4), st.just(0.0))
VALUES = st.floats(-100.0, 100.0)


class Series(NamedTuple):
    """Scores, values and times of one query's knots."""

    scores: Tensor
    values: Tensor
    times: Tensor

    def attend(self, backend: str, **options: object) -> Tensor:
        """Outputs at all knots, or of the one query that sees all."""
        queries = len(self.scores) if options.get("is_causal") else 1
        q = torch.ones(1, 1, queries, 1, dtype=self.scores.dtype)
        k, v = (x[None, None, :, None] for x in (self.scores, self.values))
        return MODES[backend](q, k, v, self.times, **options).flatten()


@st.composite
def series(draw: st.DrawFn, scores: st.SearchStrategy[float] = SCORES) -> Series:
    knots = draw(st.lists(st.tuples(GAPS, scores, VALUES), min_size=1, max_size=9))
    gaps, a, v = torch.tensor(knots, dtype=torch.float64).unbind(dim=-1)
    return Series(a, v, gaps.cumsum(dim=0))


def assert_near(actual: Tensor, expected: Tensor, values: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-9 * (1 + values.abs().max().item()))


pytestmark = pytest.mark.parametrize("backend", EXACT_BACKENDS)
drawn = settings(max_examples=60, deadline=None, derandomize=True)


@drawn
@given(series())
def test_outputs_are_finite_and_between_the_smallest_and_the_largest_value(
    backend: str, drawn: Series
) -> None:
    out = drawn.attend(backend, is_causal=True)
    slack = 1e-9 * (1 + drawn.values.abs().max())
    assert (out >= drawn.values.min() - slack).all() and (out <= drawn.values.max() + slack).all()


@drawn
@given(series())
def test_reversing_the_clock_reverses_nothing_else(backend: str, drawn: Series) -> None:
    back = Series(drawn.scores.flip(0), drawn.values.flip(0), -drawn.times.flip(0))
    assert_near(back.attend(backend), drawn.attend(backend), drawn.values)


@drawn
@given(series(), st.floats(-50.0, 50.0))
def test_adding_one_number_to_all_scores_changes_nothing(backend: str, drawn: Series, number: float) -> None:
    # The rounding of the sum is what can be seen at scores of 1e4.
    shifted = drawn._replace(scores=(drawn.scores * 1024).round() / 1024 + round(number))
    plain = drawn._replace(scores=(drawn.scores * 1024).round() / 1024)
    assert_near(shifted.attend(backend), plain.attend(backend), drawn.values)


@drawn
@given(series(), st.floats(-3.0, 3.0), st.floats(-100.0, 100.0))
def test_the_output_is_linear_in_the_values(backend: str, drawn: Series, slope: float, shift: float) -> None:
    out = drawn._replace(values=slope * drawn.values + shift).attend(backend, is_causal=True)
    assert_near(out, slope * drawn.attend(backend, is_causal=True) + shift, drawn.values)


@drawn
@given(series(), st.data())
def test_dropping_an_inner_knot_of_a_run_at_one_time_changes_nothing(
    backend: str, drawn: Series, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(drawn.times) - 1))
    middle = data.draw(st.tuples(SCORES, VALUES))

    def put(x: Tensor, *new: float) -> Tensor:
        return torch.cat([x[: place + 1], x.new_tensor(new), x[place:][1:]])

    # A run of three knots at one time: the knot itself, one in the middle, and the knot again.
    a, v, t = (x[place].item() for x in drawn)
    run = Series(put(drawn.scores, middle[0], a), put(drawn.values, middle[1], v), put(drawn.times, t, t))
    pair = Series(put(drawn.scores, a), put(drawn.values, v), put(drawn.times, t))
    if drawn.times[-1] > drawn.times[0]:
        assert_near(run.attend(backend), pair.attend(backend), drawn.values)
        assert_near(pair.attend(backend), drawn.attend(backend), drawn.values)
    else:
        assert run.attend(backend).isfinite().all()


@drawn
@given(series(st.floats(-30.0, 30.0)), st.floats(0.0, 1.0))
def test_two_intervals_joined_at_a_query_time_make_the_whole(
    backend: str, drawn: Series, share: float
) -> None:
    """The cut tail up to T and the rest after T, weighted by their masses, give the full integral."""
    times = drawn.times
    if times[-1] == times[0]:
        return
    cut = times[0] + share * (times[-1] - times[0])
    options = {"is_causal": True, "tail": "cut", "query_times": cut[None]}
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k, v = (x[None, None, :, None] for x in (drawn.scores, drawn.values))
    before = MODES[backend](q, k, v, times, **options)
    back_options = options | {"query_times": -cut[None]}
    after = MODES[backend](q, k.flip(2), v.flip(2), -times.flip(0), **back_options)
    whole = MODES[backend](q, k, v, times)
    low, high = torch.minimum(before, after), torch.maximum(before, after)
    slack = 1e-6 * (1 + drawn.values.abs().max())
    assert low - slack <= whole <= high + slack


@drawn
@given(series(), st.floats(0.0, 1e3), st.floats(-1e4, 1e4))
def test_a_sink_is_a_knot_before_the_first(backend: str, drawn: Series, gap: float, score: float) -> None:
    sunk = drawn.attend(backend, sink=Sink(score, 3.0, gap))
    knot = Series(
        torch.cat([drawn.scores.new_tensor([score]), drawn.scores]),
        torch.cat([drawn.values.new_tensor([3.0]), drawn.values]),
        torch.cat([drawn.times[:1] - gap, drawn.times]),
    )
    if knot.times[1] - knot.times[0] == gap:  # else the knot's time was rounded
        assert_near(sunk, knot.attend(backend), drawn.values)
