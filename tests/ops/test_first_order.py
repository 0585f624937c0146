"""The first-order form and the trapezoid rule: each against its formula, and their own exact properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ctsattn import continuous_attention
from ctsattn.ops import Sink, trapezoid_attention
from ctsattn.ops.continuous.cpu import direct, workers
from ctsattn.ops.continuous.first_order import smoothed_attention
from tests.ops.exact import CLOCKS, EMPTY_SHAPES, SHAPES, Inputs, Shape, inputs

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SMALL = Shape(2, 4, 2, 13, 13, 16, 8)
OPERATORS = {
    "first_order": partial(continuous_attention, enable_gqa=True, backend="first_order"),
    "trapezoid": partial(trapezoid_attention, enable_gqa=True),
}
SHARES = {"first_order": 1 / 3, "trapezoid": 0.0}

Attention = Callable[..., Tensor]


@pytest.fixture(params=OPERATORS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def attention(name: str) -> Attention:
    return OPERATORS[name]


def by_formula(
    q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, first: Tensor, last: Tensor, scale: float, share: float
) -> tuple[Tensor, Tensor]:
    """The weights as the design page of the operator writes them, one query after the other."""
    rows, logs = [], []
    groups = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(*q.shape[:3]):
        begin, end = int(first[b, i]), int(last[b, i])
        a = scale * k[b, h // groups, begin : end + 1] @ q[b, h, i]
        dt = gaps[b, begin + 1 : end + 1]
        none = dt.new_zeros(min(len(a), 1))
        before, after = torch.cat([none, dt]), torch.cat([dt, none])
        width = before + after
        lean = before * (torch.cat([a[:1], a[:-1]]) - a) + after * (torch.cat([a[1:], a[-1:]]) - a)
        some = width > 0
        terms = (a + share * lean / width.where(some, 1.0) + (width.where(some, 1.0) / 2).log())[some]
        logs.append(terms.logsumexp(dim=0))
        rows.append(terms.softmax(dim=0) @ v[b, h // groups, begin : end + 1][some])
    return torch.stack(rows).reshape(*q.shape[:3], -1), torch.stack(logs).reshape(q.shape[:3])


CASES = {
    "causal": (7, 7, 0),
    "causal after a sink": (7, 8, 1),
    "one query and its knot": (1, 1, 0),
    "one query after a sink": (1, 2, 1),
    "full": (5, 9, 0),
    "any": (5, 9, 0),
}


def problem(case: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, Tensor, tuple[bool, bool, int]]:
    """Arguments of a core, some gaps 0, and its hints `causal`, `full` and `offset`."""
    queries, knots, offset = CASES[case]
    given = inputs(Shape(2, 4, 2, queries, knots, 8, 6), dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    gaps = torch.rand(2, knots, generator=generator) * (torch.rand(2, knots, generator=generator) > 0.3)
    gaps = gaps.to(torch.promote_types(dtype, torch.float32))
    causal, full = case.startswith(("causal", "one")), case == "full"
    first = torch.zeros(2, queries, dtype=torch.int32)
    last = torch.full((2, queries), knots - 1).int()
    if causal:
        last = (torch.arange(queries) + offset).expand(2, -1).int()
    elif not full:
        first = torch.randint(0, 4, (2, queries), generator=generator).int()
        last = torch.randint(-1, knots, (2, queries), generator=generator).int()
    return [*given[:3], gaps], first, last, (causal, full, offset)


def assert_as_the_formula(name: str, case: str, dtype: torch.dtype, device: str) -> None:
    """Outputs, logarithms and all gradients of `smoothed_attention` against float64."""
    tensors, first, last, hints = problem(case, dtype)
    narrow = [x.to(device).requires_grad_() for x in tensors]
    wide = [x.detach().double().requires_grad_() for x in tensors]
    q, k, v, gaps = narrow
    causal, full, offset = hints
    found = smoothed_attention(
        q, k, v, gaps, first.to(device), last.to(device), 0.4, causal, full, offset, SHARES[name]
    )
    out, lse = (x.cpu() for x in found)
    q, k, v, gaps = wide
    expected, expected_lse = by_formula(q, k, v, gaps, first, last, 0.4, SHARES[name])
    some = expected_lse.isfinite()
    assert torch.equal(lse.isfinite(), some)
    rounding = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=rounding, atol=rounding)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=rounding, atol=rounding)
    upstream = torch.randn_like(expected), torch.randn_like(expected_lse)
    ((out.double() * upstream[0]).sum() + (lse.double().where(some, 0.0) * upstream[1]).sum()).backward()
    ((expected * upstream[0]).sum() + (expected_lse.where(some, 0.0) * upstream[1]).sum()).backward()
    for x, y in zip(narrow, wide, strict=True):
        assert x.grad is not None and y.grad is not None
        largest = max(y.grad.abs().max().item(), 1.0)
        torch.testing.assert_close(x.grad.cpu().double(), y.grad, rtol=0.0, atol=2 * rounding * largest)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_outputs_logarithms_and_gradients_of_both_are_those_of_the_formula(
    name: str, case: str, dtype: torch.dtype
) -> None:
    assert_as_the_formula(name, case, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_outputs_logarithms_and_gradients_on_cuda_are_those_of_the_formula(
    name: str, case: str, dtype: torch.dtype
) -> None:
    assert_as_the_formula(name, case, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [Shape(3, 4, 2, 200, 200, 64, 64), Shape(2, 3, 3, 77, 77, 33, 40)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"is_causal": True, "sink": Sink()},
        {"is_causal": True, "holes": True},
        {"interval": "symmetric", "tail": "hold", "is_causal": True},
    ],
    ids=str,
)
def test_the_public_operators_on_cuda_are_those_on_the_cpu_in_value_and_in_gradient(
    attention: Attention, shape: Shape, dtype: torch.dtype, options: dict[str, object]
) -> None:
    given = inputs(shape, dtype=dtype)
    options = dict(options)
    mask = torch.rand(shape.batch, shape.keys) > 0.2 if options.pop("holes", False) else None

    def ours(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        return attention(q, k, v, times, key_mask=None if mask is None else mask.to(q.device), **options)

    bounds = [8 * torch.finfo(dtype).eps] * 5
    if dtype == torch.float32:
        theirs = partial(stock_attention_with_weights, is_causal="is_causal" in options)
        bounds = [1.5 * error for error in errors_on_cuda(theirs, given)]
        bounds[-1] = max(bounds)  # more than the other gradients, that of times is a sum of differences
    for error, bound in zip(errors_on_cuda(ours, given), bounds, strict=True):
        assert error <= bound


def stock_attention_with_weights(q: Tensor, k: Tensor, v: Tensor, times: Tensor, is_causal: bool) -> Tensor:
    """The stock kernel for float32 on CUDA on the same inputs, with the logarithm of each key's time as bias.

    `scaled_dot_product_attention` takes it wherever rows in memory and widths suit it; here they do.
    """
    gaps = torch.nn.functional.pad(times.diff(dim=-1), (1, 1))
    bias = ((gaps[:, 1:] + gaps[:, :-1]) / 2).log().to(q.dtype)[:, None, None]
    if is_causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        bias = bias.masked_fill(later, -torch.inf)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    width = max(q.shape[-1], v.shape[-1]) + 7 & ~7
    wide = (torch.nn.functional.pad(x, (0, width - x.shape[-1])).contiguous() for x in (q, k, v))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else SDPBackend.MATH):
        out = scaled_dot_product_attention(*wide, attn_mask=bias, scale=q.shape[-1] ** -0.5)
    return out[..., : v.shape[-1]]


def errors_on_cuda(attend: Attention, given: Inputs) -> list[float]:
    """Relative errors of outputs and of the gradients of q, k, v and times, against float64 on the CPU."""
    found = []
    for device, wide in (("cuda", given.q.dtype), ("cpu", torch.float64)):
        leaves = [x.detach().to(device, wide).requires_grad_() for x in given[:3]]
        times = given.times.detach().to(device).requires_grad_()
        # Views that begin in the middle of a row of memory: the kernels need more than that.
        q = torch.cat([leaves[0][..., :1], leaves[0]], dim=-1)[..., 1:]
        out = attend(q, *leaves[1:], times)
        out.double().square().sum().backward()
        found.append([out.detach(), *(x.grad for x in (*leaves, times))])
    truths = [x.double() for x in found[1]]
    return [((x.double().cpu() - y).norm() / y.norm()).item() for x, y in zip(found[0], truths, strict=True)]


def published_rule(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
    """Continuum Attention's discretisation: the trapezoid rule on e^a and on e^a v, over the coordinates."""
    logits = q @ k.mT / q.shape[-1] ** 0.5
    exponentials = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    widths = times.diff(dim=-1)[:, None, None]
    mass = (widths * (exponentials[..., 1:] + exponentials[..., :-1]) / 2).sum(dim=-1, keepdim=True)
    p = (exponentials / mass)[..., None] * v[:, :, None]
    return (widths[..., None] * (p[..., 1:, :] + p[..., :-1, :]) / 2).sum(dim=-2)


