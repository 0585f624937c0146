"""The Triton kernels on a GPU: as exact as stock attention in the same dtype, and the same bits each time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ctsattn.ops.continuous import continuous_attention, reference
from tests.ops.triton.conftest import (
    Canonical,
    errors,
    errors_of_rounding_the_output,
    problem,
    rounded,
    solve,
)

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [
    {"queries": 700, "knots": 700, "head_dim": 64, "value_dim": 64},
    {"queries": 333, "knots": 515, "head_dim": 128, "value_dim": 128},
    {"queries": 130, "knots": 67, "head_dim": 32, "value_dim": 48, "heads": 4, "kv_heads": 2},
    {"queries": 64, "knots": 64, "head_dim": 16, "value_dim": 16, "batch": 3},
    {"queries": 97, "knots": 261, "head_dim": 80, "value_dim": 96},
    {"queries": 70, "knots": 200, "head_dim": 256, "value_dim": 256},
]


@pytest.fixture
def kernels():
    from ctsattn.ops.continuous import triton

    return triton


def stock(q: Tensor, k: Tensor, v: Tensor, case: Canonical) -> dict[str, Tensor]:
    """Result and gradients of stock attention over the same visible keys, in the dtype of `q`."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    shared = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    if any(case.hints.values()):
        out = scaled_dot_product_attention(q, *shared, is_causal=case.hints["causal"])
    else:
        key = torch.arange(k.shape[2], device=q.device)
        seen = (key >= case.first[..., None].to(q.device)) & (key <= case.last[..., None].to(q.device))
        out = scaled_dot_product_attention(q, *shared, seen[:, None])
    (out * case.out_weight.to(out)).sum().backward()
    results = {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    return {name: x.double().cpu() for name, x in results.items()}


def stock_gaps(q: Tensor, k: Tensor, v: Tensor, case: Canonical) -> dict[str, Tensor]:
    """Gradient by the gaps in stock attention if each key's weight is multiplied by the gap before it."""
    groups = q.shape[1] // k.shape[1]
    shared = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    gaps = case.gaps.detach().to(q).clone().requires_grad_()
    bias = torch.where(gaps > 0, gaps, 1.0).log()[:, None, None]
    key = torch.arange(k.shape[2], device=q.device)
    seen = (key >= case.first[..., None].to(q.device)) & (key <= case.last[..., None].to(q.device))
    with sdpa_kernel(SDPBackend.MATH):  # others take no gradient by a mask of these strides
        out = scaled_dot_product_attention(q, *shared, torch.where(seen[:, None], bias, -torch.inf))
    (out * case.out_weight.to(out)).sum().backward()
    return {"dgaps": gaps.grad.double().cpu()}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "-".join(map(str, size.values())))
