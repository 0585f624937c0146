"""The cpu backend against the definition: exact at all sizes, independent of threads, small in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.ops.continuous import cpu, reference

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


class Problem(NamedTuple):
    """Arguments of `core`, but for the scale."""

    q: Tensor
    k: Tensor
    v: Tensor
    gaps: Tensor
    first: Tensor
    last: Tensor


class Case(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    queries: int
    knots: int
    head_dim: int
    value_dim: int
    sees: str


# Lengths below, at and above a tile (64 or 32 queries) and a block of knots (64), and prime ones.
CASES = (
    Case(1, 1, 1, 1, 2, 8, 8, "all"),
    Case(2, 4, 2, 3, 3, 16, 5, "past"),
    Case(1, 2, 1, 64, 64, 32, 32, "past"),
    Case(2, 3, 3, 65, 127, 8, 40, "all"),
    Case(1, 6, 2, 151, 151, 32, 24, "past"),
    Case(1, 2, 2, 97, 211, 64, 16, "window"),
    Case(2, 1, 1, 191, 191, 128, 64, "window"),
    Case(1, 1, 1, 67, 131, 256, 256, "all"),
    Case(2, 2, 2, 70, 140, 33, 1, "few"),
)


def limits(case: Case) -> tuple[Tensor, Tensor]:
    """First and last knot of each query."""
    query = torch.arange(case.queries).expand(case.batch, -1)
    row = torch.arange(case.batch)[:, None]
    match case.sees:
        case "past":
            first, last = 0 * query, query + case.knots - case.queries
        case "window":
            first, last = (query // 37) * 20, (query // 37) * 20 + 1 + (query * 7 + row) % 83
        case "few":
            first, last = query % 3, torch.where(query % 5 == row, query, -1)
        case _:
            first, last = 0 * query, 0 * query + case.knots - 1
    return first.int(), last.clamp(max=case.knots - 1).int()


def problem(case: Case, dtype: torch.dtype, size: float = 2.0, seed: int = 0) -> Problem:
    """Scores with a spread of `size`, gaps over three orders of magnitude, some of them 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = normal(case.batch, case.heads, case.queries, case.head_dim) * size
    k = normal(case.batch, case.kv_heads, case.knots, case.head_dim) / case.head_dim**0.5
    v = normal(case.batch, case.kv_heads, case.knots, case.value_dim)
    gaps = 10 ** (torch.rand(case.batch, case.knots, generator=generator, dtype=torch.float64) * 3 - 2)
    gaps = torch.where(torch.rand(case.batch, case.knots, generator=generator) < 0.1, 0.0, gaps)
    gaps[:, 0] = 0
    wide = torch.promote_types(dtype, torch.float32)
    return Problem(q.to(dtype), k.to(dtype), v.to(dtype), gaps.to(wide), *limits(case))


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    if expected.numel() == 0:
        return 0.0
    size = expected.abs().max().item()
    return (actual.double() - expected).abs().max().item() / (size if size > 0 else 1.0)


def solved(core, given: Problem, upstream: Tensor, upstream_lse: Tensor) -> list[Tensor]:
    """Outputs, log-sum-exps, and gradients of q, k, v and gaps."""
    leaves = [x.detach().clone().requires_grad_() for x in given[:4]]
    out, lse = core(*leaves, given.first, given.last, 1.0)
    empty = lse == -torch.inf  # their outputs are constants
    loss = (out.masked_fill(empty[..., None], 0).double() * upstream).sum()
    loss = loss + (lse.masked_fill(empty, 0).double() * upstream_lse).sum()
    found = torch.autograd.grad(loss, leaves)
    return [out.detach(), lse.detach().masked_fill(empty, 0), *found]


def differences(core, given: Problem) -> dict[str, float]:
    """Errors of a core against the definition in float64, by name."""
    wide = Problem(*(x.double() for x in given[:4]), given.first, given.last)
    upstream = torch.randn(*given.q.shape[:3], given.v.shape[3], dtype=torch.float64)
    upstream_lse = torch.randn(given.q.shape[:3], dtype=torch.float64)
    actual = solved(core, given, upstream, upstream_lse)
    expected = solved(reference.core, wide, upstream, upstream_lse)
    names = ("out", "lse", "dq", "dk", "dv", "dgaps")
    return {name: error(a, e) for name, a, e in zip(names, actual, expected, strict=True)}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_all_gradients_are_those_of_the_definition(case: Case, dtype: torch.dtype) -> None:
    found = differences(cpu.core, problem(case, dtype))
    assert max(found.values()) < TOLERANCE[dtype], found


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-3, 0.3, 1.0, 3.0])
def test_it_is_exact_on_both_sides_of_the_series_radius(size: float, dtype: torch.dtype) -> None:
    found = differences(cpu.core, problem(CASES[4], dtype, size))
    assert max(found.values()) < TOLERANCE[dtype], found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [0.5, 30.0, 1e4])
def test_errors_are_those_of_rounding_the_scores_and_the_results(size: float, dtype: torch.dtype) -> None:
    given = problem(CASES[4], dtype, min(size, 1e3) if dtype == torch.float16 else size)
    largest = (given.q.double() @ given.k.double().repeat_interleave(3, dim=1).mT).abs().max().item()
    found = differences(cpu.core, given)
    allowed = 2 * ((4 + largest) * torch.finfo(given.gaps.dtype).eps + torch.finfo(dtype).eps)
    assert max(found.values()) < allowed, (found, allowed)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1e4, 1e6, 1e12])
