"""The exact properties of the operator, each by its sentence, on many clocks, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops import Sink
from ctsattn.phi import phi1, phi2
from tests.ops.exact import (
    CLOCKS,
    EMPTY_SHAPES,
    EXACT_BACKENDS,
    SHAPES,
    Inputs,
    Shape,
    clock,
    inputs,
    integrals,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SMALL = Shape(2, 4, 2, 13, 13, 16, 8)
SQUARE = tuple(shape for shape in SHAPES if shape.queries == shape.keys)

Attention = Callable[..., Tensor]


@pytest.fixture(params=EXACT_BACKENDS)
def attention(request: pytest.FixtureRequest) -> Attention:
    return partial(continuous_attention, enable_gqa=True, backend=request.param)


def assert_equal_but_for_rounding(actual: Tensor, expected: Tensor, steps: float = 64) -> None:
    """Allow some rounding steps of the dtype, relative to the largest output."""
    size = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(
        actual, expected, rtol=0.0, atol=steps * torch.finfo(actual.dtype).eps * (size + 1e-30)
    )


def halve(x: Tensor, dim: int) -> Tensor:
    """Put the middle between any two neighbours along `dim`."""
    x = x.movedim(dim, 0)
    middles = (x[1:] + x[:-1]) / 2
    together = torch.stack([x[:-1], middles], dim=1).flatten(0, 1)
    return torch.cat([together, x[-1:]]).movedim(0, dim)


def dyadic(given: Inputs) -> Inputs:
    """Keys, values and times with so few digits that middles between neighbours are exact in every dtype."""
    q, k, v, times = given
    k, v = ((x.float() * 8).round().clamp(-15, 15).to(q.dtype) / 8 for x in (k, v))
    return Inputs(q, k, v, (times * 2**20).round() / 2**20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_1_splitting_every_piece_in_two_changes_nothing(
    attention: Attention, shape: Shape, name: str, dtype: torch.dtype
) -> None:
    given = dyadic(inputs(shape, name, dtype))
    q, k, v, times = given
    out = attention(q, halve(k, 2), halve(v, 2), halve(times, 1))
    assert_equal_but_for_rounding(out, attention(*given))


@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("where", [0, 5, 11])
def test_1_inserting_a_knot_on_a_straight_line_changes_no_output(
    attention: Attention, name: str, where: int
) -> None:
    q, k, v, times = inputs(SMALL, name, size=3.0)
    share = 0.3

    def insert(x: Tensor, dim: int) -> Tensor:
        before, after = x.narrow(dim, 0, where + 1), x.narrow(dim, where + 1, x.shape[dim] - where - 1)
        left, right = before.narrow(dim, where, 1), after.narrow(dim, 0, 1)
        knot = left + share * (right - left)
        return torch.cat([before, knot, after], dim=dim)

    out = attention(q, insert(k, 2), insert(v, 2), insert(times, 1))
    steps = 1e9 if name == "far origin" else 64  # there the time of the new knot is rounded to 1e-7 s
    assert_equal_but_for_rounding(out, attention(q, k, v, times), steps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in CLOCKS if name != "twelve orders"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_2_shifting_the_clock_changes_nothing_to_the_bit(
    attention: Attention, name: str, dtype: torch.dtype, is_causal: bool
) -> None:
    q, k, v, times = inputs(SMALL, name, dtype)
    times = ((times - times[:, :1]) * 1024).round() / 1024  # so that the shifted clock has the same gaps
    out = attention(q, k, v, times, is_causal=is_causal)
    assert torch.equal(attention(q, k, v, times + 1e9, is_causal=is_causal), out)
    ticks = (times * 1024).long()
    assert torch.equal(attention(q, k, v, ticks + 10**18, is_causal=is_causal), out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("factor", [1e-9, 60.0, 86400.0, 1e12])
def test_2_stretching_the_clock_changes_nothing(
    attention: Attention, name: str, dtype: torch.dtype, factor: float
) -> None:
    q, k, v, times = inputs(SMALL, name, dtype)
    times = times - times[:, :1]
    assert_equal_but_for_rounding(attention(q, k, v, times * factor), attention(q, k, v, times))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_3_constant_values_come_out_unchanged(
    attention: Attention, shape: Shape, name: str, dtype: torch.dtype
) -> None:
    q, k, v, times = inputs(shape, name, dtype, size=4.0)
    v = v[:, :, :1].expand_as(v)
    out = attention(q, k, v, times, is_causal=True)
    assert_equal_but_for_rounding(
        out, v[:, :, :1].repeat_interleave(shape.heads // shape.kv_heads, 1).expand_as(out), 8
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("size", [0.0, 1.0, 100.0, 1e4])
def test_3_weights_are_positive_and_outputs_lie_in_the_hull_of_the_values(
    attention: Attention, name: str, dtype: torch.dtype, size: float
) -> None:
    q, k, v, times = inputs(SMALL, name, dtype, size=size)
    weights = attention(q, k, torch.eye(13, dtype=dtype).expand(2, 2, -1, -1), times, is_causal=True)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 4, 13, dtype=dtype))
    out = attention(q, k, v, times)
    low, high = (x.values.repeat_interleave(2, dim=1)[:, :, None] for x in (v.min(dim=2), v.max(dim=2)))
    slack = 8 * torch.finfo(dtype).eps * v.abs().max()
    assert (out >= low - slack).all()
    assert (out <= high + slack).all()


@pytest.mark.parametrize("name", ["regular", "jittered", "bursty", "far origin"])
def test_3_every_knot_of_a_moderate_problem_has_weight(attention: Attention, name: str) -> None:
    q, k, _, times = inputs(SMALL, name)
    weights = attention(q, k, torch.eye(13, dtype=torch.float64).expand(2, 2, -1, -1), times)
    assert (weights > 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
def test_4_equal_scores_give_the_trapezoid_rule(attention: Attention, name: str, dtype: torch.dtype) -> None:
    q, k, v, times = inputs(SMALL, name, dtype)
    gaps = times.diff(dim=-1)
    widths = torch.nn.functional.pad(gaps, (0, 1)) + torch.nn.functional.pad(gaps, (1, 0))
    expected = torch.einsum("bn,bhnd->bhd", widths, v.double()) / widths.sum(dim=-1)[:, None, None]
    expected = expected.repeat_interleave(2, dim=1)[:, :, None].expand(-1, -1, 13, -1).to(dtype)
    assert_equal_but_for_rounding(attention(torch.zeros_like(q), k, v, times), expected, 8)
    same_keys = k[:, :, :1].expand_as(k)
    assert_equal_but_for_rounding(attention(q, same_keys, v, times), expected, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rise", [1e-30, 1e-8, 1e-3, 0.3, 1.0, 20.0, 1e2, 1e4, 1e8, 1e15])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_4_a_piece_of_any_slope_is_shared_between_its_knots_as_the_phi_functions_say(
    attention: Attention, dtype: torch.dtype, rise: float, sign: float
) -> None:
    q = torch.full((1, 1, 1, 1), sign * rise, dtype=dtype)
    k, v = (torch.tensor([[[[0.0], [1.0]]]], dtype=dtype) for _ in range(2))
    x = mpmath.mpf(sign * rise)
    # v is 0 at the left knot and 1 at the right one, so the output is the share of the right knot,
    # phi2(-x) / phi1(-x).
    with mpmath.workdps(100):
        expected = float((mpmath.expm1(-x) + x) / (-x * mpmath.expm1(-x)))
    tolerance = 16 * torch.finfo(dtype).eps
    assert attention(q, k, v, scale=1.0).item() == pytest.approx(expected, rel=tolerance, abs=1e-37)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_4_score_differences_of_ten_thousand_give_no_overflow_and_no_nan(
    attention: Attention, name: str, dtype: torch.dtype, is_causal: bool
) -> None:
    given = inputs(SMALL, name, dtype, size=1.0)
    q, k, v = (
        (x * factor).detach().requires_grad_() for x, factor in zip(given[:3], (300, 30, 1), strict=True)
    )
    times = given.times.requires_grad_()
    assert (q.float() @ k.float().repeat_interleave(2, dim=1).mT).diff(dim=-1).abs().max() * 0.25 > 5e3
    out = attention(q, k, v, times, is_causal=is_causal)
    out.float().square().sum().backward()
    assert out.isfinite().all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v, times))


def test_4_the_highest_score_among_repeated_times_has_no_weight_and_drowns_no_other(
    attention: Attention,
) -> None:
    times = torch.tensor([[0.0, 1.0, 2.0, 2.0, 2.0, 3.0]], dtype=torch.float32)
    k = torch.tensor([0.0, 1.0, 0.5, 1000.0, 0.5, 1.0]).reshape(1, 1, 6, 1)
    v = torch.tensor([0.0, 1.0, 2.0, 77.0, 2.0, 3.0]).reshape(1, 1, 6, 1)
    q = torch.ones(1, 1, 6, 1)
    keep = [0, 1, 2, 4, 5]
    expected = attention(q, k[:, :, keep], v[:, :, keep], times[:, keep], scale=1.0)
    torch.testing.assert_close(attention(q, k, v, times, scale=1.0), expected)
    # Query 3 sits at that knot: the pieces before it are all that it sees.
    causal = attention(q, k, v, times, is_causal=True, scale=1.0)
    torch.testing.assert_close(causal[:, :, 3], causal[:, :, 2])


def change_after(given: Inputs, knot: int) -> Inputs:
    """The same problem with other keys, values and times after a knot."""
    q, k, v, times = (x.clone() for x in given)
    k[:, :, knot + 1 :] = 7.0
    v[:, :, knot + 1 :] = -3.0
    times[:, knot + 1 :] = times[:, knot + 1 :] * 1.7 + 3.1
    return Inputs(q, k, v, times)


def gradients_of_the_first(
    attention: Attention, given: Inputs, queries: int, **options: object
) -> list[Tensor]:
    """Output of the first queries, and its gradients to q, k, v and times."""
    leaves = [x.clone().requires_grad_() for x in given]
    out = attention(*leaves, **options)[:, :, :queries]
    out.float().square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("sink", [None, Sink()], ids=["no sink", "sink"])
def test_5_an_output_depends_on_no_later_knot_to_the_bit_in_value_and_in_gradient(
    attention: Attention, name: str, dtype: torch.dtype, sink: Sink | None
) -> None:
    given = inputs(SMALL, name, dtype)
    now = gradients_of_the_first(attention, given, 6, is_causal=True, sink=sink)
    changed = gradients_of_the_first(attention, change_after(given, 5), 6, is_causal=True, sink=sink)
    assert len(now) == 5
    assert torch.equal(now[0], changed[0])
    for before, after in zip(now[1:], changed[1:], strict=True):
        assert torch.equal(before, after)
    assert all((x[..., 6:, :] == 0).all() for x in now[2:4])
    assert (now[4][:, 6:] == 0).all()


@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("tail", ["observed", "hold"])
@pytest.mark.parametrize("interval", ["left", "symmetric"])
@pytest.mark.parametrize("sink", [None, Sink()], ids=["no sink", "sink"])
def test_5_at_query_times_observed_and_hold_depend_on_no_later_knot_to_the_bit(
    attention: Attention, name: str, tail: str, interval: str, sink: Sink | None
) -> None:
    given = inputs(SMALL, name)
    now = given.times[:, 5:6]
    query_times = torch.cat([now - 1.0, now, (now + given.times[:, 6:7]) / 2], dim=-1)
    query_times = torch.cat([query_times, query_times.new_full((2, 10), 1e12)], dim=-1)
    changed = change_after(given, 5)
    changed.times[:, 6:] = torch.maximum(changed.times[:, 6:], given.times[:, 6:7])
    options = {
        "is_causal": True,
        "query_times": query_times,
        "tail": tail,
        "interval": interval,
        "sink": sink,
    }
    before = gradients_of_the_first(attention, given, 3, **options)
    after = gradients_of_the_first(attention, changed, 3, **options)
    if name == "repeated":  # the knots after the fifth may be at its time, then they are not later
        visible = (given.times[:, 6] > now[:, 0]) & (changed.times[:, 6] > now[:, 0])
        before, after = ([x[visible] for x in pair] for pair in (before, after))
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_5_the_cut_tail_is_not_causal_and_says_so(attention: Attention) -> None:
    given = inputs(SMALL)
    query_times = (given.times[:, 5:6] + given.times[:, 6:7]).expand(-1, 13) / 2
    options = {"is_causal": True, "query_times": query_times, "tail": "cut"}
    k = given.k.clone()
    k[:, :, 6] += 1.0
    assert not torch.allclose(attention(*given, **options), attention(*given._replace(k=k), **options))
    assert "Not causal" in (continuous_attention.__doc__ or "")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sink", [None, Sink(gap=0.4), Sink("first", "first", "median")], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_6_a_padded_batch_equals_the_rows_alone(
    attention: Attention, dtype: torch.dtype, sink: Sink | None, is_causal: bool
) -> None:
    q, k, v, times = inputs(SMALL, dtype=dtype)
    lengths = (8, 13)
    mask = torch.arange(13) < torch.tensor(lengths)[:, None]
    k, v = (x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (k, v))
    out = attention(
        q, k, v, times.masked_fill(~mask, torch.nan), key_mask=mask, is_causal=is_causal, sink=sink
    )
    for row, length in enumerate(lengths):
        alone = attention(
            *(x[row : row + 1, :, :length] for x in (q, k, v)), times[row : row + 1, :length],
            is_causal=is_causal, sink=sink,
        )  # fmt: skip
        assert_equal_but_for_rounding(out[row : row + 1, :, :length], alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sink", [None, Sink(gap=0.4), Sink("first", "first", "median")], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("has_times", [True, False])
def test_6_masked_tokens_equal_removed_tokens(
    attention: Attention, dtype: torch.dtype, sink: Sink | None, is_causal: bool, has_times: bool
) -> None:
    q, k, v, times = inputs(SMALL, dtype=dtype)
    keep = torch.tensor([1, 2, 5, 6, 7, 11])
    mask = torch.zeros(13, dtype=torch.bool)
    mask[keep] = True
    poisoned = (x.masked_fill(~mask[:, None], torch.nan) for x in (k, v))
    clock_with_holes = times.masked_fill(~mask, torch.nan) if has_times else None
    out = attention(q, *poisoned, clock_with_holes, key_mask=mask, is_causal=is_causal, sink=sink)
    removed = [x[:, :, keep] for x in (q, k, v)]
    expected = attention(*removed, times[:, keep] if has_times else None, is_causal=is_causal, sink=sink)
    assert_equal_but_for_rounding(out[:, :, keep], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sink", [None, Sink(gap=0.4), Sink("first", "first", 0.3)], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("interval", ["left", "symmetric"])
def test_6_a_packed_batch_equals_the_rows_alone(
    attention: Attention, dtype: torch.dtype, sink: Sink | None, is_causal: bool, interval: str
) -> None:
    q, k, v, _ = inputs(SMALL, dtype=dtype)
    borders = [0, 4, 4, 5, 13]
    times = torch.cat([clock("jittered", 2, 4), clock("bursty", 2, 1), clock("repeated", 2, 8)], dim=1)
    options = {"is_causal": is_causal, "sink": sink, "interval": interval}
    out = attention(q, k, v, times, cu_seqlens=torch.tensor(borders), **options)
    for begin, end in pairwise(borders):
        alone = attention(*(x[:, :, begin:end] for x in (q, k, v)), times[:, begin:end], **options)
        assert_equal_but_for_rounding(out[:, :, begin:end], alone)


PACKED_TIMES = torch.cat([clock("jittered", 2, 4), clock("bursty", 2, 1), clock("repeated", 2, 8)], dim=1)
BORDERS, QUERY_BORDERS = (0, 4, 4, 5, 13), (0, 3, 5, 9, 11)


def assert_packed_queries_equal_the_rows_alone(
    attention: Attention, query_times: Tensor | None, **options: object
) -> None:
    """Queries packed with borders of their own, against each series alone, masked tokens included."""
    q, k, v, _ = inputs(SMALL._replace(queries=11))
    mask = torch.tensor([1, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1], dtype=torch.bool)
    packed = {
        "cu_seqlens": torch.tensor(BORDERS),
        "cu_seqlens_q": torch.tensor(QUERY_BORDERS, dtype=torch.int32),
    }
    for visible in (None, mask):
        at = {} if query_times is None else {"query_times": query_times}
        out = attention(q, k, v, PACKED_TIMES, key_mask=visible, **at, **packed, **options)
        for (begin, end), (first, last) in zip(pairwise(BORDERS), pairwise(QUERY_BORDERS), strict=True):
            own = {} if query_times is None else {"query_times": query_times[:, first:last]}
            alone = attention(
                q[:, :, first:last], *(x[:, :, begin:end] for x in (k, v)), PACKED_TIMES[:, begin:end],
                key_mask=None if visible is None else visible[begin:end], **own, **options,
            )  # fmt: skip
            assert_equal_but_for_rounding(out[:, :, first:last], alone)


@pytest.mark.parametrize("sink", [None, Sink(0.2, 1.0, 0.4)], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("interval", ["left", "symmetric"])
@pytest.mark.parametrize("tail", ["observed", "hold", "cut"])
def test_6_packed_queries_with_times_of_their_own_equal_the_rows_alone(
    attention: Attention, sink: Sink | None, is_causal: bool, interval: str, tail: str
) -> None:
    query_times = torch.rand(2, 11, dtype=torch.float64) * 4 - 0.5  # before, between and after the keys
    options = {"sink": sink, "is_causal": is_causal, "interval": interval, "tail": tail}
    assert_packed_queries_equal_the_rows_alone(attention, query_times, **options)


@pytest.mark.parametrize("is_causal", [True, False])
def test_6_packed_queries_of_another_number_than_keys_equal_the_rows_alone(
    attention: Attention, is_causal: bool
) -> None:
    assert_packed_queries_equal_the_rows_alone(attention, None, is_causal=is_causal, sink=Sink())


@pytest.mark.parametrize("sink", [None, Sink("first", 0.0, 0.7)], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_6_masked_tokens_in_a_packed_batch_equal_removed_tokens(
    attention: Attention, sink: Sink | None, is_causal: bool
) -> None:
    q, k, v, times = inputs(SMALL)
    mask = torch.tensor([1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0], dtype=torch.bool)
    borders, options = [0, 4, 6, 13], {"is_causal": is_causal, "sink": sink}
    out = attention(q, k, v, times, key_mask=mask, cu_seqlens=torch.tensor(borders), **options)
    for begin, end in pairwise(borders):
        keep = begin + mask[begin:end].nonzero().squeeze(-1)
        alone = attention(*(x[:, :, keep] for x in (q, k, v)), times[:, keep], **options)
        assert_equal_but_for_rounding(out[:, :, keep], alone)


@pytest.mark.parametrize("shape", SQUARE, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
def test_6_a_causal_output_is_the_bidirectional_one_of_the_knots_so_far(
    attention: Attention, shape: Shape, name: str
) -> None:
    q, k, v, times = inputs(shape, name)
    out = attention(q, k, v, times, is_causal=True)
    for i in {0, 1, shape.keys // 2, shape.keys - 1} & set(range(shape.keys)):
        alone = attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], times[:, : i + 1])
        assert_equal_but_for_rounding(out[:, :, i : i + 1], alone)


def smooth(times: Tensor, width: int, seed: int, roughness: float = 1.0) -> Tensor:
    """Smooth random functions on [0, 1], sampled at `times`: `[1, 1, length, width]`."""
    generator = np.random.default_rng(seed)
    frequency, phase = generator.normal(size=(2, width, 4)) * np.array([4.0, 3.0])[:, None, None] * roughness
    waves = np.sin(frequency * times.numpy()[:, None, None] + phase).sum(axis=-1)
    return torch.from_numpy(waves)[None, None]


def uneven(count: int, seed: int) -> Tensor:
    """An irregular grid on [0, 1], dense at the left and jittered, of mean gap `1 / count`."""
    jitter = np.random.default_rng(seed).uniform(-0.4, 0.4, count + 1)
    jitter[[0, -1]] = 0.0
    return torch.from_numpy(np.clip((np.arange(count + 1) + jitter) / count, 0, 1) ** 1.7)


def sampled(count: int, seed: int = 0) -> Inputs:
    times = uneven(count, seed)
    return Inputs(smooth(torch.zeros(1), 4, 1), smooth(times, 4, 2), smooth(times, 3, 3), times[None])


def truth() -> Tensor:
    fine = torch.linspace(0, 1, 4001, dtype=torch.float64)
    given = Inputs(smooth(torch.zeros(1), 4, 1), smooth(fine, 4, 2), smooth(fine, 3, 3), fine[None])
    return integrals(given, torch.zeros(1, 1), torch.ones(1, 1))


def test_9_refining_an_irregular_grid_converges_at_second_order_and_softmax_does_not_converge(
    attention: Attention,
) -> None:
    counts, exact = [16, 32, 64, 128, 256, 512], truth()
    errors, softmax_errors = [], []
    for count in counts:
        runs = [sampled(count, seed) for seed in range(8)]
        errors.append(np.mean([(attention(*run) - exact).abs().max() for run in runs]))
        softmax = [torch.nn.functional.scaled_dot_product_attention(*run[:3]) for run in runs]
        softmax_errors.append(np.mean([(out - exact).abs().max() for out in softmax]))
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert 1.8 < order < 2.2
    assert softmax_errors[-1] > 0.5 * softmax_errors[0]
    assert softmax_errors[-1] > 1000 * errors[-1]


@pytest.mark.parametrize("count", [64, 128, 256])
def test_10_a_smooth_signal_at_rates_1_2_4_and_irregular_gives_outputs_that_differ_by_the_gap_squared(
    attention: Attention, count: int
) -> None:
    q = smooth(torch.zeros(1), 4, 1)
    grids = [torch.linspace(0, 1, rate * count + 1, dtype=torch.float64) for rate in (1, 2, 4)]
    grids.append(uneven(count, 0))
    outs = [attention(q, smooth(grid, 4, 2), smooth(grid, 3, 3), grid[None]) for grid in grids]
    gap = max(grid.diff().max().item() for grid in grids)
    assert all((out - outs[0]).abs().max() < 8 * gap**2 for out in outs[1:])


def test_8_phi1_less_phi2_is_the_exponential_times_phi2_of_the_negative_so_both_ends_share_a_piece() -> None:
    x = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    torch.testing.assert_close(phi1(x) - phi2(x), x.exp() * phi2(-x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_no_rows_no_heads_no_queries_and_no_keys_give_empty_outputs_or_zeros(
    attention: Attention, shape: Shape, dtype: torch.dtype, is_causal: bool
) -> None:
    q, k, v, times = inputs(shape, dtype=dtype)
    q.requires_grad_()
    out = attention(q, k, v, times, is_causal=is_causal)
    assert out.shape == (shape.batch, shape.heads, shape.queries, shape.value_dim)
    assert out.dtype == dtype
    assert (out == 0).all()
    out.sum().backward()
    assert q.grad is not None and (q.grad == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_narrow_dtype_is_as_exact_as_its_rounding(
    attention: Attention, shape: Shape, name: str, dtype: torch.dtype, is_causal: bool
) -> None:
    given = inputs(shape, name, dtype)
    out = attention(*given, is_causal=is_causal and shape.queries == shape.keys)
    wide = Inputs(*(x.double() for x in given))
    truth = continuous_attention(
        *wide, is_causal=is_causal and shape.queries == shape.keys, enable_gqa=True, backend="reference"
    )
    assert out.dtype == dtype
    assert_equal_but_for_rounding(
        out.double(), truth, steps=32 * torch.finfo(dtype).eps / torch.finfo(torch.float64).eps
    )
