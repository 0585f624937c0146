"""The learned kernel: what every past moment weighs for every future one, with a start in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctsattn.data.batch import TaskSpec
from ctsattn.models.path import resample

_MAX_NODES = 512  # of the past and of the future
_RIDGES = tuple(10.0 ** (power / 2) for power in range(-8, 5))  # tried, in units of the mean square of a node
_BLOCKS = 5  # stretches of time, each forecast from the others to choose among them
_MAX_RANKED = 2**20  # cutoffs that are ranked to find the stretches
_RARE = 0.05  # a future node asked this much less often than the mean is half shrunk to 0


class LearnedKernel(nn.Module):
    r"""Learned weights of every past moment for every future moment, $\int W(T, s)\,(x(s) - \bar x)\,ds$.

    $W$ is held at evenly spaced nodes of past and future and starts at 0; the past is brought to its nodes by
    `resample`, the answer to the query by straight lines. On a regular grid it is an ordinary linear layer.

    Args:
        spec: Task, for look-back, horizon and gap.
        dropout: Share of past nodes dropped in training.
    """

    def __init__(self, spec: TaskSpec, dropout: float = 0.0) -> None:
        super().__init__()
        past = int(min(max(round(spec.lookback / spec.median_gap), 2), _MAX_NODES))
        future = int(min(max(round(spec.horizon / spec.median_gap), 1), _MAX_NODES))
        past_gap = spec.median_gap if past < _MAX_NODES else spec.lookback / past
        self.future_gap = spec.horizon / future
        self.nodes: Tensor
        self.register_buffer("nodes", past_gap * torch.arange(1.0 - past, 1.0), persistent=False)
        self.weight = nn.Parameter(torch.zeros(future, past))
        self.dropout = nn.Dropout(dropout)

    def forward(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Correction `[batch, channels, queries]` at the times `at` `[batch, queries]`; 0 in the past."""
        return self.answer(self.dropout(self.path(times, values, mask)), at)

    def path(self, times: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The past at the nodes without its mean, `[batch, channels, nodes]`."""
        path, _ = resample(times, values, mask, self.nodes.to(times))
        return path - path.mean(dim=-1, keepdim=True)

    def answer(self, path: Tensor, at: Tensor) -> Tensor:
        """Correction at the times `at` from a past at the nodes."""
        nodes = nn.functional.pad(path @ self.weight.mT, (1, 0))
        lower, share = self._place(at)
        index = lower.unsqueeze(1).expand(-1, path.shape[1], -1)
        return torch.lerp(nodes.gather(-1, index), nodes.gather(-1, index + 1), share.unsqueeze(1))

    def _place(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Future node at or before each time, counted from 0 at the cutoff, and the share of the next one."""
        place = (at / self.future_gap).clamp(0, len(self.weight))
        lower = place.floor().clamp(max=len(self.weight) - 1)
        return lower.long(), place - lower

    def rows(
        self, path: Tensor, residual: Tensor, observed: Tensor, at: Tensor, cutoff: Tensor
    ) -> KernelRows:
        """What windows with known truths say about the kernel.

        Args:
            path: The past at the nodes `[batch, channels, nodes]`.
            residual: What is left to explain `[batch, channels, queries]`.
            observed: Where it is known `[batch, channels, queries]`.
            at: The times of the queries `[batch, queries]`.
            cutoff: When the windows were cut `[batch]`, in the unit of `at`.
        """
        lower, share = self._place(at)
        hat = torch.stack([1 - share, share], dim=-1).flatten(-2).unsqueeze(1)
        hat = hat * observed.repeat_interleave(2, dim=-1)
        index = torch.stack([lower, lower + 1], dim=-1).flatten(-2).unsqueeze(1).expand_as(hat)
        empty = residual.new_zeros(*residual.shape[:2], len(self.weight) + 1)
        counts = empty.scatter_add(-1, index, hat)[..., 1:]
        sums = empty.scatter_add(-1, index, hat * residual.repeat_interleave(2, dim=-1))[..., 1:]
        clock = cutoff.to(path.device)[:, None].expand(path.shape[:2])
        parts = (path.flatten(0, 1), sums.flatten(0, 1), counts.flatten(0, 1), clock.flatten())
        return KernelRows(*(part.double() for part in parts))

    def solve(self, rows: Iterable[KernelRows], cutoffs: Tensor) -> None:
        """Set the kernel to the ridge regression that forecasts left-out stretches of time best, or to 0.

        Args:
            rows: What windows say, batch by batch; only sums of them are held.
            cutoffs: When all of them were cut, in the unit of their clock.
        """
        moments = _Moments.gather(rows, cutoffs.double().to(self.weight.device), self._span())
        ridge = moments.best_ridge()
        with torch.no_grad():
            self.weight.zero_() if ridge is None else self.weight.copy_(moments.total.regress([ridge])[0])

    def _span(self) -> float:
        """From the first node of the past to the last of the future."""
        return float(-self.nodes[0]) + len(self.weight) * self.future_gap


@dataclass(frozen=True)
class KernelRows:
    """Windows as rows of a regression of future nodes on past nodes, in float64.

    Attributes:
        path: `[rows, past nodes]`.
        sums: Weighted sums of the residuals at each future node `[rows, future nodes]`.
        counts: The sums of the weights `[rows, future nodes]`.
        clock: When each row's window was cut `[rows]`.
    """

    path: Tensor
    sums: Tensor
    counts: Tensor
    clock: Tensor

    def sums_of(self, chosen: Tensor) -> _Sums:
        """The sums over some of the rows; a row weighs as much as it has known queries."""
        path, counts = self.path[chosen], self.counts[chosen]
        squares = path.mT @ (counts.mean(dim=-1, keepdim=True) * path)
        return _Sums(squares, self.sums[chosen].mT @ path, counts.sum(dim=0))


@dataclass(frozen=True)
class _Sums:
    """All that a regression needs to know of its rows.

    Attributes:
        squares: `[past nodes, past nodes]`.
        products: `[future nodes, past nodes]`.
        counts: `[future nodes]`.
    """

    squares: Tensor
    products: Tensor
    counts: Tensor

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.squares + other.squares, self.products + other.products, self.counts + other.counts)

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(self.squares - other.squares, self.products - other.products, self.counts - other.counts)

    def per_query(self) -> Tensor:
        """The products as if each future node had been asked as often as the mean; rare ones are shrunk."""
        mean = self.counts.mean()
        return self.products * (mean / (self.counts + _RARE * mean).clamp(min=1e-300))[:, None]

    def regress(self, ridges: Sequence[float]) -> list[Tensor]:
        """Ridge regressions `[future nodes, past nodes]`, one for each ridge, in units of a mean square.

        Future nodes share one matrix of squares, so that one decomposition serves all nodes and all ridges.
        """
        squares, vectors = torch.linalg.eigh(self.squares)
        squares = squares.clamp(min=0)
        unit = squares.mean().clamp(min=1e-300)
        turned = self.per_query() @ vectors
        return [(turned / (squares + ridge * unit)) @ vectors.mT for ridge in ridges]

    def error(self, weight: Tensor) -> Tensor:
        """Mean squared error of a kernel at a query, less that of the kernel 0."""
        squared = (weight @ self.squares * weight).sum() - 2 * (weight * self.per_query()).sum()
        return squared / self.counts.sum().clamp(min=1e-300)


