"""Benchmark tasks: a published protocol's windows as batches, for any model of the seam.

`RowTask` cuts windows of a table without frames, so that thousands of windows a second reach the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from ctsattn import datasets
from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.building import learn_schema
from ctsattn.data.frame import read_panel
from ctsattn.data.scalers import LOGS, SCALERS, log_units, safe_scale
from ctsattn.data.schema import Columns
from ctsattn.data.task import infer_task
from ctsattn.datasets.protocols import RowWindows, row_windows
from ctsattn.datasets.sampling import Condition
from experiments.benchmarks.order import VALIDATION, shuffled, spread

_SPEC_CHANNELS = 16  # channels that unit and periods are read off
_OF_WINDOWS = ("ends", "recent", "old", "clusters")  # conditions that refer to a window, not to a series


class Task(Protocol):
    """Batches of the parts of a benchmark."""

    @property
    def spec(self) -> TaskSpec:
        """Sizes and units."""
        ...

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """Endless batches of training windows, in a new random order each time round."""
        ...

    def validation(self, batch_size: int) -> list[tuple[str, np.ndarray]]:
        """What to validate on while training, as arguments of `batch`."""
        ...

    def chunks(self, part: str, batch_size: int) -> Iterator[np.ndarray]:
        """All windows of a part, once each, in order."""
        ...

    def batch(self, part: str, rows: np.ndarray) -> Batch:
        """Some windows of a part, with their truth."""
        ...


class Rounds:
    """The validation batches of a task, made anew in each round."""

    def __init__(self, task: Task, batch_size: int) -> None:
        self.task, self.batch_size = task, batch_size

    def __iter__(self) -> Iterator[Batch]:
        return (self.task.batch(part, rows) for part, rows in self.task.validation(self.batch_size))


@dataclass(frozen=True)
class Logarithms:
    """What of each channel is scaled by windows in place of its values: `asinh(value / unit)`.

    Values are counted in deviations of the training rows, but from their own 0.

    Attributes:
        unit: `[channels]` sizes from which they are logarithms.
        spread: `[channels]` their deviation over the training rows.
    """

    unit: np.ndarray
    spread: np.ndarray

    def of(self, channel: np.ndarray | None) -> Logarithms:
        """Those of some channels, `[batch, 1]`, or of all, `[1, channels]`."""
        parts = (self.unit, self.spread)
        return Logarithms(*(p[None] if channel is None else p[channel][:, None] for p in parts))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Take them of `[batch, channels, length]`."""
        return np.arcsinh(values / self.unit[..., None])


