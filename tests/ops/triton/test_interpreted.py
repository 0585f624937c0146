"""The Triton kernels in Triton's interpreter, on the CPU: the same arithmetic, without a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from ctsattn.ops.continuous import Sink, continuous_attention, reference
from ctsattn.ops.continuous.api import attend_from
from tests.ops.triton.conftest import errors, problem, rounded, solve

pytest.importorskip("triton")
# The interpreter computes with NumPy, which warns where a masked lane overflows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The package, with small tiles."""
    module = importlib.import_module("ctsattn.ops.continuous.triton")
    if not module.launch.interpreted():
        pytest.skip("Triton compiles here: test_gpu.py tests the kernels")
    with pytest.MonkeyPatch.context() as patch:
        small = module.launch.Tile(16, 64, 4, 1)
        patch.setattr(module.launch, "CAREFUL", dict.fromkeys(module.launch.CAREFUL, small))
        yield module


CASES = {
    "causal": problem("causal"),
    "full, one tile, wide values": problem(
        "full", queries=9, knots=33, head_dim=24, value_dim=40, kv_heads=2
    ),
    "full, knots end with a tile": problem("full", queries=5, knots=113, heads=1),
    "padded, shared heads": problem("padded", batch=2, heads=2, queries=17),
    "packed": problem("packed", queries=70, heads=1),
    "any limits": problem("any", queries=33),
    "any limits, ties": problem("any", queries=33, ties=True, batch=2, heads=1),
    "one knot": problem("full", queries=3, knots=1),
    "loud": problem("full", queries=16, knots=150, loudness=60.0, heads=1),
}


@pytest.mark.parametrize("name", CASES)
def test_float32_is_as_good_as_the_definition_in_float32(kernels, truth, name):
    exact = truth(CASES[name])
    found = errors(solve(kernels.core, CASES[name], torch.float32), exact)
    plain = errors(solve(reference.core, CASES[name], torch.float32), exact)
    # The backward pass weighs by exp(score - lse): the rounding of lse is an error of the weights.
    largest = torch.where(exact["lse"].isfinite(), exact["lse"].abs(), 0.0).max().item()
    kept = largest * torch.finfo(torch.float32).eps / 2
    for part, error in found.items():
        assert error <= 2 * plain[part] + 2e-6 + kept, part


@pytest.mark.parametrize("name", ["padded, shared heads", "packed", "any limits, ties"])
def test_gradients_are_the_same_if_none_is_asked_for_by_the_gaps(kernels, name):
    """Then the tiles of knots of short rows do not overlap."""
    whole = solve(kernels.core, CASES[name], torch.float32)
    for part, error in errors(solve(kernels.core, CASES[name], torch.float32, by_gaps=False), whole).items():
        assert error <= 2e-6, part


@pytest.mark.parametrize("name", ["causal", "any limits, ties"])
def test_float16_errs_by_its_rounding(kernels, truth, name):
    case = rounded(CASES[name], torch.float16)
    for part, error in errors(solve(kernels.core, case, torch.float16), truth(case)).items():
        assert error <= 1.5e-3, part


@pytest.mark.parametrize(
    "case",
    [CASES["causal"], problem("causal", smooth=True), CASES["any limits, ties"]],
    ids=["rough", "smooth", "ties"],
)
def test_the_short_formulas_of_bfloat16_err_by_less_than_its_rounding(kernels, truth, case, monkeypatch):
    monkeypatch.setitem(kernels.launch.KINDS, torch.float32, kernels.launch.KINDS[torch.bfloat16])
    exact = truth(case)
    for by_gaps in (True, False):
        for part, error in errors(solve(kernels.core, case, torch.float32, by_gaps=by_gaps), exact).items():
            assert error <= 1e-3, part  # bfloat16 rounds by 2e-3


def test_a_tile_of_128_columns_gives_the_same(kernels, monkeypatch):
    case = problem("causal", queries=32, knots=150, heads=1, head_dim=8, value_dim=8)
    wide = kernels.launch.Tile(16, 128, 4, 1)
    narrow = solve(kernels.core, case, torch.float32)
    monkeypatch.setattr(kernels.launch, "CAREFUL", dict.fromkeys(kernels.launch.CAREFUL, wide))
    for part, error in errors(solve(kernels.core, case, torch.float32), narrow).items():
        assert error <= 2e-6, part


def test_a_block_whose_scores_rise_too_far_starts_again(kernels, truth, monkeypatch):
    """Scores far from the diagonal exceed those on it by over 41, so the fast sum passes its limit."""
    case = problem("causal", queries=150, knots=150, heads=1, head_dim=16, value_dim=16)
    case.q.fill_(1.0)
    case.k[:] = torch.linspace(60.0, 0.0, 150)[:, None]
    monkeypatch.setitem(kernels.launch.KINDS, torch.float32, kernels.launch.KINDS[torch.bfloat16])
    for part, error in errors(solve(kernels.core, case, torch.float32), truth(case)).items():
        assert error <= 1e-3, part


