"""Is the definition right: the operator against quadrature of the integrals it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from ctsattn import continuous_attention
from ctsattn.ops import Sink
from tests.ops.exact import CLOCKS, EXACT_BACKENDS, SHAPES, Inputs, Shape, inputs, integrals

SMALL = Shape(2, 4, 2, 6, 6, 8, 3)
DISTINCT_CLOCKS = tuple(name for name in CLOCKS if name != "repeated")


@pytest.fixture(params=EXACT_BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def adaptive(given: Inputs, begin: float, end: float, scale: float) -> np.ndarray:
    """The quotient of integrals for the only query, by adaptive quadrature."""
    q, k, v, times = (x.squeeze().double().numpy() for x in given)

    def weight(s: float) -> float:
        return float(np.exp(scale * sum(a * np.interp(s, times, row) for a, row in zip(q, k.T, strict=True))))

    def integrate(row: np.ndarray | None) -> float:
        inside = [t for t in times if begin < t < end]
        value = (lambda s: 1.0) if row is None else (lambda s: float(np.interp(s, times, row)))
        return quad(lambda s: weight(s) * value(s), begin, end, points=inside, epsabs=0, epsrel=1e-12)[0]

    return np.array([integrate(row) for row in v.T]) / integrate(None)


@pytest.mark.parametrize("seed", range(4))
def test_the_operator_is_the_quotient_of_two_adaptive_quadratures(backend: str, seed: int) -> None:
    given = inputs(Shape(1, 1, 1, 1, 5, 4, 2), seed=seed, size=3.0)
    expected = adaptive(given, given.times[0, 0].item(), given.times[0, -1].item(), 0.5)
    out = continuous_attention(*given, scale=0.5, backend=backend)
    np.testing.assert_allclose(out[0, 0, 0].numpy(), expected, rtol=1e-11)


@pytest.mark.parametrize("name", DISTINCT_CLOCKS)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_without_causality_a_query_integrates_over_all_knots(backend: str, shape: Shape, name: str) -> None:
    given = inputs(shape, name, size=2.0)
    begin, end = (given.times[:, [i]].expand(-1, shape.queries) for i in (0, -1))
    out = continuous_attention(*given, enable_gqa=True, backend=backend)
    torch.testing.assert_close(out, integrals(given, begin, end), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", DISTINCT_CLOCKS)
@pytest.mark.parametrize("shape", [s for s in SHAPES[1:] if s.queries == s.keys], ids=str)
def test_a_causal_query_integrates_from_the_first_knot_to_its_own(
    backend: str, shape: Shape, name: str
) -> None:
    given = inputs(shape, name, size=2.0)
    out = continuous_attention(*given, is_causal=True, enable_gqa=True, backend=backend)
    expected = integrals(given, given.times[:, :1].expand_as(given.times), given.times)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


def test_unit_gaps_are_the_clock_when_no_times_are_given(backend: str) -> None:
    given = inputs(SMALL, "regular")
    out = continuous_attention(*given[:3], is_causal=True, enable_gqa=True, backend=backend)
    assert torch.equal(out, continuous_attention(*given, is_causal=True, enable_gqa=True, backend=backend))


def test_the_sink_of_zeros_is_the_posts_knot_at_time_zero(backend: str) -> None:
    given = inputs(SMALL, "regular")
    out = continuous_attention(*given[:3], is_causal=True, sink=Sink(), enable_gqa=True, backend=backend)
    knots = Inputs(
        given.q,
        torch.nn.functional.pad(given.k, (0, 0, 1, 0)),
        torch.nn.functional.pad(given.v, (0, 0, 1, 0)),
        torch.arange(7.0, dtype=torch.float64).expand(2, -1),
    )
    expected = integrals(knots, torch.zeros(2, 6), torch.arange(1.0, 7.0).expand(2, -1))
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


QUERY_TIMES = torch.tensor(
    [[0.0, 1.0, 1.7, 4.0, 5.5, 9.0], [1.2, 1.9, 2.1, 2.2, 7.0, 8.0]], dtype=torch.float64
)
KEY_TIMES = torch.tensor(
    [[1.0, 1.5, 3.0, 4.0, 6.0, 7.0], [1.1, 1.3, 2.0, 3.0, 6.0, 8.0]], dtype=torch.float64
)


def last_at_or_before(times: torch.Tensor, query_times: torch.Tensor) -> torch.Tensor:
    """Time of the last knot at or before each query, the first knot's where there is none."""
    seen = (times[:, None] <= query_times[..., None]).sum(dim=-1)
    return times.gather(-1, (seen - 1).clamp(min=0))