def test_no_score_is_too_large(size: float, dtype: torch.dtype) -> None:
    given = problem(Case(1, 2, 2, 70, 70, 8, 4, "past"), dtype, size)
    given.gaps.clamp_(min=1e-2)
    found = solved(cpu.core, given, torch.ones(1), torch.ones(1))
    assert all(x.isfinite().all() for x in found)


def test_gradcheck_passes_with_equal_scores_and_across_the_radius() -> None:
    q = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(1, 1, 2, 1)
    rises = torch.tensor([0.0, 0.0, 0.3, 0.831, 0.8318, 1.7, -5.0, -0.8317], dtype=torch.float64)
    k, v = rises.cumsum(0).reshape(1, 1, 8, 1), torch.randn(1, 1, 8, 3, dtype=torch.float64)
    gaps = torch.rand(1, 8, dtype=torch.float64)
    first, last = torch.zeros(1, 2, dtype=torch.int32), torch.tensor([[7, 5]], dtype=torch.int32)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, gaps)]
    assert torch.autograd.gradcheck(lambda *x: cpu.core(*x, first, last, 1.0), leaves)


def test_errors_do_not_grow_with_the_length() -> None:
    given = problem(Case(1, 1, 1, 4, 20_000, 16, 8, "all"), torch.float32)
    found = differences(cpu.core, given)
    assert max(found.values()) < TOLERANCE[torch.float32], found


def test_queries_that_see_no_piece_get_0_and_give_no_gradient() -> None:
    given = problem(CASES[8], torch.float32)
    leaves = [x.requires_grad_() for x in given[:4]]
    out, lse = cpu.core(*leaves, given.first, given.last, 1.0)
    blind = (given.last <= given.first)[:, None].expand(lse.shape)
    assert blind.any() and not blind.all()
    assert torch.equal(lse == -torch.inf, blind)
    assert not out[blind].any()
    out[blind].sum().backward()
    assert all(not x.grad.any() for x in leaves)


@pytest.mark.parametrize("where", ["q", "k", "v", "gaps"])
def test_nan_is_not_swallowed(where: str) -> None:
    given = problem(Case(1, 1, 1, 3, 9, 4, 4, "all"), torch.float32)
    getattr(given, where)[..., -1:] = torch.nan
    out, _ = cpu.core(*given, 1.0)
    assert out[0, 0, -1].isnan().any()


def test_views_give_what_their_copies_give() -> None:
    given = problem(CASES[5], torch.float32)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given[:3]]
    views[0] = torch.cat([views[0], views[0]], dim=-1)[..., : given.q.shape[3]]
    views[1] = views[1].mT.contiguous().mT
    assert not any(x.is_contiguous() for x in views)
    actual = cpu.core(*views, *given[3:], 1.0)
    for x, y in zip(actual, cpu.core(*given, 1.0), strict=True):
        assert torch.equal(x, y)


@pytest.fixture
def threads():
    """Sets the number of torch's threads, and sets it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_outputs_do_not_depend_on_the_number_of_threads_and_gradients_only_by_rounding(threads) -> None:
    given = problem(Case(1, 2, 1, 700, 700, 16, 16, "past"), torch.float32)
    results = []
    for number in (1, 3):
        threads(number)
        results.append(solved(cpu.core, given, torch.ones(1), torch.ones(1)))
    (out, lse, dq, *rest), (other_out, other_lse, other_dq, *other_rest) = results
    assert torch.equal(out, other_out) and torch.equal(lse, other_lse) and torch.equal(dq, other_dq)
    for x, y in zip(rest, other_rest, strict=True):
        assert error(x, y.double()) < 2e-6


def test_many_threads_of_python_may_call_it_at_once(threads) -> None:
    threads(2)
    given = problem(Case(1, 2, 1, 300, 300, 16, 16, "past"), torch.float32)
    expected, _ = cpu.core(*given, 1.0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cpu.core(*given, 1.0)[0], range(12)))
    assert all(torch.equal(x, expected) for x in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_go_on() -> None:
    code = """
import os, torch
from ctsattn import continuous_attention
torch.set_num_threads(2)
x = torch.randn(1, 2, 512, 8)
expected = continuous_attention(x, x, x, backend="cpu")
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(continuous_attention(x, x, x, backend="cpu"), expected) else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    code = """
import resource, torch
from ctsattn import continuous_attention
def attend(length):
    x = torch.randn(1, 1, length, 16, requires_grad=True)
    continuous_attention(x, x, x, backend="cpu", is_causal=True).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = attend(256)
print(attend(12288) - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=True
    )
    one_tensor = 12288 * 16 * 4 / 1024  # KiB; the weights would be 768 of these
    assert int(done.stdout) < 40 * one_tensor


def test_it_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 1, 2, 4)
    assert cpu.why_not(x, x, x) is None
    assert "on meta" in (cpu.why_not(*[x.to("meta")] * 3) or "")
    monkeypatch.setattr(cpu, "has_numba", lambda: False)
    with pytest.raises(ValueError, match="numba is not installed"):
        continuous_attention(x, x, x, backend="cpu")