def test_nothing_outside_the_tensors_is_read_or_left_unwritten(kernels, truth, monkeypatch):
    case = problem("causal", queries=40, knots=70, head_dim=24, value_dim=24)
    empty = torch.empty
    poison = lambda *a, **kw: empty(*a, **kw).fill_(float("nan") if kw["dtype"].is_floating_point else -7)  # noqa: E731
    monkeypatch.setattr(kernels.launch.torch, "empty", poison)
    found = solve(kernels.core, case, torch.float32, around=float("nan"))
    for part, error in errors(found, truth(case)).items():
        assert error <= 2e-6, part


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True, "sink": Sink(gap=0.5)},
        {"is_causal": True, "query_times": torch.linspace(0.5, 9.0, 7), "tail": "hold"},
        {"query_times": torch.linspace(0.5, 9.0, 7), "tail": "cut"},
        {"interval": "symmetric", "is_causal": True},
        {"cu_seqlens": torch.tensor([0, 4, 11]), "is_causal": True},
        {
            "query_times": torch.linspace(0.5, 9.0, 7),
            "cu_seqlens": torch.tensor([0, 4, 11]),
            "cu_seqlens_q": torch.tensor([0, 3, 7]),
            "is_causal": True,
            "tail": "hold",
        },
        {"key_mask": torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], dtype=torch.bool)},
    ],
    ids=["sink", "hold", "cut", "symmetric", "packed", "packed queries", "masked"],
)
def test_every_case_of_the_public_function_runs_on_it(kernels, options):
    queries = 7 if "query_times" in options else 11
    case = problem("causal", queries=queries, knots=11, kv_heads=2)
    times = case.gaps.cumsum(-1) * 2
    ours = continuous_attention(case.q, case.k, case.v, times, backend="triton", **options)
    plain = continuous_attention(case.q, case.k, case.v, times, backend="reference", **options)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["causal", "packed", "masked", "all at one time"])
def test_queries_without_time_to_integrate_get_the_limit_and_its_gradients(kernels, kind):
    knots = 30
    case = problem("causal", queries=knots, knots=knots, batch=2, heads=1)
    times = case.gaps.clone()
    times[0, :5] = 0
    times[0, 20:23] = 0
    options: dict = {"is_causal": True}
    if kind == "packed":
        options["cu_seqlens"] = torch.tensor([0, 1, 20, 23, 25, knots])
    if kind == "masked":
        options = {"key_mask": (torch.arange(knots) < torch.tensor([[1], [0]]))}
    if kind == "all at one time":
        times.zero_()
        options = {"is_causal": False}
    found = {}
    for backend in ("triton", "reference"):
        tensors = [x.detach().clone().requires_grad_() for x in (*case[:3], times)]
        *qkv, gaps = tensors
        out = continuous_attention(*qkv, gaps.cumsum(-1), backend=backend, **options)
        found[backend] = (out, *torch.autograd.grad((out * case.out_weight).sum(), tensors))
    for ours, plain in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-5)


CLOCKS = {
    "none": None,
    "int64": torch.arange(60).reshape(2, 30) ** 2 + 10**15,
    "float32": torch.linspace(0, 3, 30).exp(),
    "float64, far": 1e9 + torch.linspace(0, 1e-3, 30, dtype=torch.float64),
    "ties first": torch.arange(30).clamp(min=4) - torch.tensor([[0], [2]]),
    "ties first, for one row": torch.arange(30).clamp(min=torch.tensor([[0], [9]])),
    "all at one time": torch.ones(2, 30),
}


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_an_ordinary_request_goes_from_times_to_outputs_and_back(kernels, clock, is_causal, monkeypatch):
    def refuse(*_arguments, **_options):
        raise AssertionError("not the direct way")

    monkeypatch.setattr(kernels.core, "answer", refuse)
    case = problem("causal", queries=30, knots=30, batch=2, heads=2)
    found = {}
    for backend in ("triton", "reference"):
        tensors = [x.detach().clone().requires_grad_() for x in case[:3]]
        out = continuous_attention(
            *tensors, CLOCKS[clock], is_causal=is_causal, backend=backend, enable_gqa=True
        )
        found[backend] = (out, *torch.autograd.grad((out * case.out_weight).sum(), tensors))
    for ours, plain in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("knots", "is_causal", "formulas"),
    [
        *((knots, True, torch.float32) for knots in (64, 65, 129)),
        *((knots, True, torch.bfloat16) for knots in (63, 128)),
        *((knots, False, torch.float32) for knots in (63, 128, 193)),
        *((knots, False, torch.bfloat16) for knots in (63, 64, 65, 128)),
    ],
)
def test_rows_that_end_with_a_tile_or_just_after_it(kernels, knots, is_causal, formulas, monkeypatch):
    """The knot after a tile of 64 pieces is the first of the next tile; after the last there is none."""
    monkeypatch.setitem(kernels.launch.KINDS, torch.float32, kernels.launch.KINDS[formulas])
    case = problem(queries=knots, knots=knots, head_dim=16, value_dim=16)
    found = {}
    for backend in ("triton", "reference"):
        tensors = [x.detach().clone().requires_grad_() for x in case[:3]]
        out = continuous_attention(
            *tensors, case.gaps.cumsum(-1), is_causal=is_causal, backend=backend, enable_gqa=True
        )
        found[backend] = (out, *torch.autograd.grad((out * case.out_weight).sum(), tensors))
    for ours, plain in zip(found["triton"], found["reference"], strict=True):
        assert (ours - plain).norm() <= (2e-5 if formulas == torch.float32 else 1e-3) * plain.norm()