@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize("size", [1.0, 10.0])
def test_trapezoid_attention_is_continuum_attentions_published_rule(clock_name: str, size: float) -> None:
    q, k, v, times = inputs(SMALL._replace(kv_heads=4), clock_name, size=size)
    torch.testing.assert_close(trapezoid_attention(q, k, v, times), published_rule(q, k, v, times))


def test_trapezoid_attention_is_softmax_with_the_logarithm_of_each_keys_time_as_bias() -> None:
    q, k, v, times = inputs(SMALL._replace(kv_heads=4))
    gaps = torch.nn.functional.pad(times.diff(dim=-1), (1, 1))
    bias = ((gaps[:, 1:] + gaps[:, :-1]) / 2).log()[:, None, None]
    expected = scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(trapezoid_attention(q, k, v, times), expected)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.queries == shape.keys], ids=str)
@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constant_values_come_out_unchanged_and_causal_queries_equal_the_prefix(
    attention: Attention, shape: Shape, clock_name: str, dtype: torch.dtype
) -> None:
    q, k, v, times = inputs(shape, clock_name, dtype)
    rounding = 16 * torch.finfo(dtype).eps
    same = v[:, :, :1].expand_as(v)
    expected = same.repeat_interleave(shape.heads // shape.kv_heads, dim=1)
    out = attention(q, k, same, times, is_causal=True)
    torch.testing.assert_close(out, expected, rtol=rounding, atol=rounding)
    out = attention(q, k, v, times, is_causal=True)
    middle = shape.keys // 2
    knots = (x[:, :, : middle + 1] for x in (k, v))
    alone = attention(q[:, :, middle : middle + 1], *knots, times[:, : middle + 1])
    torch.testing.assert_close(out[:, :, middle : middle + 1], alone, rtol=rounding, atol=2 * rounding)


def change_after(given: Inputs, knot: int) -> Inputs:
    q, k, v, times = (x.clone() for x in given)
    k[:, :, knot + 1 :] = 7.0
    v[:, :, knot + 1 :] = -3.0
    times[:, knot + 1 :] = times[:, knot + 1 :] * 1.7 + 3.1
    return Inputs(q, k, v, times)


@pytest.mark.parametrize("clock_name", CLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sink", [None, Sink()], ids=["no sink", "sink"])
@pytest.mark.parametrize("by_time", [True, False])
def test_an_output_depends_on_no_later_knot_to_the_bit_in_value_and_in_gradient(
    attention: Attention, clock_name: str, dtype: torch.dtype, sink: Sink | None, by_time: bool
) -> None:
    given = inputs(SMALL, "jittered" if by_time and clock_name == "repeated" else clock_name, dtype)

    def run(problem: Inputs) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in problem]
        query_times = given.times[:, :6] if by_time else None
        q = leaves[0][:, :, :6] if by_time else leaves[0]
        out = attention(q, *leaves[1:], query_times=query_times, is_causal=True, sink=sink)[:, :, :6]
        out.float().square().sum().backward()
        return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]

    before, after = run(given), run(change_after(given, 5))
    assert len(before) == 5
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"sink": Sink("first", 0.0, 0.4)}], ids=str)
def test_padding_masks_and_packing_equal_the_rows_alone(
    attention: Attention, options: dict[str, object]
) -> None:
    q, k, v, times = inputs(SMALL)
    mask = torch.arange(13) < torch.tensor([[8], [13]])
    poisoned = [x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (k, v)]
    alone = attention(q[:1, :, :8], k[:1, :, :8], v[:1, :, :8], times[:1, :8], **options)
    out = attention(q, *poisoned, times, key_mask=mask, **options)
    torch.testing.assert_close(out[:1, :, :8], alone)
    packed = attention(q, k, v, times, cu_seqlens=torch.tensor([0, 8, 13]), **options)
    torch.testing.assert_close(packed[:1, :, :8], alone)
    keep = [0, 2, 3, 7, 12]
    holes = torch.zeros(13, dtype=torch.bool)
    holes[keep] = True
    out = attention(q, k, v, times, key_mask=holes, **options)[:, :, keep]
    removed = attention(*(x[:, :, keep] for x in (q, k, v)), times[:, keep], **options)
    torch.testing.assert_close(out, removed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repeated_times_and_steep_scores_give_no_nan(attention: Attention, dtype: torch.dtype) -> None:
    q, k, v, _ = inputs(SMALL, dtype=dtype, size=30.0)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    times = torch.tensor([0.0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5]).requires_grad_()
    for is_causal in (True, False):
        out = attention(*leaves, times, is_causal=is_causal)
        assert out.isfinite().all()
        out.float().square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (*leaves, times))