@dataclass(frozen=True)
class _Moments:
    """Sums over stretches of time.

    Attributes:
        blocks: The sums of each stretch.
        cores: The same without the windows that overlap with the stretch before.
    """

    blocks: list[_Sums]
    cores: list[_Sums]

    @staticmethod
    def gather(rows: Iterable[KernelRows], cutoffs: Tensor, span: float) -> _Moments:
        """Sum rows, batch by batch, over stretches with equally many cutoffs each."""
        shares = torch.arange(1, _BLOCKS, device=cutoffs.device, dtype=cutoffs.dtype) / _BLOCKS
        edges = torch.quantile(cutoffs[torch.randperm(len(cutoffs))[:_MAX_RANKED]], shares)
        starts = torch.cat([edges.new_full((1,), -torch.inf), edges])
        ends = torch.cat([edges, cutoffs.amax().unsqueeze(0)])
        cores = starts + torch.minimum(edges.new_tensor(span), (ends - starts) / 2)
        sums: list[tuple[_Sums, _Sums]] = []
        for some in rows:
            block = torch.searchsorted(edges, some.clock, right=True)
            found = [
                (some.sums_of(block == i), some.sums_of((block == i) & (some.clock >= cores[i])))
                for i in range(_BLOCKS)
            ]
            sums = [(a + b, c + d) for (a, c), (b, d) in zip(sums, found, strict=True)] if sums else found
        return _Moments([block for block, _ in sums], [core for _, core in sums])

    @property
    def total(self) -> _Sums:
        """The sums of all."""
        first, *rest = self.blocks
        return sum(rest, start=first)

    def best_ridge(self) -> float | None:
        """The ridge whose regressions forecast the stretches left out of them best; None: none beats 0."""
        total = self.total
        known = [i for i, core in enumerate(self.cores) if core.counts.any()]
        if len(known) < 2:
            return None
        errors = torch.stack([self._errors(total, i) for i in known]).mean(dim=0)
        best = int(errors.argmin())
        return _RIDGES[best] if errors[best] < 0 else None

    def _errors(self, total: _Sums, left_out: int) -> Tensor:
        """Errors `[ridges]` in a stretch of the regressions on all others."""
        weights = (total - self.blocks[left_out]).regress(_RIDGES)
        return torch.stack([self.cores[left_out].error(weight) for weight in weights])
