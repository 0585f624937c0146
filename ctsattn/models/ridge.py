"""Kernels by ridge regression: sums over windows by stretches of time, and the ridge that forecasts best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

_RIDGES = tuple(10.0 ** (power / 2) for power in range(-8, 5))  # tried, in units of the mean square of a node
_BLOCKS = 5  # stretches of time, each forecast from the others to choose among them
_AT_ONCE = 2**24  # values that are brought to float64 together
_ON_CPU = 768  # nodes up to which a matrix is decomposed on the CPU
_RARE = 0.05  # a future node asked this much less often than the mean is half shrunk to 0


def recent(path: Tensor, nodes: int) -> Tensor:
    """The last nodes of a path, without their mean `[..., nodes]`."""
    part = path[..., -nodes:]
    return part - part.mean(dim=-1, keepdim=True)


@dataclass(frozen=True)
class KernelRows:
    """Windows as rows of a regression of future nodes on past nodes.

    Attributes:
        path: `[rows, past nodes]`, without its mean.
        sums: Weighted sums of the residuals at each future node `[rows, future nodes]`.
        counts: The sums of the weights `[rows, future nodes]`.
        clock: When each row's window was cut, float64 `[rows]`.
        target: The target of each row `[rows]`.
        phases: Weight of each phase of a period at the cutoff `[rows, phases]`.
        levels: How high the past stood and where it ended `[rows, 2]`, see `level`.
    """

    path: Tensor
    sums: Tensor
    counts: Tensor
    clock: Tensor
    target: Tensor
    phases: Tensor
    levels: Tensor

    @staticmethod
    def joined(parts: Sequence[KernelRows]) -> KernelRows:
        """The rows of some batches in the order of their cutoffs, those with nothing to explain left out."""
        columns = zip(*(_columns(part) for part in parts), strict=True)
        rows = KernelRows(*(torch.cat(column) for column in columns))
        rows = rows.chosen(rows.counts.sum(dim=-1) > 0)
        return rows.chosen(rows.clock.argsort(stable=True))

    def weighted(self, weight: Tensor) -> KernelRows:
        """The rows of positive weight `[rows]`, counted that often."""
        kept = weight.nonzero().squeeze(-1)
        some, share = self.chosen(kept), weight[kept].unsqueeze(-1)
        return replace(some, sums=some.sums * share, counts=some.counts * share)

    def chosen(self, kept: Tensor | slice) -> KernelRows:
        """Some of the rows."""
        return KernelRows(*(part[kept] for part in _columns(self)))

    def recent(self, nodes: int) -> KernelRows:
        """The rows with a shorter past."""
        return replace(self, path=recent(self.path, nodes))

    def less(self, answer: Callable[[KernelRows], Tensor]) -> KernelRows:
        """What an answer `[rows, future nodes]` leaves to explain."""
        return replace(self, sums=self.sums - self.counts * answer(self))

    def total(self) -> Sums:
        """The sums over the rows, in float64; a row weighs as much as it has known queries."""
        size = max(1, _AT_ONCE // self.path.shape[1])
        starts = range(0, max(len(self.path), 1), size)
        first, *rest = (self.chosen(slice(start, start + size))._sums() for start in starts)
        return sum(rest, start=first)

    def _sums(self) -> Sums:
        path, sums, counts = self.path.double(), self.sums.double(), self.counts.double()
        squares = path.mT @ (counts.mean(dim=-1, keepdim=True) * path)
        return Sums(squares, sums.mT @ path, counts.sum(dim=0))


def _columns(rows: KernelRows) -> tuple[Tensor, ...]:
    return rows.path, rows.sums, rows.counts, rows.clock, rows.target, rows.phases, rows.levels


def stretches(clock: Tensor) -> Tensor:
    """Where stretches with equally many cutoffs begin, `[stretches - 1]`, of cutoffs in order."""
    places = torch.arange(1, _BLOCKS, device=clock.device) * len(clock) // _BLOCKS
    return clock[places]


@dataclass(frozen=True)
class Sums:
    """All that a regression needs to know of its rows.

    Attributes:
        squares: `[past nodes, past nodes]`.
        products: `[future nodes, past nodes]`.
        counts: `[future nodes]`.
    """

    squares: Tensor
    products: Tensor
    counts: Tensor

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.squares + other.squares, self.products + other.products, self.counts + other.counts)

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.squares - other.squares, self.products - other.products, self.counts - other.counts)

    def recent(self, nodes: int) -> Sums:
        """The sums that rows with a shorter past would have."""
        squares = recent(recent(self.squares[-nodes:], nodes).mT, nodes)
        return Sums(squares, recent(self.products, nodes), self.counts)

    def per_query(self) -> Tensor:
        """The products as if each future node had been asked as often as the mean; rare ones are shrunk."""
        mean = self.counts.mean()
        return self.products * (mean / (self.counts + _RARE * mean).clamp(min=1e-300))[:, None]

    def regress(self, ridges: Sequence[float]) -> list[Tensor]:
        """Ridge regressions `[future nodes, past nodes]`, one for each ridge, in units of a mean square.

        Future nodes share one matrix of squares, so that one decomposition serves all nodes and all ridges.
        """
        squares, vectors = _decomposed(self.squares)
        unit = squares.mean().clamp(min=1e-300)
        turned = self.per_query() @ vectors
        return [(turned / (squares + ridge * unit)) @ vectors.mT for ridge in ridges]

    def error(self, weight: Tensor) -> Tensor:
        """Mean squared error of a kernel at a query, less that of the kernel 0."""
        squared = (weight @ self.squares * weight).sum() - 2 * (weight * self.per_query()).sum()
        return squared / self.counts.sum().clamp(min=1e-300)


@dataclass(frozen=True)
class Stretches:
    """Sums over stretches of time.

    A stretch is forecast from all others, but for the windows beside it whose future reaches into it or into
    what it is asked: to have seen some of the answers flatters small ridges (the gap of hv-block
    cross-validation; Racine, "Consistent cross-validatory model-selection for dependent data", Journal of
    Econometrics 99, 2000).

    Attributes:
        heads: The sums of each stretch over the windows that share a future with the stretch before.
        middles: Those over the windows between.
        tails: Those over the windows that share a future with the stretch after.
    """

    heads: list[Sums]
    middles: list[Sums]
    tails: list[Sums]

    @staticmethod
    def gather(rows: KernelRows, edges: Tensor, horizon: float) -> Stretches:
        """Sum rows, in the order of their cutoffs, over the stretches between `edges`.

        Args:
            rows: What to sum.
            edges: Where stretches but the first begin.
            horizon: How far windows reach ahead, in the unit of the cutoffs.
        """
        ends = rows.clock[[0, -1]] if len(rows.clock) else edges[[0, -1]]
        starts, ends = torch.cat([ends[:1], edges]), torch.cat([edges, ends[1:]])
        shared = torch.minimum(edges.new_tensor(horizon), (ends - starts) / 2)
        cuts = torch.stack([starts, starts + shared, ends - shared], dim=-1).flatten()
        places = [0, *torch.searchsorted(rows.clock, cuts[1:]).tolist(), len(rows.clock)]
        sums = [rows.chosen(slice(*pair)).total() for pair in pairwise(places)]
        return Stretches(sums[0::3], sums[1::3], sums[2::3])

    def recent(self, nodes: int) -> Stretches:
        """The sums of rows with a shorter past."""
        parts = (self.heads, self.middles, self.tails)
        return Stretches(*([s.recent(nodes) for s in part] for part in parts))

    @property
    def total(self) -> Sums:
        """The sums of all."""
        first, *rest = (self.block(i) for i in range(len(self.heads)))
        return sum(rest, start=first)

    def block(self, i: int) -> Sums:
        """The sums of a stretch."""
        return self.heads[i] + self.middles[i] + self.tails[i]

    def apart(self, i: int) -> list[Sums]:
        """What the others may not learn from where a stretch is left out."""
        before, after = self.tails[:i][-1:], self.heads[i + 1 : i + 2]
        return [self.block(i), *before, *after]

    def best(self) -> Tensor | None:
        """The kernel `[future nodes, past nodes]` by the best ridge; None where none beats the kernel 0."""
        ridge = self.best_ridge()
        return None if ridge is None else self.total.regress([ridge])[0]

    def best_ridge(self) -> float | None:
        """The ridge whose regressions forecast the stretches left out of them best; None: none beats 0."""
        total = self.total
        known = [i for i in range(len(self.heads)) if self.block(i).counts.any()]
        if len(known) < 2:
            return None
        errors = torch.stack([self._errors(total, i) for i in known]).mean(dim=0)
        best = int(errors.argmin())
        return _RIDGES[best] if errors[best] < 0 else None

    def _errors(self, total: Sums, left_out: int) -> Tensor:
        """Errors `[ridges]` in a stretch of the regressions on all others."""
        others = total
        for part in self.apart(left_out):
            others = others - part
        held = self.block(left_out)
        return torch.stack([held.error(weight) for weight in others.regress(_RIDGES)])


def _decomposed(squares: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none negative, and eigenvectors; small matrices are quicker on the CPU than on a GPU."""
    place = squares.device if len(squares) > _ON_CPU else torch.device("cpu")
    values, vectors = torch.linalg.eigh(squares.to(place))
    return values.clamp(min=0).to(squares.device), vectors.to(squares.device)
