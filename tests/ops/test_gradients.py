"""Gradients of the operator against finite differences in float64, and against their formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from ctsattn import continuous_attention
from ctsattn.ops import Sink
from tests.ops.exact import CLOCKS, EXACT_BACKENDS, SHAPES, Inputs, Shape, inputs, size_of_time_terms

SHAPE = Shape(1, 2, 1, 4, 4, 2, 1)

Attention = Callable[..., Tensor]


@pytest.fixture(params=EXACT_BACKENDS)
def attention(request: pytest.FixtureRequest) -> Attention:
    return partial(continuous_attention, enable_gqa=True, backend=request.param)


def leaves(shape: Shape = SHAPE, clock_name: str = "jittered", size: float = 1.0) -> list[Tensor]:
    return [x.requires_grad_() for x in inputs(shape, clock_name, size=size)]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("interval", ["left", "symmetric"])
@pytest.mark.parametrize("size", [1.0, 8.0])
def test_7_gradcheck_for_queries_keys_values_and_times(
    attention: Attention, is_causal: bool, interval: str, size: float
) -> None:
    options = {"is_causal": is_causal, "interval": interval}
    assert gradcheck(lambda *x: attention(*x, **options), leaves(size=size))


@pytest.mark.parametrize("is_causal", [True, False])
def test_7_gradcheck_for_the_sink_and_its_gap(attention: Attention, is_causal: bool) -> None:
    q, k, v, times = leaves()
    key, value = (torch.randn(1, 1, width, dtype=torch.float64, requires_grad=True) for width in (2, 1))
    gap = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

    def with_sink(*x: Tensor) -> Tensor:
        return attention(*x[:4], sink=Sink(*x[4:]), is_causal=is_causal)

    assert gradcheck(with_sink, (q, k, v, times, key, value, gap))


@pytest.mark.parametrize(
    "rise", [0.0, 1e-9, 1e-5, 0.11, 0.12, 0.13, 0.5, 1.0 - 1e-7, 1.0, 1.0 + 1e-7, 2.0, 30.0]
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_7_gradcheck_at_equal_scores_and_across_the_branch_points(
    attention: Attention, rise: float, sign: float
) -> None:
    q = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64, requires_grad=True)
    scores = torch.tensor([0.3, 0.3 + sign * rise, 0.3, 0.3 - sign * rise], dtype=torch.float64)
    k = torch.stack([scores, torch.tensor([0.1, -0.4, 0.2, 0.3], dtype=torch.float64)], dim=-1)[None, None]
    v = torch.randn(1, 1, 4, 2, dtype=torch.float64, requires_grad=True)
    times = torch.tensor([[0.0, 1.0, 1.7, 4.0]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda *x: attention(*x, scale=1.0), (q, k.requires_grad_(), v, times))


@pytest.mark.parametrize("tail", ["hold", "cut"])
@pytest.mark.parametrize("interval", ["left", "symmetric"])
def test_7_gradcheck_for_query_times(attention: Attention, tail: str, interval: str) -> None:
    q, k, v, _ = leaves()
    times = torch.tensor([[0.0, 1.0, 1.7, 4.0]], dtype=torch.float64, requires_grad=True)
    query_times = torch.tensor([[0.6, 1.2, 2.9, 5.0]], dtype=torch.float64, requires_grad=True)

    def at(*x: Tensor) -> Tensor:
        return attention(*x[:4], query_times=x[4], is_causal=True, tail=tail, interval=interval)

    assert gradcheck(at, (q, k, v, times, query_times))


def test_7_gradcheck_with_masked_tokens_and_packed_series(attention: Attention) -> None:
    mask = torch.tensor([[True, False, True, True, True, True, True]])
    options = {"key_mask": mask, "cu_seqlens": torch.tensor([0, 4, 7]), "is_causal": True, "sink": Sink()}
    assert gradcheck(lambda *x: attention(*x, **options), leaves(Shape(1, 2, 1, 7, 7, 2, 1)))


def test_7_gradcheck_where_all_knots_are_at_one_time(attention: Attention) -> None:
    q, k, v, _ = leaves()
    assert gradcheck(lambda *x: attention(*x, torch.zeros(4), is_causal=True), (q, k, v))


def gradients_by_formula(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, upstream: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of scores, values and gaps for one query, as the design page of the operator writes them."""
    a = k @ q
    a = a - a.max()
    delta = a.diff()
    e0, e1 = a[:-1].exp(), a[1:].exp()
    mass = (e1 - e0) / delta
    left, right = gaps * (mass - e0) / delta, gaps * (e1 - mass) / delta
    weights = torch.nn.functional.pad(left, (0, 1)) + torch.nn.functional.pad(right, (1, 0))
    total = weights.sum()
    g = v @ upstream
    mean = upstream @ (weights @ v) / total
    c = (right - left) / delta
    rise = c * (g[1:] - g[:-1])
    to_left = (left * (g[:-1] - mean) + rise) / total
    to_right = (right * (g[1:] - mean) - rise) / total
    scores = torch.nn.functional.pad(to_left, (0, 1)) + torch.nn.functional.pad(to_right, (1, 0))
    values = (weights / total)[:, None] * upstream
    return scores, values, (left * (g[:-1] - mean) + right * (g[1:] - mean)) / (total * gaps)