@pytest.mark.parametrize("kind", ["causal", "full", "packed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_is_at_most_one_and_a_half_times_that_of_stock_attention(kernels, dtype, kind, size):
    case = rounded(problem(kind, **size), dtype)
    case = case._replace(lse_weight=0 * case.lse_weight)
    exact = solve(reference.core, case, torch.float64, "cuda")
    found = errors(solve(kernels.core, case, dtype, "cuda"), exact)
    inputs = [x.cuda() for x in case[:3]]
    theirs = errors(stock(*[x.to(dtype) for x in inputs], case), stock(*[x.double() for x in inputs], case))
    for part, error in theirs.items():
        assert found[part] <= 1.5 * error + 1e-6, f"{part}: {found[part]:.2e}, stock attention {error:.2e}"
    # Stock attention has no gaps, so in half precision the keys' gradient stands for theirs. They hang on
    # `dO·v - dO·out` more than it does, and the output is rounded twice: its weights before they meet the
    # values, and itself. In float32 weights by gaps do, whose gradient has the gap's reciprocal as well.
    theirs_by_gaps = theirs["dk"]
    if dtype == torch.float32:
        wide = stock_gaps(*[x.double() for x in inputs], case)
        theirs_by_gaps = errors(stock_gaps(*inputs, case), wide)["dgaps"]
    unavoidable = 2 * errors_of_rounding_the_output(case, exact, dtype, "cuda")["dgaps"]
    assert found["dgaps"] <= 1.5 * (theirs_by_gaps + unavoidable) + 1e-6


@pytest.mark.parametrize(
    "size",
    [{"queries": 300, "knots": 300, "head_dim": 64, "value_dim": 64}, *SIZES[2:4]],
    ids=lambda size: "-".join(map(str, size.values())),
)
@pytest.mark.parametrize("kind", ["causal", "full", "packed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_as_exact_if_none_is_asked_for_by_the_gaps(kernels, dtype, kind, size):
    """Then the tiles of knots of short rows do not overlap."""
    case = rounded(problem(kind, **size), dtype)
    exact = solve(reference.core, case, torch.float64, "cuda", by_gaps=False)
    whole = errors(solve(kernels.core, case, dtype, "cuda"), exact | {"dgaps": case.gaps.double()})
    for part, error in errors(solve(kernels.core, case, dtype, "cuda", by_gaps=False), exact).items():
        assert error <= 1.1 * whole[part] + 1e-6, part


def test_tf32_is_used_only_when_asked_for(kernels):
    case = problem("full", **SIZES[0])
    exact = solve(reference.core, case, torch.float64, "cuda")
    strict = errors(solve(kernels.core, case, torch.float32, "cuda"), exact)
    torch.set_float32_matmul_precision("high")
    try:
        fast = errors(solve(kernels.core, case, torch.float32, "cuda"), exact)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert strict["out"] < 2e-6
    assert 1e-5 < fast["out"] < 2e-3


def test_ties_loud_scores_and_any_limits_are_right(kernels):
    for case in (
        problem("any", queries=300, knots=400, ties=True, head_dim=64, value_dim=64),
        problem("causal", queries=400, knots=400, loudness=60.0, head_dim=64, value_dim=64),
        problem("causal", queries=400, knots=400, smooth=True, head_dim=64, value_dim=64),
    ):
        case = rounded(case, torch.bfloat16)
        exact = solve(reference.core, case, torch.float64, "cuda")
        # A query that sees pieces without length alone has no derivative by their gaps: it gets no weight.
        some = exact["lse"].isfinite().float()
        case = case._replace(out_weight=case.out_weight * some[..., None], lse_weight=case.lse_weight * some)
        exact = solve(reference.core, case, torch.float64, "cuda")
        # Where one key has nearly all weight, `dO·v - dO·out` is a difference of rounded equals.
        unavoidable = errors_of_rounding_the_output(case, exact, torch.bfloat16, "cuda")
        for part, error in errors(solve(kernels.core, case, torch.bfloat16, "cuda"), exact).items():
            assert error <= 6e-3 + 1.5 * unavoidable.get(part, 0.0), part


def test_a_block_whose_scores_rise_too_far_starts_again(kernels):
    case = problem("causal", queries=600, knots=600, head_dim=64, value_dim=64)
    case.q.fill_(1.0)
    case.k[:] = torch.linspace(30.0, 0.0, 600)[:, None]
    case = rounded(case, torch.bfloat16)
    exact = solve(reference.core, case, torch.float64, "cuda")
    assert errors(solve(kernels.core, case, torch.bfloat16, "cuda"), exact)["out"] <= 4e-3


def test_queries_without_time_to_integrate_get_the_limit_and_its_gradients(kernels):
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, weight = (torch.randn(2, 4, 300, 64, device="cuda", generator=generator) for _ in range(4))
    times = torch.rand(2, 300, device="cuda", generator=generator).cumsum(-1)
    times[0, :70] = 0
    found = {}
    for backend in ("triton", "reference"):
        tensors = [x.clone().requires_grad_() for x in (q, k, v, times)]
        out = continuous_attention(*tensors, is_causal=True, backend=backend)
        found[backend] = (out, *torch.autograd.grad((out * weight).sum(), tensors))
    for ours, plain in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_twenty_runs_give_the_same_bits(kernels):
    case = problem(
        "causal", queries=1000, knots=1000, batch=2, heads=8, kv_heads=4, head_dim=64, value_dim=64
    )
    runs = [solve(kernels.core, case, torch.bfloat16, "cuda") for _ in range(20)]
    for run in runs[1:]:
        for part, x in run.items():
            assert torch.equal(x, runs[0][part]), part


def test_poison_around_and_in_buffers_is_not_seen(kernels, monkeypatch):
    case = problem("causal", queries=130, knots=190, head_dim=64, value_dim=64)
    # The same strides, and so the same kernels, each time.
    expected = solve(kernels.core, case, torch.bfloat16, "cuda", around=0.0)
    empty = torch.empty

    def poison(*args, **options):
        return empty(*args, **options).fill_(float("nan") if options["dtype"].is_floating_point else -7)

    monkeypatch.setattr(kernels.launch.torch, "empty", poison)
    for part, x in solve(kernels.core, case, torch.bfloat16, "cuda", around=float("nan")).items():
        assert torch.equal(x, expected[part]), part


@pytest.mark.parametrize(("length", "backward"), [(64, 2), (500, 3), (1100, 4)])
def test_an_ordinary_call_is_two_kernels_forward_and_four_backward_at_most(kernels, length, backward):
    q, k, v, grad = (torch.randn(2, 4, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    times = torch.rand(2, length, device="cuda", dtype=torch.float64).cumsum(-1)
    tensors = [x.requires_grad_() for x in (q, k, v)]

    def attend():
        return continuous_attention(*tensors, times, is_causal=True, backend="triton")

    torch.autograd.grad(attend(), tensors, grad)
    counts = []
    for step in (attend, lambda: torch.autograd.grad(attend(), tensors, grad)):
        # Without `acc_events` torch 2.11 warns that events do not outlast a cycle; here there is one.
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            step()
            torch.cuda.synchronize()
        names = [x.name for x in profile.events() if x.device_type == torch.autograd.DeviceType.CUDA]
        counts.append(len(names))
    assert counts == [2, 2 + backward]


def test_a_new_length_compiles_nothing(kernels):
    compiled = kernels.launch.attention_fwd_kernel.device_caches
    sizes = []
    for knots in (256, 300, 301, 512):
        case = problem("causal", queries=knots, knots=knots, head_dim=64, value_dim=64)
        solve(kernels.core, case, torch.bfloat16, "cuda")
        sizes.append(sum(len(cache[0]) for cache in compiled.values()))
    assert len(set(sizes)) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_it_compiles_into_one_graph(kernels):
    q, k, v = (
        torch.randn(2, 4, 200, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    times = torch.rand(2, 200, device="cuda").cumsum(-1)

    def attend(q, k, v, times):
        return continuous_attention(q, k, v, times, is_causal=True, backend="triton")

    eager = torch.autograd.grad(attend(q, k, v, times).float().square().sum(), (q, k, v))
    compiled = torch.compile(attend, fullgraph=True)
    graph = torch.autograd.grad(compiled(q, k, v, times).float().square().sum(), (q, k, v))
    for x, y in zip(eager, graph, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
