"""Problems for the Triton kernels, and their error against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ctsattn.ops.continuous import reference


class Canonical(NamedTuple):
    """Arguments of `core`, and weights of a scalar loss on its two results."""

    q: Tensor
    k: Tensor
    v: Tensor
    gaps: Tensor
    first: Tensor
    last: Tensor
    hints: dict[str, bool]
    out_weight: Tensor
    lse_weight: Tensor


def limits(kind: str, batch: int, queries: int, knots: int) -> tuple[Tensor, Tensor]:
    """First and last knots `[batch, queries]` of one way to see a row."""
    place = torch.arange(queries)
    zero = torch.zeros(batch, queries, dtype=torch.int32)
    match kind:
        case "causal":
            return zero, place.clamp(max=knots - 1).int().expand(batch, -1).contiguous()
        case "full":
            return zero, zero + knots - 1
        case "padded":
            return zero, zero + torch.arange(batch, dtype=torch.int32)[:, None] * 5 + knots // 2
        case "packed":
            series = torch.tensor([0, knots // 5, knots // 2])
            first = series[torch.bucketize(place, series, right=True) - 1]
            return first.int().expand(batch, -1).contiguous(), (zero + place).clamp(max=knots - 1).int()
        case _:
            generator = torch.Generator().manual_seed(5)
            first = torch.randint(0, knots, (batch, queries), generator=generator)
            last = first + torch.randint(-2, knots, (batch, queries), generator=generator)
            return first.int(), last.clamp(max=knots - 1).int()


def problem(
    kind: str = "causal",
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    queries: int = 40,
    knots: int = 70,
    head_dim: int = 16,
    value_dim: int = 32,
    ties: bool = False,
    loudness: float = 1.0,
    smooth: bool = False,
) -> Canonical:
    """Random tensors; `ties`: gaps of 0; `loudness` multiplies scores; `smooth`: neighbours are alike."""
    generator = torch.Generator().manual_seed(knots)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, v = loudness * normal(batch, heads, queries, head_dim), normal(batch, kv_heads, knots, value_dim)
    k = normal(batch, kv_heads, knots, head_dim)
    gaps = torch.rand(batch, knots, generator=generator) + 0.01
    gaps[:, 0] = 0
    if smooth:
        k = (0.001 * k).cumsum(dim=2)
    if ties:
        gaps[:, ::7] = 0
        gaps[:, 1::7] = 0
    first, last = limits(kind, batch, queries, knots)
    if kind == "packed":
        gaps[:, first.long().unique()] = 0
    hints = {"causal": kind == "causal", "full": kind == "full"}
    return Canonical(q, k, v, gaps, first, last, hints, normal(*q.shape[:3], value_dim), normal(*q.shape[:3]))


def inside(x: Tensor, around: float) -> Tensor:
    """`x` [.., .., rows, columns] as a part of a larger tensor of `around`."""
    room = x.new_full((*x.shape[:2], x.shape[2] + 9, x.shape[3] + 16), around)
    room[:, :, : x.shape[2], : x.shape[3]] = x
    return room[:, :, : x.shape[2], : x.shape[3]]


def solve(
    core: Callable[..., tuple[Tensor, Tensor]],
    case: Canonical,
    dtype: torch.dtype,
    device: str = "cpu",
    around: float | None = None,
    by_gaps: bool = True,
) -> dict[str, Tensor]:
    """Results of a core and the gradients of the loss, in float64 on the CPU.

    `around`: see `inside`. `by_gaps`: whether the gradient by the gaps is asked for.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = [x.detach().clone().to(device, dtype) for x in case[:3]]
    if around is not None:
        tensors = [inside(x, around) for x in tensors]
    q, k, v = (x.requires_grad_() for x in tensors)
    gaps = case.gaps.detach().clone().to(device, wide).requires_grad_(by_gaps)
    scale = case.q.shape[-1] ** -0.5
    out, lse = core(q, k, v, gaps, case.first.to(device), case.last.to(device), scale, **case.hints)
    finite = torch.where(lse == -torch.inf, 0.0, lse)
    loss = (out * case.out_weight.to(out)).sum() + (finite * case.lse_weight.to(lse)).sum()
    loss.backward()
    results = {
        "out": out.detach(),
        "lse": lse.detach(),
        "dq": q.grad,
        "dk": k.grad,
        "dv": v.grad,
    } | ({"dgaps": gaps.grad} if by_gaps else {})
    return {name: x.double().cpu() for name, x in results.items()}


def errors(actual: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """Relative errors in the Frobenius norm; what is infinite must be so in both."""
    found = {}
    for name, x in actual.items():
        y = truth[name]
        assert torch.equal(x == -torch.inf, y == -torch.inf), f"{name} is -inf elsewhere"
        x, y = (torch.where(z == -torch.inf, 0.0, z) for z in (x, y))
        found[name] = ((x - y).norm() / y.norm().clamp(min=1e-30)).item()
    return found


def errors_of_rounding_the_output(
    case: Canonical, exact: dict[str, Tensor], dtype: torch.dtype, device: str = "cpu"
) -> dict[str, float]:
    """Relative errors of gradients if nothing but the output is rounded, before `dO·out` is taken of it.

    Flash attention's backward pass reads the output in `dtype`, and so do these kernels. What `dO·out` is off
    by weighs the gradient of the log-sum-exp. The values' gradient does not hang on it.
    """
    out = exact["out"]
    off = (case.out_weight.double() * (out.to(dtype).double() - out)).sum(-1)
    unweighted = case._replace(out_weight=torch.zeros_like(case.out_weight), lse_weight=off)
    gradients = solve(reference.core, unweighted, torch.float64, device)
    parts = ("dq", "dk", "dgaps")
    return {name: (gradients[name].norm() / exact[name].norm().clamp(min=1e-30)).item() for name in parts}


def rounded(case: Canonical, dtype: torch.dtype) -> Canonical:
    """The case with inputs that `dtype` holds exactly."""
    q, k, v, weight = (x.to(dtype).float() for x in (case.q, case.k, case.v, case.out_weight))
    return case._replace(q=q, k=k, v=v, out_weight=weight)


@pytest.fixture
def truth() -> Callable[[Canonical], dict[str, Tensor]]:
    """The definition in float64."""
    return lambda case: solve(reference.core, case, torch.float64)