def test_gradients_are_those_of_the_formula(attention: Attention) -> None:
    q, k, v, times = leaves(Shape(1, 1, 1, 1, 9, 5, 4), size=3.0)
    upstream = torch.randn(4, dtype=torch.float64)
    (attention(q, k, v, times, scale=1.0)[0, 0, 0] @ upstream).backward()
    with torch.no_grad():
        scores, values, gaps = gradients_by_formula(q[0, 0, 0], k[0, 0], v[0, 0], times[0].diff(), upstream)
    assert q.grad is not None and k.grad is not None and v.grad is not None and times.grad is not None
    torch.testing.assert_close(q.grad[0, 0, 0], scores @ k[0, 0])
    torch.testing.assert_close(k.grad[0, 0], scores[:, None] * q[0, 0, 0])
    torch.testing.assert_close(v.grad[0, 0], values)
    torch.testing.assert_close(times.grad[0].flip(0).cumsum(0).flip(0)[1:], gaps)


GRID = (*SHAPES, Shape(2, 4, 2, 31, 31, 16, 8))


def solved(given: Inputs, upstream: Tensor, backend: str, is_causal: bool) -> list[Tensor]:
    """Output, and gradients of q, k, v and times."""
    tensors = [x.detach().requires_grad_() for x in given]
    out = continuous_attention(*tensors, is_causal=is_causal, enable_gqa=True, backend=backend)
    return [out.detach(), *torch.autograd.grad(out, tensors, upstream)]


def largest_errors(
    shape: Shape, clock_name: str, dtype: torch.dtype, backends: tuple[str, ...], size: float = 1.0
) -> list[dict[str, float]]:
    """For each backend, errors against float64 on the same inputs, relative to the tensor's largest number.

    Those of times are relative to the terms of their gradient, which cancel; see `size_of_time_terms`.
    """
    given = inputs(shape, clock_name, dtype, size=size)
    upstream = torch.randn(*shape[:2], shape.queries, shape.value_dim, dtype=dtype)
    found: list[dict[str, float]] = [{} for _ in backends]
    for is_causal in (False, True)[: 1 + (shape.queries == shape.keys)]:
        exact = solved(Inputs(*(x.double() for x in given)), upstream.double(), "reference", is_causal)
        scales = [x.abs().max().item() for x in exact]
        scales[-1] = size_of_time_terms(given, upstream, is_causal)
        for backend, largest in zip(backends, found, strict=True):
            narrow = solved(given, upstream, backend, is_causal)
            for name, x, y, scale in zip(("out", *"qkv", "times"), narrow, exact, scales, strict=True):
                error = (x.double() - y).abs().max().item() / scale if scale else 0.0
                largest[name] = max(error, largest.get(name, 0.0))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize("shape", GRID, ids=str)
def test_outputs_and_gradients_of_the_cpu_backend_are_exact_to_2e6_in_float32_and_1e12_in_float64(
    shape: Shape, clock_name: str, dtype: torch.dtype
) -> None:
    (found,) = largest_errors(shape, clock_name, dtype, ("cpu",))
    assert max(found.values()) < {torch.float32: 2e-6, torch.float64: 1e-12}[dtype], found


@pytest.mark.parametrize("size", [10.0, 100.0])
@pytest.mark.parametrize("shape", GRID, ids=str)
def test_where_scores_are_large_float32_errs_by_their_rounding_and_cpu_no_more_than_the_definition(
    shape: Shape, size: float
) -> None:
    found = [largest_errors(shape, name, torch.float32, ("cpu", "reference"), size) for name in CLOCKS]
    q, k, *_ = inputs(shape, dtype=torch.float32, size=size)
    k = k.repeat_interleave(shape.heads // shape.kv_heads, dim=1)
    score = (q @ k.mT).abs().max().item() * shape.head_dim**-0.5
    rounding = score * torch.finfo(torch.float32).eps / 2
    for part in ("out", *"qkv", "times"):
        cpu, definition = (max(each[i][part] for each in found) for i in range(2))
        assert cpu < 2 * definition + rounding, part


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_outputs_and_gradients_of_half_dtypes_are_as_exact_as_their_rounding(dtype: torch.dtype) -> None:
    for clock_name in CLOCKS:
        (found,) = largest_errors(GRID[-1], clock_name, dtype, ("cpu",))
        assert max(found.values()) < torch.finfo(dtype).eps, found
