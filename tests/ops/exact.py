"""What the operator tests share: problems on many clocks, and the integral by quadrature, without phi."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ctsattn.ops.continuous.reference import piece_weights

# Backends that compute the operator itself, not an approximation, on the CPU.
EXACT_BACKENDS = ("reference", "cpu")

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


class Inputs(NamedTuple):
    """Arguments of `continuous_attention`: `[batch, heads, length, width]` and `[batch, keys]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    times: Tensor


class Shape(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int


SHAPES = (
    Shape(1, 1, 1, 1, 1, 8, 8),
    Shape(2, 2, 1, 2, 2, 16, 5),
    Shape(1, 3, 3, 3, 3, 8, 32),
    Shape(2, 4, 2, 13, 13, 32, 24),
    Shape(1, 2, 2, 7, 31, 64, 64),
    Shape(1, 6, 2, 53, 53, 128, 16),
    Shape(1, 1, 1, 17, 17, 256, 8),
)
EMPTY_SHAPES = (
    Shape(0, 2, 1, 5, 5, 8, 4),
    Shape(2, 0, 0, 5, 5, 8, 4),
    Shape(2, 2, 1, 0, 5, 8, 4),
    Shape(2, 2, 1, 5, 0, 8, 4),
    Shape(2, 2, 2, 0, 0, 8, 4),
)


def clock(name: str, batch: int, keys: int, seed: int = 0) -> Tensor:
    """Ascending times `[batch, keys]` in float64."""
    generator = torch.Generator().manual_seed(seed)
    gaps = torch.rand(batch, keys, generator=generator, dtype=torch.float64) + 0.1
    match name:
        case "regular":
            gaps = torch.ones_like(gaps)
        case "bursty":
            gaps = torch.where(torch.rand(batch, keys, generator=generator) < 0.7, gaps / 50, gaps * 5)
        case "repeated":
            gaps = torch.where(torch.rand(batch, keys, generator=generator) < 0.5, 0.0, gaps)
        case "twelve orders":
            gaps = 10 ** (torch.rand(batch, keys, generator=generator, dtype=torch.float64) * 12 - 6)
    times = gaps.cumsum(dim=-1)
    return times + 1e9 if name == "far origin" else times


CLOCKS = ("regular", "jittered", "bursty", "repeated", "far origin", "twelve orders")


def inputs(
    shape: Shape,
    clock_name: str = "jittered",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    size: float = 1.0,
) -> Inputs:
    """A random problem; `size` is the spread of the scores at the default scale."""
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, length: int, width: int) -> Tensor:
        x = torch.randn(shape.batch, heads, length, width, generator=generator, dtype=torch.float64)
        return x.to(dtype)

    q = normal(shape.heads, shape.queries, shape.head_dim) * size
    k = normal(shape.kv_heads, shape.keys, shape.head_dim)
    v = normal(shape.kv_heads, shape.keys, shape.value_dim)
    return Inputs(q, k, v, clock(clock_name, shape.batch, shape.keys, seed))


def integral(
    query: Tensor, keys: Tensor, values: Tensor, times: Tensor, begin: float, end: float, scale: float
) -> np.ndarray:
    """Quotient of the two integrals for one query, by Gauss-Legendre quadrature on short pieces.

    Over an empty interval it is its limit, the value at the beginning.

    Args:
        query: `[head_dim]`.
        keys: `[knots, head_dim]`, joined by straight lines, constant beyond the last.
        values: `[knots, value_dim]`, likewise.
        times: `[knots]`, without repeated ones.
        begin: Start of the interval.
        end: End of the interval.
        scale: Factor on the scores.
    """
    begin, end, times = begin - times[0].item(), end - times[0].item(), times - times[0]
    query, keys, values, times = (x.double().numpy() for x in (query, keys, values, times))
    if end <= begin:
        return np.array([np.interp(begin, times, column) for column in values.T])
    scores = scale * keys @ query
    borders = np.unique(np.concatenate([[begin, end], times[(times > begin) & (times < end)]]))
    # Cut each piece so that the score changes by at most 2 between neighbouring borders.
    at = np.interp(borders, times, scores)
    fine = [
        np.linspace(a, b, 2 + int(abs(y - x) / 2))[:-1]
        for a, b, x, y in zip(borders[:-1], borders[1:], at[:-1], at[1:], strict=True)
    ]
    cuts = np.concatenate([*fine, borders[-1:]])
    half = np.diff(cuts)[:, None] / 2
    points = (cuts[:-1, None] + half * (NODES + 1)).ravel()
    density = (half * WEIGHTS).ravel() * np.exp(np.interp(points, times, scores) - scores.max())
    along = np.stack([np.interp(points, times, column) for column in values.T], axis=-1)
    return density @ along / density.sum()


def integrals(given: Inputs, begin: Tensor, end: Tensor, scale: float | None = None) -> Tensor:
    """The integral of each query over its own interval; `begin` and `end` are `[batch, queries]`."""
    q, k, v, times = given
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b, h, i in np.ndindex(*q.shape[:3]):
        limits = begin[b, i].item(), end[b, i].item()
        row = k[b, h // groups], v[b, h // groups], times[b]
        out[b, h, i] = torch.from_numpy(integral(q[b, h, i], *row, *limits, scale))
    return out


def size_of_time_terms(given: Inputs, upstream: Tensor, is_causal: bool = False) -> float:
    """Largest sum of magnitudes of what the gradient of a time is made of; queries sit at keys if causal.

    The gradient of a gap sums `left (g0 - D) + right (g1 - D)`, over the sum of weights, over queries and
    heads. These cancel: for one query the gaps' gradients, times the gaps, sum to 0. Rounding errors are
    small next to the terms, not next to what is left of them.
    """
    q, k, v, times = (x.double() for x in given)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    seen = seen.tril() if is_causal else seen
    scores = scores - scores.masked_fill(~seen, -torch.inf).amax(dim=-1, keepdim=True)
    left, right = (
        x.masked_fill(~seen[:, 1:], 0.0)
        for x in piece_weights(scores[..., :-1], scores[..., 1:], torch.ones((), dtype=torch.float64))
    )
    gaps, g = times.diff(dim=-1)[:, None, None], upstream.double() @ v.mT
    total = (gaps * (left + right)).sum(dim=-1, keepdim=True)
    total = total.masked_fill(total == 0, torch.inf)
    mean = (gaps * (left * g[..., :-1] + right * g[..., 1:])).sum(dim=-1, keepdim=True) / total
    terms = (left * (g[..., :-1].abs() + mean.abs()) + right * (g[..., 1:].abs() + mean.abs())) / total
    return terms.sum(dim=(1, 2)).max().item() if terms.numel() else 0.0