@pytest.mark.parametrize("place", [0, 63, 64, 70, 149])
def test_a_loud_knot_without_weight_does_no_harm(kernels, monkeypatch, place):
    """Its exponential would be infinite: where there is one, the backward pass bounds exponents."""
    monkeypatch.setitem(kernels.launch.KINDS, torch.float32, kernels.launch.KINDS[torch.bfloat16])
    case = problem("full", queries=20, knots=150, heads=1)
    times = torch.arange(150.0)
    times[max(place - 1, 0) : place + 2] = times[place]
    case.k[:, :, place] *= 1000
    found = {}
    for backend in ("triton", "reference"):
        tensors = [x.detach().clone().requires_grad_() for x in case[:3]]
        out = continuous_attention(*tensors, times.expand(1, -1), backend=backend, enable_gqa=True)
        found[backend] = (out, *torch.autograd.grad((out * case.out_weight).sum(), tensors))
    for ours, plain in zip(found["triton"], found["reference"], strict=True):
        assert (ours - plain).norm() <= 1e-3 * plain.norm()


def test_causal_queries_may_begin_at_a_later_key(kernels):
    case = problem("causal", queries=30, knots=30)
    whole = continuous_attention(*case[:3], is_causal=True, backend="triton", enable_gqa=True)
    q, k, v = case[:3]
    options = {"is_causal": True, "backend": "triton", "enable_gqa": True}
    later = attend_from(21, q[:, :, 21:], k, v, None, **options)
    torch.testing.assert_close(later, whole[:, :, 21:], rtol=2e-6, atol=2e-6)


def test_its_registration_passes_opcheck(kernels):
    case = problem("causal", queries=4, knots=9, heads=1)
    q, k, v, gaps = (x.clone().requires_grad_() for x in case[:4])
    arguments = (q, k, v, gaps, case.first, case.last, 0.25, True, True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.ctsattn.continuous_attention.default, arguments, test_utils=tests)
    arguments = (q, k, v, case.gaps.cumsum(-1), 0.25, True, 0)
    torch.library.opcheck(torch.ops.ctsattn.clocked_continuous_attention.default, arguments, test_utils=tests)


def test_it_says_what_it_cannot_run_and_what_can(kernels, monkeypatch):
    x = torch.zeros(1, 1, 2, 16)
    assert kernels.why_not(x, x, x) is None
    assert 'backend="reference"` takes every dtype' in kernels.why_not(*[x.double()] * 3)
    wide = torch.zeros(1, 1, 2, 300)
    assert "at most 256 wide, but here they are 300 (keys) and 300" in kernels.why_not(wide, wide, wide)
    assert "bfloat16" in kernels.why_not(*[x.bfloat16()] * 3)
    monkeypatch.setattr(kernels, "interpreted", lambda: False)
    assert 'on a GPU, but `q` is on cpu; `backend="cpu"` runs there' in kernels.why_not(x, x, x)


@pytest.mark.parametrize(
    ("capability", "tf32", "fast"), [(9, True, 2), (8, True, 2), (9, False, 1), (10, True, 1)]
)
def test_threads_exchange_registers_only_where_it_is_known_which_hold_a_row(
    kernels, monkeypatch, capability, tf32, fast
):
    x = torch.zeros(1, 1, 2, 16)
    assert kernels.launch._fast(x, tf32) == 0
    monkeypatch.setattr(kernels.launch, "interpreted", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (capability, 0))
    assert kernels.launch._fast(x, tf32) == fast


@pytest.mark.parametrize("with_times", [True, False])
def test_it_is_traced_into_one_graph(kernels, with_times):
    case = problem("causal", queries=20, knots=20, heads=1)
    tensors = [x.clone().requires_grad_() for x in case[:3]]
    times = case.gaps.cumsum(-1) if with_times else None

    def attend(q, k, v):
        return continuous_attention(q, k, v, times, is_causal=True, backend="triton")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = [
        (out := f(*tensors), *torch.autograd.grad(out.square().sum(), tensors)) for f in (attend, compiled)
    ]
    for eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(eager, graph, rtol=1e-6, atol=1e-6)