@dataclass(frozen=True)
class RowTask:
    """Windows of a table: each channel a row of the batch by itself, or all channels together.

    Attributes:
        windows: Windows of the parts; their table is standardised.
        spec: Sizes and units.
        scaler: Key of `SCALERS`.
        keep: `[rows, channels]` what may be seen; None for all.
        thin: Condition applied to each window, where it refers to one.
        seed: Seed of `thin`.
        joint: Whether a model sees all channels together.
        seconds: `[rows]` the clock.
        most: Windows of each part to evaluate, spread evenly; 0 for all.
        logs: Logarithms to take of the table, which is not centred then; None for none.
    """

    windows: dict[str, RowWindows]
    spec: TaskSpec
    scaler: str
    keep: np.ndarray | None
    thin: Condition | None
    seed: int
    joint: bool
    seconds: np.ndarray
    most: int = 0
    logs: Logarithms | None = None

    @property
    def channels(self) -> int:
        """Channels of the table."""
        return self.windows["train"].table.values.shape[1]

    @property
    def per_window(self) -> int:
        """Rows of a batch that a window fills."""
        return 1 if self.joint else self.channels

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """See `Task.training`."""
        count = len(self.windows["train"]) * self.per_window
        return (self.batch("train", rows) for rows in shuffled(count, batch_size, seed))

    def validation(self, batch_size: int) -> list[tuple[str, np.ndarray]]:
        """See `Task.validation`."""
        rows = spread(len(self.windows["val"]) * self.per_window, VALIDATION)
        return [("val", rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]

    def chunks(self, part: str, batch_size: int) -> Iterator[np.ndarray]:
        """See `Task.chunks`."""
        count = len(self.windows[part])
        chosen = spread(count, self.most) if self.most else np.arange(count)
        rows = (chosen[:, None] * self.per_window + np.arange(self.per_window)).reshape(-1)
        return (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))

    def batch(self, part: str, rows: np.ndarray) -> Batch:
        """See `Task.batch`."""
        cut = self.windows[part]
        window, channel = rows // self.per_window, rows % self.per_window
        origin = cut.origins[window]
        seen = origin[:, None] + np.arange(-cut.lookback, 0)
        asked = origin[:, None] + np.arange(cut.horizon)
        past, future = self._values(cut, seen, channel), self._values(cut, asked, channel)
        mask = self._mask(past, seen, channel, origin)
        cutoff = self.seconds[origin - 1]
        unit = self.spec.time_unit
        times = np.broadcast_to(((self.seconds[seen] - cutoff[:, None]) / unit)[:, None], past.shape)
        ahead = (self.seconds[asked] - cutoff[:, None]) / unit
        if mask is not None:
            past, times, mask = left_justified(past, times, mask)
        logs = None if self.logs is None else self.logs.of(None if self.joint else channel)
        return _batch(past, times, mask, future, ahead, self.scaler, channel, cutoff, logs)

    def _values(self, cut: RowWindows, rows: np.ndarray, channel: np.ndarray) -> np.ndarray:
        """`[batch, channels, length]` of some rows of the table."""
        if self.joint:
            return cut.table.values[rows].swapaxes(1, 2)
        return cut.table.values[rows, channel[:, None]][:, None]

    def _mask(
        self, past: np.ndarray, seen: np.ndarray, channel: np.ndarray, origin: np.ndarray
    ) -> np.ndarray | None:
        """What of the past may be seen, or None where all of it is."""
        if self.thin is not None:
            one = [self.thin.keep(p.T, [self.seed, int(o)]).T for p, o in zip(past, origin, strict=True)]
            return np.stack(one)
        if self.keep is None:
            return None
        kept = self.keep[seen].swapaxes(1, 2) if self.joint else self.keep[seen, channel[:, None]][:, None]
        kept = kept.copy()
        kept[..., -2:] |= kept.sum(-1, keepdims=True) < 2
        return kept


