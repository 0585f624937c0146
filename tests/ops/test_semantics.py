"""Edge cases of `continuous_attention`, and the errors that help."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops import Sink
from tests.ops.exact import Shape, inputs

SMALL = Shape(2, 4, 2, 6, 6, 8, 3)


def attention(*args: Tensor | None, **options: object) -> Tensor:
    return continuous_attention(*args, enable_gqa=True, backend="reference", **options)


def test_a_query_that_sees_one_knot_gets_its_value() -> None:
    q, k, v, times = inputs(SMALL)
    out = attention(q, k[:, :, :1], v[:, :, :1], times[:, :1])
    torch.testing.assert_close(out, v[:, :, :1].repeat_interleave(2, dim=1).expand(-1, -1, 6, -1))


@pytest.mark.parametrize("is_causal", [True, False])
def test_knots_that_are_all_at_one_time_have_the_limit_of_unit_gaps(is_causal: bool) -> None:
    q, k, v, _ = inputs(SMALL)
    limit = attention(q, k, v, torch.full((6,), 3.0), is_causal=is_causal)
    torch.testing.assert_close(limit, attention(q, k, v, is_causal=is_causal))
    for gap in (1e-3, 1e-6):
        close = attention(q, k, v, 3.0 + gap * torch.arange(6.0, dtype=torch.float64), is_causal=is_causal)
        torch.testing.assert_close(limit, close, rtol=1e-6, atol=1e-6)


def test_a_causal_query_before_the_clock_moves_has_that_limit_and_later_ones_do_not() -> None:
    q, k, v, _ = inputs(SMALL)
    times = torch.tensor([5.0, 5.0, 5.0, 6.0, 6.0, 8.0])
    out = attention(q, k, v, times, is_causal=True)
    torch.testing.assert_close(out[:, :, :3], attention(q, k, v, is_causal=True)[:, :, :3])
    # From the fourth knot on, the second has no weight and no influence.
    without = attention(q[:, :, 3:], k[:, :, [0, 2, 3]], v[:, :, [0, 2, 3]], times[[0, 2, 3]])
    torch.testing.assert_close(out[:, :, 3], without[:, :, 0])


def test_the_limit_has_the_gradient_of_unit_gaps() -> None:
    q, k, v, _ = inputs(SMALL)
    q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    at_once = attention(q, k, v, torch.zeros(6), is_causal=True).square().sum()
    spread = attention(q, k, v, is_causal=True).square().sum()
    for x in (q, k, v):
        actual, expected = (torch.autograd.grad(y, x, retain_graph=True)[0] for y in (at_once, spread))
        torch.testing.assert_close(actual, expected)


def test_a_row_whose_keys_are_all_masked_gets_zeros_or_the_sink() -> None:
    q, k, v, times = inputs(SMALL)
    mask = torch.tensor([[True] * 6, [False] * 6])
    out = attention(q, k, v, times, key_mask=mask)
    assert (out[1] == 0).all() and (out[0] != 0).any()
    out = attention(q, k, v, times, key_mask=mask, sink=Sink(0.0, 2.5))
    torch.testing.assert_close(out[1], torch.full_like(out[1], 2.5))
    assert (attention(q, k, v, times, key_mask=mask, sink=Sink("first", "first"))[1] == 0).all()


def test_nothing_that_stands_in_a_masked_place_reaches_a_gradient() -> None:
    q, k, v, times = inputs(SMALL)
    mask = torch.tensor([True, False, True, True, False, False])
    leaves = [x.masked_fill(~mask[:, None], torch.nan).requires_grad_() for x in (k, v)]
    times = times.masked_fill(~mask, torch.inf).requires_grad_()
    attention(q, *leaves, times, key_mask=mask, is_causal=True).square().sum().backward()
    for x in leaves:
        assert x.grad is not None and x.grad.isfinite().all() and (x.grad[:, :, ~mask] == 0).all()
    assert times.grad is not None and times.grad.isfinite().all() and (times.grad[:, ~mask] == 0).all()


def test_a_query_before_the_first_observation_gets_zeros_or_the_sink() -> None:
    q, k, v, times = inputs(SMALL)
    early = times[:, :1].expand(-1, 6) - 1.0
    for tail in ("observed", "hold", "cut"):
        assert (attention(q, k, v, times, query_times=early, is_causal=True, tail=tail) == 0).all()
        out = attention(
            q, k, v, times, query_times=early, is_causal=True, tail=tail, sink=Sink(0.0, 2.5, 0.5)
        )
        torch.testing.assert_close(out, torch.full_like(out, 2.5))


def test_the_cut_tail_follows_the_line_from_the_sink_to_the_first_key() -> None:
    q, k, v, times = inputs(SMALL)
    between = times[:, :1].expand(-1, 6) - 0.2
    sink = Sink(0.3, 2.5, 0.5)
    out = attention(q, k, v, times, query_times=between, is_causal=True, tail="cut", sink=sink)
    key, value = (given + 0.6 * (x[:, :, :1] - given) for given, x in ((0.3, k), (2.5, v)))
    expected = attention(q, key, value, times[:, :1] - 0.2, is_causal=False, sink=Sink(0.3, 2.5, 0.3))
    torch.testing.assert_close(out, expected)


def test_query_times_equal_to_the_keys_times_see_as_much_as_queries_at_keys() -> None:
    q, k, v, times = inputs(SMALL)
    expected = attention(q, k, v, times, is_causal=True)
    for tail in ("observed", "hold", "cut"):
        out = attention(q, k, v, times, query_times=times, is_causal=True, tail=tail)
        torch.testing.assert_close(out, expected)


def test_a_query_time_sees_all_keys_at_that_time_while_a_causal_query_at_a_key_stops_at_its_number() -> None:
    q, k, v, _ = inputs(SMALL)
    times = torch.tensor([0.0, 1.0, 2.0, 2.0, 3.0, 4.0])
    by_number = attention(q, k, v, times, is_causal=True)
    by_time = attention(q, k, v, times, is_causal=True, query_times=times)
    # The piece between the two keys has no length, but a later piece starts at the second of them.
    torch.testing.assert_close(by_number[:, :, :4], by_time[:, :, :4])
    k = k.clone()
    k[:, :, 3] += 1.0
    assert torch.equal(attention(q, k, v, times, is_causal=True)[:, :, 2], by_number[:, :, 2])


@pytest.mark.parametrize(
    "dtype", [torch.int16, torch.int32, torch.int64, torch.float16, torch.float32], ids=str
)
def test_clocks_of_any_dtype_agree(dtype: torch.dtype) -> None:
    q, k, v, _ = inputs(SMALL)
    times = torch.tensor([0, 1, 3, 4, 8, 11])
    query_times = torch.tensor([0, 2, 3, 5, 8, 20])
    options = {"is_causal": True, "tail": "hold", "sink": Sink(gap=2)}
    expected = attention(q, k, v, times.double(), query_times=query_times.double(), **options)
    out = attention(q, k, v, times.to(dtype), query_times=query_times.to(dtype), **options)
    torch.testing.assert_close(out, expected)
    mixed = attention(q, k, v, times.to(dtype), query_times=query_times.double(), **options)
    torch.testing.assert_close(mixed, expected)


def test_nanoseconds_since_1970_keep_every_digit() -> None:
    q, k, v, _ = inputs(SMALL)
    gaps = torch.tensor([0, 7, 1, 12, 5, 3])
    times = 1_790_000_000_000_000_000 + gaps.cumsum(dim=0)
    expected = attention(q, k, v, gaps.cumsum(dim=0).double(), is_causal=True)
    assert torch.equal(attention(q, k, v, times, is_causal=True), expected)
    query_times, options = times + 2, {"is_causal": True, "tail": "cut"}
    out = attention(q, k, v, times, query_times=query_times, **options)
    relative = gaps.cumsum(dim=0)
    torch.testing.assert_close(out, attention(q, k, v, relative, query_times=relative + 2, **options))


def test_causal_queries_are_aligned_with_the_first_keys_as_in_stock_attention() -> None:
    q, k, v, times = inputs(SMALL)
    full = attention(q, k, v, times, is_causal=True)
    torch.testing.assert_close(attention(q[:, :, :4], k, v, times, is_causal=True), full[:, :, :4])
    more = attention(q, k[:, :, :4], v[:, :, :4], times[:, :4], is_causal=True)
    torch.testing.assert_close(more[:, :, :4], full[:, :, :4])
    torch.testing.assert_close(more[:, :, 4:], attention(q[:, :, 4:], k[:, :, :4], v[:, :, :4], times[:, :4]))


def test_grouped_heads_equal_repeated_ones_and_the_scale_multiplies_the_scores() -> None:
    q, k, v, times = inputs(SMALL)
    repeated = (x.repeat_interleave(2, dim=1) for x in (k, v))
    torch.testing.assert_close(attention(q, k, v, times), attention(q, *repeated, times))
    torch.testing.assert_close(
        attention(q, k, v, times, scale=0.1), attention(0.1 * q, k, v, times, scale=1.0)
    )
    torch.testing.assert_close(attention(q, k, v, times), attention(q, k, v, times, scale=8**-0.5))


def test_a_sink_may_be_a_tuple_numbers_tensors_of_any_fitting_shape_or_the_first_token() -> None:
    q, k, v, times = inputs(SMALL)
    expected = attention(q, k, v, times, sink=Sink())
    for key, value in ((0, 0), (k.new_zeros(8), v.new_zeros(3)), (k.new_zeros(2, 8), v.new_zeros(2, 1, 3))):
        assert torch.equal(attention(q, k, v, times, sink=(key, value, 1.0)), expected)
    whole = (k.new_zeros(2, 2, 1, 8), v.new_zeros(2, 2, 1, 3), times.new_ones(2))
    assert torch.equal(attention(q, k, v, times, sink=whole), expected)
    copied = attention(q, k, v, times, sink=(k[:, :, 0], v[:, :, 0], 0.7))
    assert torch.equal(attention(q, k, v, times, sink=("first", "first", 0.7)), copied)


def test_the_median_gap_of_the_sink_follows_the_unit_of_the_clock_and_skips_masked_tokens() -> None:
    q, k, v, _ = inputs(SMALL)
    times = torch.tensor([0.0, 1.0, 3.0, 7.0, 8.0, 20.0])
    mask = torch.tensor([True, True, True, True, False, False])
    out = attention(q, k, v, times, sink=Sink(gap="median"), key_mask=mask)
    torch.testing.assert_close(out, attention(q, k, v, times, sink=Sink(gap=2.0), key_mask=mask))
    torch.testing.assert_close(out, attention(q, k, v, times * 3600, sink=Sink(gap="median"), key_mask=mask))


def test_a_sink_without_a_gap_has_no_weight_unless_nothing_else_is_seen() -> None:
    q, k, v, times = inputs(SMALL)
    out = attention(q, k, v, times, sink=Sink(0.0, 50.0, 0.0), is_causal=True)
    torch.testing.assert_close(out[:, :, 1:], attention(q, k, v, times, is_causal=True)[:, :, 1:])


def test_dropout_drops_normalised_weights_and_keeps_their_mean() -> None:
    q, k, v, times = inputs(SMALL)
    weights = attention(q, k, torch.eye(6, dtype=v.dtype).expand(2, 2, -1, -1), times)
    torch.manual_seed(3)
    out = attention(q, k, v, times, dropout_p=0.4)
    torch.manual_seed(3)
    dropped = torch.nn.functional.dropout(weights, 0.4)
    torch.testing.assert_close(out, dropped @ v.repeat_interleave(2, dim=1))
    assert 0.2 < (dropped == 0).double().mean() < 0.6


def test_dropout_needs_the_reference_backend_and_says_so() -> None:
    q, k, v, times = inputs(SMALL)
    with pytest.raises(ValueError, match=r'cannot run here: dropout on weights.*`backend="reference"` has'):
        continuous_attention(q, k, v, times, dropout_p=0.1, enable_gqa=True, backend="first_order")


ERRORS: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "a list": ({"times": [0.0, 1.0]}, TypeError, r"`times` must be a tensor, but it is of type list"),
    "nothing": ({"q": None}, TypeError, "`q` must be a tensor, but it is of type NoneType"),
    "a mask that is a list": ({"key_mask": [True] * 6}, TypeError, "`key_mask` must be a tensor"),
    "width 0": (
        {"q": torch.zeros(2, 4, 6, 0), "k": torch.zeros(2, 2, 6, 0), "v": torch.zeros(2, 2, 6, 3)},
        ValueError,
        "`q` and `k` have the width 0",
    ),
    "scale not finite": ({"scale": float("nan")}, ValueError, "`scale` must be finite, but it is nan"),
    "scale of another type": ({"scale": torch.tensor(1.0)}, TypeError, "`scale` must be a number, .* Tensor"),
    "sink of another type": ({"sink": "first"}, TypeError, "`sink` must be a `Sink` or a tuple"),
    "sink key": (
        {"sink": (torch.zeros(3), 0, 1)},
        ValueError,
        r"`sink.key` must broadcast to the shape \[2, 2, 8\], but its shape is \[3\]",
    ),
    "sink gap shape": ({"sink": (0, 0, torch.zeros(3))}, ValueError, r"`sink.gap` must broadcast to .*\[2\]"),
    "three axes": ({"q": torch.zeros(4, 6, 8)}, ValueError, r"`q` must have the four axes.*\[4, 6, 8\]"),
    "integers": ({"k": torch.zeros(2, 2, 6, 8, dtype=torch.long)}, TypeError, "share one dtype.*int64"),
    "mixed dtypes": ({"v": torch.zeros(2, 2, 6, 3)}, TypeError, "share one dtype.*float64, .*float32"),
    "batches": (
        {"v": torch.zeros(3, 2, 6, 3, dtype=torch.float64)},
        ValueError,
        "same batch size.* 2, 2 and 3",
    ),
    "lengths": ({"v": torch.zeros(2, 2, 5, 3, dtype=torch.float64)}, ValueError, "agree in heads and length"),
    "widths": (
        {"q": torch.zeros(2, 4, 6, 7, dtype=torch.float64)},
        ValueError,
        "same width, but got 7 and 8",
    ),
    "groups": ({"q": torch.zeros(2, 3, 6, 8, dtype=torch.float64)}, ValueError, r"\(3\) that 2 divides"),
    "no groups": ({"enable_gqa": False}, ValueError, "Set `enable_gqa=True`"),
    "times shape": (
        {"times": torch.zeros(2, 5)},
        ValueError,
        r"`times` must have the shape \[2, 6\] or \[6\]",
    ),
    "times dtype": (
        {"times": torch.zeros(6, dtype=torch.bool)},
        TypeError,
        "`times` must be integer or floating",
    ),
    "falling": (
        {"times": torch.tensor([0.0, 2.0, 1.5, 3.0, 4.0, 5.0])},
        ValueError,
        "falls by 0.5 after index 1",
    ),
    "not finite": (
        {"times": torch.tensor([0.0, 1, 2, torch.nan, 4, 5])},
        ValueError,
        r"nan at index \[0, 3\]",
    ),
    "mask dtype": ({"key_mask": torch.ones(2, 6)}, TypeError, "`key_mask` must be boolean"),
    "mask shape": (
        {"key_mask": torch.ones(6, 2, dtype=torch.bool)},
        ValueError,
        "`key_mask` must have the shape",
    ),
    "query times": (
        {"times": None, "query_times": torch.zeros(6)},
        ValueError,
        "need the `times` of the keys",
    ),
    "infinite query": (
        {"query_times": torch.full((6,), torch.inf)},
        ValueError,
        "`query_times` must be finite",
    ),
    "interval": (
        {"interval": "right"},
        ValueError,
        "`interval` must be one of 'left', 'symmetric', but got 'right'",
    ),
    "tail": ({"tail": "none"}, ValueError, "`tail` must be one of 'observed', 'hold', 'cut'"),
    "backend": ({"backend": "cuda"}, ValueError, "`backend` must be one of None, 'reference'"),
    "dropout": (
        {"dropout_p": 1.0},
        ValueError,
        "`dropout_p` must be at least 0 and less than 1, but got 1.0",
    ),
    "packed queries": (
        {"cu_seqlens": torch.tensor([0, 3, 5])},
        ValueError,
        "ascend from 0 to the number of keys, 6",
    ),
    "packed dtype": (
        {"cu_seqlens": torch.tensor([0.0, 6.0])},
        ValueError,
        "`cu_seqlens` must be int32 or int64",
    ),
    "packed queries of another number": (
        {"cu_seqlens": torch.tensor([0, 6]), "q": torch.zeros(2, 4, 5, 8, dtype=torch.float64)},
        ValueError,
        "Give the borders of the queries as `cu_seqlens_q`",
    ),
    "packed queries alone": ({"cu_seqlens_q": torch.tensor([0, 6])}, ValueError, "give `cu_seqlens` too"),
    "packed queries of fewer series": (
        {"cu_seqlens": torch.tensor([0, 3, 6]), "cu_seqlens_q": torch.tensor([0, 6])},
        ValueError,
        "borders of 2 series, but `cu_seqlens_q` of 1",
    ),
    "packed queries in disorder": (
        {"cu_seqlens": torch.tensor([0, 3, 6]), "cu_seqlens_q": torch.tensor([0, 7, 6])},
        ValueError,
        r"`cu_seqlens_q` must ascend from 0 to the number of queries, 6, but got \[0, 7, 6\]",
    ),
    "sink word": ({"sink": Sink("last")}, ValueError, "`sink.key` must be a tensor, a number or"),
    "sink gap word": ({"sink": Sink(gap="mean")}, ValueError, "`sink.gap` must be a number, a tensor or"),
    "sink gap": (
        {"sink": Sink(gap=-1.0)},
        ValueError,
        "`sink.gap` must be finite and not negative, but it is -1",
    ),
    "sink gap tensor": (
        {"sink": Sink(gap=torch.tensor(-2.0))},
        ValueError,
        "must not be negative, but it is -2",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_says_what_came_and_what_to_do(case: str) -> None:
    change, kind, message = ERRORS[case]
    q, k, v, times = inputs(SMALL)
    arguments = {"q": q, "k": k, "v": v, "times": times, "enable_gqa": True, "backend": "reference"} | change
    with pytest.raises(kind, match=message):
        continuous_attention(**arguments)


def test_an_error_about_the_clock_names_the_token_as_the_user_counts_it() -> None:
    q, k, v, _ = inputs(SMALL)
    times = torch.tensor([[0.0, 9.0, 1.0, 2.0, 9.0, 1.5], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    mask = torch.tensor([True, False, True, True, False, True])
    with pytest.raises(ValueError, match=r"in row 0 it falls by 0\.5 after index 3"):
        attention(q, k, v, times, key_mask=mask)
    attention(q, k, v, times, key_mask=mask, cu_seqlens=torch.tensor([0, 5, 6]))  # a new series begins there


def test_a_backend_that_cannot_run_raises_with_the_reason() -> None:
    q, k, v, times = inputs(SMALL)
    with pytest.raises(ValueError, match=r"`backend='triton'` cannot run here: .+\. Leave `backend` out"):
        continuous_attention(q, k, v, times, enable_gqa=True, backend="triton")