@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_empty_axes_give_empty_outputs_or_zeros(attention: Attention, shape: Shape) -> None:
    out = attention(*inputs(shape), is_causal=True)
    assert out.shape == (shape.batch, shape.heads, shape.queries, shape.value_dim)
    assert (out == 0).all()


def test_it_compiles_into_one_graph_and_trains(attention: Attention) -> None:
    torch.compiler.reset()
    eager, compiled = ([x.requires_grad_() for x in inputs(SMALL)] for _ in range(2))
    options = {"is_causal": True, "sink": Sink()}
    out = torch.compile(partial(attention, **options), fullgraph=True, backend="eager")(*compiled)
    torch.testing.assert_close(out, attention(*eager, **options))
    out.square().sum().backward()
    attention(*eager, **options).square().sum().backward()
    for x, y in zip(compiled, eager, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("before", [None, 0, 1])
def test_the_registered_operator_passes_opcheck(before: int | None) -> None:
    given = inputs(Shape(2, 2, 1, 5, 5 + (before or 0), 8, 6), dtype=torch.float32)
    q, k, v = (x.requires_grad_() for x in given[:3])
    bias = torch.randn(2, k.shape[2], requires_grad=True)
    ends = None, None
    if before is not None:
        ends = torch.randn(2, 2, 5, 1, requires_grad=True), torch.randn(2, 2, 5, 1, 6, requires_grad=True)
    torch.library.opcheck(
        torch.ops.ctsattn.stock_attention.default, (q, k, v, bias, None, *ends, 0.3, before)
    )


def smooth(times: Tensor, width: int, seed: int) -> Tensor:
    """Smooth random functions at `times`: `[1, 1, length, width]`."""
    frequency, phase = (
        np.random.default_rng(seed).normal(size=(2, width, 4)) * np.array([4.0, 3.0])[:, None, None]
    )
    waves = np.sin(frequency * times.numpy()[:, None, None] + phase).sum(axis=-1)
    return torch.from_numpy(waves)[None, None]


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_distance_of_the_first_order_form_from_the_exact_operator_shrinks_as_the_square_of_the_gap(
    is_causal: bool,
) -> None:
    counts, distances = [32, 64, 128, 256, 512], []
    for count in counts:
        grid = torch.linspace(0, 1, count + 1, dtype=torch.float64) ** 1.5
        jitter = (
            torch.from_numpy(np.random.default_rng(0).uniform(-0.3, 0.3, count + 1))
            / count
            * grid
            * (1 - grid)
        )
        times = grid + jitter
        q, k, v = smooth(times[-1:], 4, 1), smooth(times, 4, 2), smooth(times, 3, 3)
        q = q.expand(-1, -1, count + 1, -1) if is_causal else q
        exact, close = (
            continuous_attention(q, k, v, times, is_causal=is_causal, backend=backend)[:, :, -1]
            for backend in ("reference", "first_order")
        )
        distances.append((exact - close).abs().max().item())
    order = -np.polyfit(np.log(counts), np.log(distances), 1)[0]
    assert 1.8 < order < 2.3


def test_heads_whose_columns_lie_apart_in_memory_give_the_same() -> None:
    q, k, v = (torch.randn(2, 2, 8, 7).mT for _ in range(3))
    times = torch.arange(7.0).square()
    strided = trapezoid_attention(q, k, v, times)
    torch.testing.assert_close(
        strided, trapezoid_attention(q.contiguous(), k.contiguous(), v.contiguous(), times)
    )


def test_gradients_of_function_transforms_are_those_of_autograd(attention: Attention) -> None:
    q, k, v, times = inputs(SMALL)

    def loss(*x: Tensor) -> Tensor:
        return attention(*x, is_causal=True).square().sum()

    leaves = [x.clone().requires_grad_() for x in (q, k, v, times)]
    loss(*leaves).backward()
    for x, found in zip(leaves, torch.func.grad(loss, argnums=(0, 1, 2, 3))(q, k, v, times), strict=True):
        torch.testing.assert_close(found, x.grad)


@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_a_scale_may_be_zero_or_negative(attention: Attention, scale: float) -> None:
    q, k, v, times = inputs(SMALL)
    out = attention(q, k, v, times, is_causal=True, scale=scale)
    torch.testing.assert_close(out, attention(q * scale, k, v, times, is_causal=True, scale=1.0))


FUSED = {
    "all": {},
    "past": {"is_causal": True},
    "past after a sink": {"is_causal": True, "sink": Sink(0.3, 1.0, 0.5)},
    "all and a sink": {"sink": Sink()},
    "padded": {"is_causal": True, "key_mask": torch.arange(13) < torch.tensor([[13], [7]])},
}


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shape", [SMALL, Shape(2, 3, 1, 13, 13, 8, 24)], ids=str)
@pytest.mark.parametrize("case", FUSED)
def test_the_kernels_give_what_tensor_operations_give(
    attention: Attention, case: str, shape: Shape, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, upstream = inputs(shape, dtype=dtype), torch.randn(*shape[:2], 13, shape.value_dim, dtype=dtype)
    can_do, results, used = direct.can_do, [], []
    for decide in (lambda *x: used.append(can_do(*x)) or used[-1], lambda *x: False):
        monkeypatch.setattr(direct, "can_do", decide)
        leaves = [x.mT.contiguous().mT.requires_grad_() for x in given[:3]]
        out = attention(*leaves, given.times, **FUSED[case])
        results.append([out, *torch.autograd.grad(out, leaves, upstream)])
    assert True in used
    for x, y in zip(*results, strict=True):
        assert (x - y).abs().max() < 8 * torch.finfo(dtype).eps * y.abs().max()


@pytest.mark.parametrize("has_team", [True, False], ids=["threads of torch", "pool"])
@pytest.mark.parametrize("case", ["all", "past", "past after a sink"])
def test_any_number_of_threads_gives_the_same(
    attention: Attention, case: str, has_team: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_team:
        monkeypatch.setattr(workers, "_TEAM", None)
    monkeypatch.setattr(workers, "_WORTH_A_TEAM", 0)
    monkeypatch.setattr(workers, "_WORTH_SHARING", 0)
    given, before, results = inputs(Shape(5, 4, 2, 13, 13, 16, 8)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            leaves = [x.clone().requires_grad_() for x in given[:3]]
            out = attention(*leaves, given.times, **FUSED[case])
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        for x, y in zip(results[0], result, strict=True):  # the stock kernel's own last bits differ
            torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-14)


def test_with_fewer_queries_than_knots_nothing_is_read_beyond_the_queries(attention: Attention) -> None:
    # Queries and their gradients stand at the end of numbers that would spoil every result.
    given = inputs(Shape(2, 2, 2, 3, 40, 8, 8), dtype=torch.float64)
    spoiled = torch.full((2 * 3 * 2 * 2 * 8,), torch.nan, dtype=torch.float64)
    around = spoiled[: given.q.numel()].copy_(given.q.detach().flatten()).view_as(given.q)
    q, k, v = (x.detach().requires_grad_() for x in (around, given.k, given.v))
    out = attention(q, k, v, given.times)
    grad = torch.full((2 * out.numel(),), torch.nan, dtype=torch.float64)
    grad = grad[: out.numel()].fill_(1.0).view_as(out)
    for gradient in torch.autograd.grad(out, (q, k, v), grad):
        assert gradient.isfinite().all()
