"""Batches for training and validation: endless and random, or all of some windows; each process its share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ctsattn.data.batch import Batch
from ctsattn.data.collate import Collator
from ctsattn.data.series import SeriesStore
from ctsattn.data.windows import TrainingWindows, Windows
from ctsattn.forecasting.prefetch import AHEAD

_KEPT = AHEAD + 6  # batches whose generator states are remembered; Lightning draws one or two ahead as well


def place_among_processes() -> tuple[int, int]:
    """Rank of this process, and how many take part in the run; 0 and 1 outside a distributed one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class WindowStream:
    """Endless random batches; each process of a distributed run draws its own share.

    Args:
        windows: What may be drawn.
        collator: Makes batches.
        batch_size: Windows of a step, summed over processes.
        seed: Of the draw.
    """

    def __init__(self, windows: TrainingWindows, collator: Collator, batch_size: int, seed: int) -> None:
        self.windows = windows
        self.collator = collator
        self.batch_size = batch_size
        self.seed = seed
        self._begin: tuple[int, Any] = (0, None)
        self._states: dict[int, Any] = {}

    def __iter__(self) -> Iterator[Batch]:
        rank, world = place_among_processes()
        rng = np.random.default_rng([self.seed, rank])
        number, state = self._begin
        if state is not None:
            rng.bit_generator.state = state
        self._states = {number: rng.bit_generator.state}
        size = max(1, self.batch_size // world)
        while True:
            drawn = self.windows.draw(size, rng)
            number += 1
            self._states[number] = rng.bit_generator.state
            self._states.pop(number - _KEPT, None)
            yield self.collator(self.windows.store, drawn, truth=True)

    def state_before(self, number: int) -> dict[str, Any]:
        """What JSON can hold of the generator before it draws batch `number`, one of the latest few."""
        return self._states[number]

    def start_from(self, number: int, state: dict[str, Any]) -> None:
        """Let the next iteration begin with batch `number`."""
        self._begin = (number, state)


class Onward:
    """A stream whose later iterations, the epochs of a trainer, go on where training stands.

    Args:
        stream: Batches; one that cannot tell its state begins again.
        learner: Counts the `batches` that were used.
    """

    def __init__(self, stream: Any, learner: Any) -> None:
        self.stream, self.learner = stream, learner
        self._begun = False

    def __iter__(self) -> Iterator[Batch]:
        used = self.learner.batches
        if self._begun and hasattr(self.stream, "start_from") and not self.learner.trainer.overfit_batches:
            self.stream.start_from(used, self.stream.state_before(used))
        self._begun = True
        yield from self.stream


@dataclass(frozen=True)
class HeldOut:
    """Validation windows, collated anew in each round to bound memory; each process has a part.

    All processes have equally many batches, for where weights are spread over them each pass is one of all.
    A process that runs out of windows takes the first ones again, with no truth that would count.
    """

    store: SeriesStore
    windows: Windows
    collator: Collator
    batch_size: int

    def __iter__(self) -> Iterator[Batch]:
        rank, world = place_among_processes()
        for first in range(0, len(self.windows), world * self.batch_size):
            start = first + rank * self.batch_size
            spare = start >= len(self.windows)
            begin = 0 if spare else start
            rows = np.arange(begin, min(begin + self.batch_size, len(self.windows)))
            batch = self.collator(self.store, self.windows.take(rows), truth=True)
            yield replace(batch, future_observed=torch.zeros_like(batch.future_observed)) if spare else batch
