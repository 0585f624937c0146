"""What peers are shown: the windows of the protocol, thinned ones put back on the grid by straight lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctsattn import datasets
from ctsattn.datasets.protocols import RowWindows, row_windows
from ctsattn.datasets.sampling import Condition
from experiments.benchmarks import rows


def interpolate(values: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Straight lines between kept points along the last axis; before the first and after the last, level.

    Args:
        values: `[..., length]`.
        keep: `[..., length]`, at least one true in each row.
    """
    length = values.shape[-1]
    place = np.broadcast_to(np.arange(length), values.shape)
    left = np.maximum.accumulate(np.where(keep, place, -1), axis=-1)
    right = np.minimum.accumulate(np.where(keep, place, length)[..., ::-1], axis=-1)[..., ::-1]
    left, right = np.where(left < 0, right, left), np.where(right == length, left, right)
    low, high = (np.take_along_axis(values, at, -1) for at in (left, right))
    share = np.divide(place - left, right - left, out=np.zeros(values.shape), where=right > left)
    return low + share * (high - low)


@dataclass(frozen=True)
class Shown:
    """Windows of a table as a peer sees them.

    Attributes:
        windows: Windows of the parts.
        keep: `[rows, channels]` what may be seen; None for all.
        joint: Whether all channels of a window go together.
    """

    windows: dict[str, RowWindows]
    keep: np.ndarray | None
    joint: bool

    @property
    def per_window(self) -> int:
        """Rows that a window fills."""
        return 1 if self.joint else self.windows["train"].table.values.shape[1]

    def count(self, part: str) -> int:
        """Rows of a part."""
        return len(self.windows[part]) * self.per_window

    def batch(self, part: str, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Past `[batch, lookback, channels]` and future `[batch, horizon, channels]` of some rows."""
        cut = self.windows[part]
        window, channel = chosen // self.per_window, chosen % self.per_window
        origin = cut.origins[window]
        seen, asked = (origin[:, None] + np.arange(a, b) for a, b in ((-cut.lookback, 0), (0, cut.horizon)))
        columns = slice(None) if self.joint else channel[:, None]
        past, future = cut.table.values[seen, columns], cut.table.values[asked, columns]
        if self.keep is not None:
            kept = self.keep[seen, columns].copy()
            axis = 1
            few = kept.sum(axis, keepdims=True) < 2
            kept[:, -2:] |= few
            past = interpolate(past.swapaxes(1, -1), kept.swapaxes(1, -1)).swapaxes(1, -1)
        return (past, future) if self.joint else (past[..., None], future[..., None])


def shown(data: str, lookback: int, horizon: int, condition: str, seed: int, joint: bool) -> Shown:
    """The windows that `experiments.benchmarks.tasks.row_task` gives our models, for a peer."""
    windows = row_windows(datasets.load_table(data), datasets.card(data).split, lookback, horizon)  # type: ignore[arg-type]
    keep = None
    if condition != "all":
        keep = Condition(condition).keep(windows["train"].table.values, seed)
    return Shown(windows, keep, joint)


def common(config: dict[str, Any], packages: tuple[str, ...]) -> dict[str, Any]:
    """Columns of a row that name the run and its surroundings."""
    import hashlib
    import json

    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return {
        **{key: config.get(key, "") for key in ("data", "model", "lookback", "horizon", "condition", "seed")},
        "mixer": "",
        "config": text,
        "config_hash": hashlib.sha256(f"peer{text}".encode()).hexdigest()[:12],
        "commit": rows.commit(),
        "versions": rows.versions(*packages),
        "device": rows.device_name(),
    }
