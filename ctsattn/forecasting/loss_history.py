"""The losses along a training run, in a table that stays small however long the run is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

History = tuple[tuple[int, float | None, float | None], ...]
"""Rows of step, mean training loss since the row before, and latest validation loss; None: not measured."""

_MOST = 400  # rows; two neighbours become one when there are so many


class LossHistory:
    """Gathers losses into rows at least `every` steps apart.

    Args:
        every: Steps between rows; it doubles each time the table is full.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._rows: list[tuple[int, float | None, float | None]] = []
        self._sum, self._count, self._step = 0.0, 0, 0

    def add(self, step: int, loss: float) -> None:
        """Take the finite training loss of a step, counted from 1."""
        self._sum, self._count, self._step = self._sum + loss, self._count + 1, step
        if step - (self._rows[-1][0] if self._rows else 0) >= self.every:
            self._close(None)

    def validated(self, step: int, loss: float) -> None:
        """Take the validation loss after a step; one that is not finite counts as not measured."""
        if not math.isfinite(loss):
            return
        if self._rows and self._rows[-1][0] == step:
            self._rows[-1] = (*self._rows[-1][:2], loss)
        else:
            self._step = step
            self._close(loss)

    def _close(self, validation: float | None) -> None:
        mean = self._sum / self._count if self._count else None
        self._rows.append((self._step, mean, validation))
        self._sum, self._count = 0.0, 0
        if len(self._rows) >= _MOST:
            self._rows = [_joined(*pair) for pair in zip(self._rows[::2], self._rows[1::2], strict=True)]
            self.every *= 2

    def rows(self) -> History:
        """All rows, with one more for the steps since the last."""
        tail = [(self._step, self._sum / self._count, None)] if self._count else []
        return (*self._rows, *tail)

    def state(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {"rows": self._rows, "every": self.every, "open": [self._sum, self._count, self._step]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._rows = list(read_history(state["rows"]))
        self.every = state["every"]
        self._sum, self._count, self._step = state["open"]


def read_history(rows: Any) -> History:
    """Rows as they come out of JSON."""
    return tuple((int(step), train, validation) for step, train, validation in rows)


def _joined(
    first: tuple[int, float | None, float | None], second: tuple[int, float | None, float | None]
) -> tuple[int, float | None, float | None]:
    """Two neighbouring rows as one; the later validation stands for both."""
    known = [loss for loss in (first[1], second[1]) if loss is not None]
    mean = sum(known) / len(known) if known else None
    return second[0], mean, second[2] if second[2] is not None else first[2]
