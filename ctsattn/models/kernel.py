"""The learned kernel: what every past moment weighs for every future one, with a start in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.data.batch import TaskSpec
from ctsattn.models.level import Level, levels_of
from ctsattn.models.path import resample
from ctsattn.models.ridge import KernelRows, Stretches, recent, stretches
from ctsattn.nn.dropout import Dropout

_MAX_NODES = 1536  # of the past and of the future
_FEWER_NODES = 512  # of earlier versions; their files are read
_OWN_NODES = 384  # of the past, for what differs between phases or targets
_PHASES = 8  # moments of a period that have a kernel of their own; between them it changes evenly
_SHORTER = 4  # how much shorter than the one before each further look-back is
LEVELS = (False, True, "shared")
_FEWEST = 8  # nodes of the shortest look-back where the task has no period


class LearnedKernel(nn.Module):
    r"""Learned weights of every past moment for every future moment, $\int W(T, s)\,(x(s) - \bar x)\,ds$.

    $W$ is held at evenly spaced nodes of past and future and starts at 0; the past is brought to its nodes by
    `resample`, the answer to the query by straight lines. On a regular grid it is an ordinary linear layer.
    What a target, or a time of the day, has of its own is added to what all share: a kernel over the last 384
    nodes, found in closed form and not trained further.

    Args:
        spec: Task, for look-back, horizon, gap and periods.
        dropout: Share of past nodes dropped in training.
        by_phase: Whether the kernel changes with the phase of the shortest period at the cutoff.
        by_target: Whether each target has a kernel of its own.
        by_level: Whether forecasts return to the usual level of their target, see `Level`; or "shared", to
            one for all targets.
        average: Whether the start is the mean of kernels over several look-backs, or one over the longest.
    """

    def __init__(
        self,
        spec: TaskSpec,
        dropout: float = 0.0,
        *,
        by_phase: bool = False,
        by_target: bool = False,
        by_level: bool | str = False,
        average: bool = True,
    ) -> None:
        super().__init__()
        if by_level not in LEVELS:
            raise ValueError(f"`by_level` must be False, True or 'shared', but it is {by_level!r}.")
        past = int(min(max(round(spec.lookback / spec.median_gap), 2), _MAX_NODES))
        future = int(min(max(round(spec.horizon / spec.median_gap), 1), _MAX_NODES))
        self.spec, self.average, self.period = spec, average, min(spec.periods, default=0.0)
        self._set_nodes(past, future)
        own = (future, min(past, _OWN_NODES))
        phases = min(_PHASES, round(self.period / spec.median_gap)) if by_phase else 0
        self.by_phase: Tensor | None
        self.by_target: Tensor | None
        self.register_buffer("by_phase", torch.zeros(phases, *own) if phases > 1 else None)
        self.register_buffer("by_target", torch.zeros(spec.num_targets, *own) if by_target else None)
        shared = by_level == "shared"
        self.by_level = Level(spec.num_targets, future, shared=shared) if by_level else None
        self.dropout = Dropout(dropout)
        self.register_load_state_dict_pre_hook(_read_earlier)

    def _set_nodes(self, past: int, future: int) -> None:
        """Lay the nodes of past and future, with a kernel 0."""
        spec = self.spec
        past_gap = max(spec.median_gap, spec.lookback / past) if past >= _FEWER_NODES else spec.median_gap
        self.future_gap = spec.horizon / future
        shortest = round(self.period / past_gap) or _FEWEST
        self.lookbacks = _lookbacks(past, shortest) if self.average else (past,)
        self.nodes: Tensor
        self.register_buffer("nodes", past_gap * torch.arange(1.0 - past, 1.0), persistent=False)
        self.weight = nn.Parameter(torch.zeros(future, past))

    def forward(
        self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor, cutoff: Tensor | None = None
    ) -> Tensor:
        """Correction `[batch, channels, queries]` at the times `at` `[batch, queries]`; 0 in the past.

        Args:
            times: `[batch, channels, length]`.
            values: `[batch, channels, length]`.
            mask: `[batch, channels, length]`.
            at: `[batch, queries]`.
            cutoff: `[batch]` float64, in the unit of `at`; needed where the kernel changes with the phase.
        """
        path = self.path(times, values, mask)
        return self.answer(self.dropout(recent(path, path.shape[-1])), at, cutoff, levels_of(path))

    def path(self, times: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The past at the nodes, `[batch, channels, nodes]`."""
        return resample(times, values, mask, self.nodes.to(times))[0]

    def answer(
        self, path: Tensor, at: Tensor, cutoff: Tensor | None = None, levels: Tensor | None = None
    ) -> Tensor:
        """Correction at the times `at` from a past at the nodes without its mean, and its `levels_of`."""
        nodes = path @ self.weight.mT
        if self.by_phase is not None:
            nodes = nodes + self._of_phase(path, self._phases(path, cutoff))
        if self.by_target is not None:
            nodes = nodes + torch.einsum("btl,tfl->btf", self._own(path), self.by_target)
        if self.by_level is not None and levels is not None:
            nodes = nodes + self.by_level(levels)
        nodes = nn.functional.pad(nodes, (1, 0))
        lower, share = self._place(at)
        index = lower.unsqueeze(1).expand(-1, path.shape[1], -1)
        return torch.lerp(nodes.gather(-1, index), nodes.gather(-1, index + 1), share.unsqueeze(1))

    def _own(self, path: Tensor) -> Tensor:
        """The last nodes of a path, which phases and targets weigh by themselves."""
        return recent(path, _OWN_NODES)

    def _of_phase(self, path: Tensor, phases: Tensor) -> Tensor:
        """What the phase adds at the future nodes, `[batch, ..., nodes]`; `phases` is `[batch, phases]`."""
        assert self.by_phase is not None
        own, shape = self._own(path), (len(path), *[1] * (path.ndim - 1))
        parts = (phases[:, k].view(shape) * (own @ weight.mT) for k, weight in enumerate(self.by_phase))
        first, *rest = parts
        return sum(rest, start=first)

    def _phases(self, path: Tensor, cutoff: Tensor | None) -> Tensor:
        """Weight of each phase at the cutoffs `[batch, phases]`: 1 at its own moment, 0 at the next ones."""
        if self.by_phase is None:
            return path.new_zeros(len(path), 0)
        if cutoff is None:
            raise ValueError("A kernel that changes with the phase needs the cutoffs of the windows.")
        count = len(self.by_phase)
        place = (cutoff.double() / self.period).remainder(1.0).unsqueeze(-1) * count
        away = (place - torch.arange(count, device=place.device)).abs()
        return (1 - torch.minimum(away, count - away)).clamp(min=0).to(path)

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
        target = torch.arange(path.shape[1], device=path.device).expand(path.shape[:2])
        phases = self._phases(path, cutoff)[:, None].expand(*path.shape[:2], -1)
        centred, levels = recent(path, path.shape[-1]), levels_of(path)
        parts = (centred, sums, counts, clock, target, phases, levels)
        return KernelRows(*(part.flatten(0, 1) for part in parts))

    @torch.no_grad()
    def solve(self, rows: Sequence[KernelRows]) -> None:
        """Set the kernel to the ridge regressions that forecast left-out stretches of time best, or to 0.

        What all share comes first; what the phases have of their own is found in what it leaves, then the
        level to which all return, what the targets have of their own in what those leave, and what each
        returns to in the rest.

        Args:
            rows: What windows say, batch by batch.
        """
        left = KernelRows.joined(rows)
        if not len(left.clock):  # as in a group that no window belongs to
            return
        edges = stretches(left.clock)
        gathered = Stretches.gather(left, edges, self._horizon())
        self.weight.copy_(torch.stack([self._over(gathered, nodes) for nodes in self.lookbacks]).mean(dim=0))
        left = left.less(lambda r: r.path @ self.weight.mT)
        if self.by_phase is not None:
            for k, weight in enumerate(self.by_phase):
                self._solve_own(weight, left.weighted(left.phases[:, k]), edges)
            left = left.less(lambda r: self._of_phase(r.path, r.phases))
        if self.by_level is not None and self.by_level.shared:
            left = self._solve_shared_level(left, edges)
        if self.by_target is not None or self.by_level is not None:
            for target in range(self.spec.num_targets):
                self._solve_target(target, left.weighted((left.target == target).to(left.sums)), edges)

    def _solve_target(self, target: int, rows: KernelRows, edges: Tensor) -> None:
        """What a target has of its own: a kernel, then what it returns to."""
        if self.by_target is not None:
            weight = self.by_target[target]
            self._solve_own(weight, rows, edges)
            rows = rows.less(lambda r: self._own(r.path) @ weight.mT)
        if self.by_level is not None and not self.by_level.shared:
            self.by_level.solve(target, rows, edges, self._horizon())

    def _solve_shared_level(self, rows: KernelRows, edges: Tensor) -> KernelRows:
        """What all targets return to alike; the rows with what it leaves."""
        level = self.by_level
        assert level is not None
        level.solve(0, rows, edges, self._horizon())
        return rows.less(lambda r: level(r.levels.unsqueeze(1)).squeeze(1))

    def _over(self, gathered: Stretches, nodes: int) -> Tensor:
        """The kernel over the last nodes, `[future nodes, past nodes]`, or 0."""
        found = gathered.recent(nodes).best()
        whole = torch.zeros_like(self.weight)
        if found is not None:
            whole[:, -nodes:] = recent(found, nodes)
        return whole

    def _solve_own(self, weight: Tensor, rows: KernelRows, edges: Tensor) -> None:
        """Set a kernel over the last nodes to a regression of what is left, or to 0."""
        found = Stretches.gather(rows.recent(_OWN_NODES), edges, self._horizon()).best()
        weight.zero_() if found is None else weight.copy_(found)

    def _horizon(self) -> float:
        """How far the last node of the future is ahead."""
        return len(self.weight) * self.future_gap


def _read_earlier(kernel: LearnedKernel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let files of versions that allowed fewer nodes be read: they are laid as they were."""
    saved = state.get(f"{prefix}weight")
    if saved is not None and saved.shape != kernel.weight.shape and _FEWER_NODES in saved.shape:
        kernel._set_nodes(saved.shape[1], saved.shape[0])


def _lookbacks(longest: int, shortest: int) -> tuple[int, ...]:
    """Nodes of the look-backs whose kernels are averaged, each a quarter of the one before.

    A short look-back knows less but needs fewer weights; the mean of several errs less than any of them (as
    for windows in Pesaran and Timmermann, "Selection of estimation window in the presence of breaks", Journal
    of Econometrics 137, 2007).
    """
    found = [longest]
    while found[-1] > 2 * shortest:
        found.append(max(found[-1] // _SHORTER, shortest))
    return tuple(found)