@pytest.mark.parametrize("tail", ["observed", "hold", "cut"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_tail_says_where_the_interval_of_a_query_ends(backend: str, tail: str, is_causal: bool) -> None:
    given, query_times = inputs(SMALL)._replace(times=KEY_TIMES), QUERY_TIMES
    times = given.times
    out = continuous_attention(
        *given, query_times=query_times, is_causal=is_causal, tail=tail, enable_gqa=True, backend=backend
    )
    begin, final = times[:, :1].expand(-1, 6), times[:, -1:].expand(-1, 6)
    if tail == "hold" and is_causal:
        expected = held_until(given, query_times)
    elif tail == "hold":
        expected = integrals(given, begin, torch.maximum(query_times, final))
    elif tail == "cut":
        expected = integrals(given, begin, torch.minimum(query_times, final))
    else:
        expected = integrals(given, begin, last_at_or_before(times, query_times) if is_causal else final)
    if is_causal or tail == "cut":
        expected = expected.where((query_times >= begin)[:, None, :, None], 0.0)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


def held_until(given: Inputs, end: torch.Tensor) -> torch.Tensor:
    """Integrals from the first knot to `end`, where the last knot at or before `end` is held constant."""
    out = torch.zeros(*given.q.shape[:3], given.v.shape[-1], dtype=torch.float64)
    for b, i in np.ndindex(*end.shape):
        seen = max(int((given.times[b] <= end[b, i]).sum()), 1)
        row, knots, query = slice(b, b + 1), slice(0, seen), slice(i, i + 1)
        one = Inputs(
            given.q[row, :, query], given.k[row, :, knots], given.v[row, :, knots], given.times[row, knots]
        )
        out[row, :, query] = integrals(one, one.times[:, :1], end[row, query])
    return out


def test_the_symmetric_interval_runs_from_middle_to_middle(backend: str) -> None:
    given = inputs(SMALL)
    middles = (given.times[:, 1:] + given.times[:, :-1]) / 2
    begin, end = middles[:, :1].expand(-1, 6), middles[:, -1:].expand(-1, 6)
    out = continuous_attention(*given, interval="symmetric", enable_gqa=True, backend=backend)
    torch.testing.assert_close(out, integrals(given, begin, end), rtol=1e-10, atol=1e-12)


def test_the_symmetric_interval_with_unit_gaps_after_a_sink_runs_from_a_half_to_t_and_a_half(
    backend: str,
) -> None:
    """Literally the interval of the design page: the sink at 0, then 1, 2, …"""
    given = inputs(SMALL)
    out = continuous_attention(
        *given[:3], is_causal=True, sink=Sink(), interval="symmetric", tail="cut", enable_gqa=True,
        backend=backend,
    )  # fmt: skip
    k, v = (torch.nn.functional.pad(x, (0, 0, 1, 0)) for x in given[1:3])
    knots = Inputs(given.q[:, :, :5], k, v, torch.arange(7.0).double().expand(2, -1))
    expected = integrals(knots, torch.full((2, 5), 0.5), torch.arange(1.5, 6.5).expand(2, -1))
    torch.testing.assert_close(out[:, :, :5], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tail", ["observed", "hold", "cut"])
def test_the_symmetric_interval_of_a_causal_query_ends_half_a_piece_from_its_knot(
    backend: str, tail: str
) -> None:
    given = inputs(SMALL)
    middles = (given.times[:, 1:] + given.times[:, :-1]) / 2
    out = continuous_attention(
        *given, is_causal=True, interval="symmetric", tail=tail, enable_gqa=True, backend=backend
    )
    inner = given._replace(q=given.q[:, :, 2:5])
    begin = middles[:, :1].expand(-1, 3)
    if tail == "hold":
        columns = []
        for i in (2, 3, 4):
            one = Inputs(
                given.q[:, :, i : i + 1], *(x[..., : i + 1, :] for x in given[1:3]), given.times[:, : i + 1]
            )
            columns.append(integrals(one, begin[:, :1], 1.5 * one.times[:, -1:] - 0.5 * one.times[:, -2:-1]))
        expected = torch.cat(columns, dim=2)
    else:
        expected = integrals(inner, begin, middles[:, 2:5] if tail == "cut" else middles[:, 1:4])
    torch.testing.assert_close(out[:, :, 2:5], expected, rtol=1e-10, atol=1e-12)
