"""Each mixer's operator against its closed form: quadrature, formulas of the papers, matrix exponentials."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec
from scipy.linalg import expm
from torch import Tensor

from ctsattn.nn import MIXERS, MixerConfig
from ctsattn.nn.mixers import AttentionMixer
from ctsattn.nn.mixers.base import Heads, SinkToken
from ctsattn.nn.mixers.delta import exact_flow_strength
from ctsattn.nn.mixers.ssm import first_order_hold, zero_order_hold
from ctsattn.ops.scan import delta_scan, linear_scan

F64 = torch.float64


def attention(name: str) -> AttentionMixer:
    mixer = MIXERS[name](MixerConfig(8, num_heads=2))
    assert isinstance(mixer, AttentionMixer)
    return mixer.double()


def make_heads(
    length: int = 6, queries: int | None = None, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q = torch.randn(2, 2, queries or length, 4, dtype=F64) * spread
    k, v = (torch.randn(2, 2, length, 4, dtype=F64) for _ in range(2))
    return q, k, v, torch.rand(2, length, dtype=F64).add(0.2).cumsum(dim=1)


def by_quadrature(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> np.ndarray:
    """The attention integral of one query over straight lines between keys and values."""
    knots = times.numpy()

    def integrand(s: float) -> np.ndarray:
        key, value = (np.array([np.interp(s, knots, column) for column in x.numpy().T]) for x in (k, v))
        weight = np.exp(q.numpy() @ key / np.sqrt(len(key)))
        return np.append(weight * value, weight)

    total, _ = quad_vec(integrand, knots[0], knots[-1], epsabs=1e-12, epsrel=1e-12, points=knots)
    return total[:-1] / total[-1]


@pytest.mark.parametrize("name", ["continuous", "continuous_unit"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_continuous_attention_is_the_integral(name, is_causal):
    q, k, v, times = make_heads()
    out = attention(name).attend(Heads(q, k, v, times), is_causal)
    clock = times if name == "continuous" else torch.arange(6, dtype=F64).expand(2, 6)
    seen = 4 if is_causal else 6
    expected = by_quadrature(q[1, 0, 3], k[1, 0, :seen], v[1, 0, :seen], clock[1, :seen])
    np.testing.assert_allclose(out[1, 0, 3].numpy(), expected, rtol=1e-9)


def continuum_attention(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
    """Trapezoid rule on exp(a) and exp(a) v, for one query, as Continuum Attention has it."""
    score = (k @ q / len(q) ** 0.5).exp()
    gaps = times.diff()
    mass = (gaps * (score[1:] + score[:-1]) / 2).sum()
    weighted = score[:, None] * v
    return (gaps[:, None] * (weighted[1:] + weighted[:-1]) / 2).sum(dim=0) / mass


@pytest.mark.parametrize("is_causal", [True, False])
def test_trapezoid_is_continuum_attention(is_causal):
    q, k, v, times = make_heads()
    out = attention("trapezoid").attend(Heads(q, k, v, times), is_causal)
    for query in range(1, 6):
        seen = query + 1 if is_causal else 6
        expected = continuum_attention(q[0, 1, query], k[0, 1, :seen], v[0, 1, :seen], times[0, :seen])
        torch.testing.assert_close(out[0, 1, query], expected, rtol=1e-12, atol=1e-12)


def test_trapezoid_has_the_sink_as_a_knot_before_the_first():
    q, k, v, times = make_heads()
    mixer = attention("trapezoid")
    sink = SinkToken(torch.randn(2, 2, 4, dtype=F64), torch.randn(2, 2, 4, dtype=F64), mixer.config.gap)
    out = mixer.attend(Heads(q, k, v, times, None, sink), True)
    with_sink = [torch.cat([s[:, :, None], x], dim=2)[0, 1, :4] for s, x in ((sink.key, k), (sink.value, v))]
    clock = torch.cat([times[:, :1] - mixer.config.gap, times], dim=1)[0, :4]
    expected = continuum_attention(q[0, 1, 2], *with_sink, clock)
    torch.testing.assert_close(out[0, 1, 2], expected, rtol=1e-12, atol=1e-12)


def test_equal_scores_make_trapezoid_and_integral_one():
    q, k, v, times = make_heads()
    k = k[:, :, :1].expand_as(k).contiguous()
    outs = [attention(name).attend(Heads(q, k, v, times), True) for name in ("trapezoid", "continuous")]
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-12, atol=1e-12)


def densify(x: Tensor, pieces: int, dim: int) -> Tensor:
    """Cut every piece of a broken line into equal ones."""
    x = x.movedim(dim, -1)
    share = torch.arange(pieces, dtype=F64) / pieces
    inner = (x[..., :-1, None] + x.diff(dim=-1)[..., None] * share).flatten(-2)
    return torch.cat([inner, x[..., -1:]], dim=-1).movedim(-1, dim)


def test_trapezoid_on_densified_lines_goes_to_the_integral_at_second_order():
    q, k, v, times = make_heads(queries=3)
    exact = attention("continuous").attend(Heads(q, k, v, times), False)
    errors = []
    for pieces in (4, 8, 16):
        finer = (densify(k, pieces, 2), densify(v, pieces, 2), densify(times, pieces, 1))
        errors.append((attention("trapezoid").attend(Heads(q, *finer), False) - exact).abs().max().item())
    assert errors[1] < errors[0] / 3.5
    assert errors[2] < errors[1] / 3.5


@pytest.mark.parametrize("is_causal", [True, False])
def test_first_order_is_off_by_the_square_of_the_scores(is_causal):
    errors = []
    for spread in (0.2, 0.1):
        torch.manual_seed(1)
        q, k, v, times = make_heads(spread=spread)
        args = (Heads(q, k, v, times), is_causal)
        exact, approximate, trapezoid = (
            attention(name).attend(*args) for name in ("continuous", "first_order", "trapezoid")
        )
        errors.append((approximate - exact).abs().max().item())
    assert errors[1] < errors[0] / 3.5
    assert errors[1] < 0.1 * (trapezoid - exact).abs().max().item()


@pytest.mark.parametrize("is_causal", [True, False])
def test_key_filter_with_the_spline_taps_is_the_first_order_form_inside(is_causal):
    q, k, v, times = make_heads(length=7)
    mixer = attention("key_filter")
    with torch.no_grad():
        mixer.taps.copy_(torch.tensor([1.0, 4.0, 1.0], dtype=F64) / 6)
    before = torch.cat([k[:, :, :1], k[:, :, :-1]], dim=2)
    after = torch.cat([k[:, :, 1:], k[:, :, -1:]], dim=2)
    out = mixer.attend(Heads(q, k, v, times), is_causal)
    scores = q @ (before + 4 * k + after).mT / 12
    if is_causal:
        scores = scores.diagonal_scatter((q * (before + 5 * k)).sum(-1) / 12, dim1=-2, dim2=-1)
        scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(out, scores.softmax(-1) @ v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["key_filter", "short_conv"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_learned_filters_start_as_softmax_attention(name, is_causal):
    q, k, v, times = make_heads()
    sink = SinkToken(torch.randn(2, 2, 4, dtype=F64), torch.randn(2, 2, 4, dtype=F64), 1.0)
    args = (Heads(q, k, v, times, None, sink), is_causal)
    torch.testing.assert_close(attention(name).attend(*args), attention("softmax").attend(*args))


@pytest.mark.parametrize("is_causal", [True, False])
def test_short_convolution_filters_the_scores_of_queries_and_keys(is_causal):
    q, k, v, times = make_heads(length=5)
    mixer = attention("short_conv")
    with torch.no_grad():
        mixer.kernel.copy_(torch.randn_like(mixer.kernel))
    scores = q @ k.mT / 2
    if is_causal:
        scores = scores.tril()
    filtered = torch.zeros_like(scores)
    for query in range(5):
        for key in range(5):
            for back in range(min(query, 2) + 1):
                for step in range(max(-2, -key), min(2, 4 - key) + 1):
                    tap = mixer.kernel[:, 0, 2 - back, 2 + step].detach()
                    filtered[:, :, query, key] += tap * scores[:, :, query - back, key + step]
    if is_causal:
        filtered = filtered.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    out = mixer.attend(Heads(q, k, v, times), is_causal)
    torch.testing.assert_close(out, filtered.softmax(-1) @ v, rtol=1e-12, atol=1e-12)


def test_softmax_with_a_zero_sink_is_softmax_off_by_one():
    q, k, v, times = make_heads()
    zero = torch.zeros(2, 2, 4, dtype=F64)
    out = attention("softmax").attend(Heads(q, k, v, times, None, SinkToken(zero, zero, 1.0)), False)
    weight = (q @ k.mT / 2).exp()
    torch.testing.assert_close(out, weight @ v / (1 + weight.sum(dim=-1, keepdim=True)))


def test_exact_flow_is_the_matrix_exponential():
    k, rate, gap = torch.randn(5, dtype=F64), torch.tensor(0.7, dtype=F64), torch.tensor(1.9, dtype=F64)
    strength = exact_flow_strength(rate, gap, k.square().sum())
    transition = torch.eye(5, dtype=F64) - strength * torch.outer(k, k)
    expected = expm(-(rate * gap * torch.outer(k, k)).numpy())
    np.testing.assert_allclose(transition, expected, rtol=1e-13, atol=1e-14)


def split_pieces(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=2)


def test_exact_flow_over_two_half_gaps_is_the_flow_over_the_whole():
    q, k, v = (torch.randn(1, 1, 7, 4, dtype=F64) for _ in range(3))
    rate, gaps = torch.rand(2, 1, 1, 7, dtype=F64).unbind()

    def run(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, gaps: Tensor) -> Tensor:
        return delta_scan(q, k, v, exact_flow_strength(rate, gaps, k.square().sum(dim=-1)))

    whole = run(q, k, v, rate, gaps)
    halves = run(*(split_pieces(x) for x in (q, k, v, rate)), split_pieces(gaps) / 2)[:, :, 1::2]
    assert (halves - whole).abs().max() < 1e-14
    euler = delta_scan(*(split_pieces(x) for x in (q, k, v)), split_pieces(rate * gaps) / 2)[:, :, 1::2]
    assert (euler - delta_scan(q, k, v, rate * gaps)).abs().max() > 1e-2


def test_exact_flow_obeys_the_semigroup_law_to_the_last_digit():
    norm, rate = torch.rand(100, dtype=F64) * 10, torch.rand(100, dtype=F64)
    first, second = torch.rand(2, 100, dtype=F64) * 3
    decay = [1 - exact_flow_strength(rate, gap, norm) * norm for gap in (first, second, first + second)]
    assert (decay[0] * decay[1] - decay[2]).abs().max() <= 4e-16


@pytest.mark.parametrize("hold", [zero_order_hold, first_order_hold])
def test_state_space_is_the_integral_of_its_input(hold):
    rate = -0.4 + 2.3j
    times = torch.tensor([0.0, 0.3, 1.1, 1.15, 2.6], dtype=F64)
    gaps = torch.cat([times.new_zeros(1), times.diff()])[None]
    inputs = torch.randn(1, 5, dtype=F64)
    states = linear_scan(*hold(gaps * rate, gaps, inputs))[0]
    knots, values = times.numpy(), inputs[0].numpy()

    def course(s: float) -> float:
        if hold is first_order_hold:
            return float(np.interp(s, knots, values))
        return float(values[np.searchsorted(knots, s, side="left")])

    for i in (1, 2, 4):
        end = knots[i]
        expected, _ = quad_vec(
            lambda s, end=end: np.exp(rate * (end - s)) * course(s), 0.0, end, epsabs=1e-12, points=knots[1:i]
        )
        np.testing.assert_allclose(complex(states[i]), expected, rtol=1e-10)


def test_first_order_hold_does_not_notice_a_token_on_the_line():
    rate, times = -0.3 + 1.0j, torch.tensor([0.0, 1.0, 3.0], dtype=F64)
    inputs = torch.tensor([0.5, 2.0, -1.0], dtype=F64)
    finer_times, finer = densify(times, 4, 0), densify(inputs, 4, 0)

    def run(times: Tensor, inputs: Tensor) -> Tensor:
        gaps = torch.cat([times.new_zeros(1), times.diff()])[None]
        return linear_scan(*first_order_hold(gaps * rate, gaps, inputs[None]))[0]

    torch.testing.assert_close(run(finer_times, finer)[::4], run(times, inputs), rtol=1e-13, atol=1e-14)