def left_justified(
    values: np.ndarray, times: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move what is kept to the left, cut the padding that all share, repeat the last time in the rest."""
    order = np.argsort(~mask, axis=-1, kind="stable")[..., : mask.sum(-1).max()]
    values, times, mask = (np.take_along_axis(a, order, -1) for a in (values, times, mask))
    last = np.take_along_axis(times, mask.sum(-1, keepdims=True) - 1, -1)
    return np.where(mask, values, 0.0), np.where(mask, times, last), mask


def _batch(
    past: np.ndarray,
    times: np.ndarray,
    mask: np.ndarray | None,
    future: np.ndarray,
    ahead: np.ndarray,
    scaler: str,
    series: np.ndarray,
    cutoff: np.ndarray,
    logs: Logarithms | None = None,
) -> Batch:
    """Scale windows by their past and put them into a batch; the series' own spread is 1."""
    mask = np.ones(past.shape, dtype=bool) if mask is None else mask
    own: Any = 1.0
    if logs is not None:
        past, future, own = logs(past), logs(future), logs.spread
    loc, scale = SCALERS[scaler](past, mask)
    if scaler != "none":
        usual = np.broadcast_to(own, scale.shape)
        scale = safe_scale(scale, loc, mask.sum(-1), usual, usual)
    scaled = np.where(mask, (past - loc[..., None]) / scale[..., None], 0.0)
    count, channels, length = past.shape
    queries = ahead.shape[1]
    none = torch.zeros(count, 0)
    return Batch(
        past_times=_float(times),
        past_values=_float(scaled),
        past_codes=torch.zeros(count, channels, length, dtype=torch.int64),
        past_mask=torch.from_numpy(mask),
        past_known=torch.zeros(count, channels, length, 0),
        past_known_codes=torch.zeros(count, channels, length, 0, dtype=torch.int64),
        static=none,
        static_codes=none.long(),
        future_times=_float(ahead),
        future_mask=torch.ones(count, queries, dtype=torch.bool),
        future_known=torch.zeros(count, queries, 0),
        future_known_codes=torch.zeros(count, queries, 0, dtype=torch.int64),
        future_values=_float((future - loc[..., None]) / scale[..., None]),
        future_observed=torch.ones(count, channels, queries, dtype=torch.bool),
        loc=torch.from_numpy(loc),
        scale=torch.from_numpy(scale),
        series=torch.from_numpy(series.astype(np.int64)),
        cutoff=torch.from_numpy(cutoff),
        unit=torch.zeros(0).double() if logs is None else _like(logs.unit, loc),
    )


def _like(values: np.ndarray, loc: np.ndarray) -> torch.Tensor:
    """Values of channels for all windows."""
    return torch.from_numpy(np.broadcast_to(values, loc.shape).copy())


def _float(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def row_task(
    name: str,
    lookback: int,
    horizon: int,
    *,
    scaler: str,
    condition: str = "all",
    seed: int = 0,
    joint: bool = False,
    most: int = 0,
) -> RowTask:
    """The long-horizon protocol on a table, seen under a sampling condition; what is asked stays complete."""
    table = datasets.load_table(name)
    card = datasets.card(name)
    windows = row_windows(table, card.split, lookback, horizon)  # type: ignore[arg-type]
    scaled = windows["train"].table
    rule = Condition(condition)
    of_window = condition.split("-")[0] in _OF_WINDOWS
    keep = None if condition == "all" or of_window else rule.keep(scaled.values, seed)
    spec = _row_spec(name, lookback, horizon, windows["train"].origins[-1] + horizon)
    width = scaled.values.shape[1] if joint else 1
    spec = replace(spec, num_targets=width, num_channels=width, channel_codes=(0,) * width)
    seconds = (table.times - table.times[0]).astype("timedelta64[s]").astype(np.float64)
    task = RowTask(windows, spec, scaler, keep, rule if of_window else None, seed, joint, seconds, most)
    training = table.values[slice(*card.split.borders(len(table.values))["train"])]  # type: ignore[union-attr]
    return in_logarithms(task, training) if scaler in LOGS else task


def in_logarithms(task: RowTask, training: np.ndarray) -> RowTask:
    """The task on logarithms of its channels, whose values in the training rows are `[rows, channels]`.

    Errors stay those of the standardised values: forecasts and truths are both without the centring.
    """
    deviation = np.where(training.std(axis=0) > 0, training.std(axis=0), 1.0)
    counted = training / deviation
    place = LOGS.index(task.scaler)
    unit = np.array([log_units(channel)[place] for channel in counted.T])
    spread = np.arcsinh(counted / unit).std(axis=0)
    table = task.windows["train"].table
    table = replace(table, values=table.values + counted.mean(axis=0))
    windows = {name: replace(cut, table=table) for name, cut in task.windows.items()}
    return replace(task, windows=windows, logs=Logarithms(unit, np.where(spread > 0, spread, 1.0)))


def _row_spec(name: str, lookback: int, horizon: int, end: int) -> TaskSpec:
    """Units and periods, read off the training rows of some channels by the package's own rules."""
    table = datasets.load_table(name)
    chosen = spread(table.values.shape[1], _SPEC_CHANNELS)
    part = datasets.Table(
        table.times[:end], table.values[:end, chosen], tuple(table.names[c] for c in chosen)
    )
    schema, store = learn_schema(read_panel(part.frame(), Columns()))
    return infer_task(store, schema, horizon=horizon, lookback=lookback)
