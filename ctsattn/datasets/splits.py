"""Which rows of a long frame are for training, validation and test, as the protocols say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

PARTS = ("train", "val", "test")


class Split(Protocol):
    """A rule that puts every row of a long frame into one part, or into none (empty text)."""

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """Return `train`, `val`, `test` or the empty text for each row, in the frame's order."""
        ...


def _series_codes(frame: pd.DataFrame) -> np.ndarray:
    """Number the series of a long frame by first appearance."""
    codes, _ = pd.factorize(frame["unique_id"])
    return codes


def _clock_codes(frame: pd.DataFrame) -> np.ndarray:
    """Number the clocks: a series, or a variable of a series where there are several."""
    keys = [name for name in ("unique_id", "variable") if name in frame]
    return frame.groupby(keys, sort=False, observed=True).ngroup().to_numpy()


def _positions(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of each row in its clock, and the clock's length; rows of a clock stand together."""
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    order = np.argsort(codes, kind="stable")
    position = np.empty(len(codes), dtype=np.int64)
    position[order] = np.arange(len(codes)) - np.repeat(starts, counts)
    return position, counts[codes]


def _label(position: np.ndarray, ends: Iterable[np.ndarray | int]) -> np.ndarray:
    """Label by the first end that a position lies before; beyond the last end there is no label."""
    labels = np.full(len(position), "", dtype="<U5")
    for part, end in reversed(list(zip(PARTS, ends, strict=True))):
        labels[position < end] = part
    return labels


@dataclass(frozen=True)
class RowSplit:
    """The first `train` rows of each series, then `val`, then `test`; what remains is never used.

    Attributes:
        train: Rows for training.
        val: Rows for validation.
        test: Rows for the test.
    """

    train: int
    val: int
    test: int

    def borders(self, rows: int) -> dict[str, tuple[int, int]]:
        """First row and row after the last of each part, for a table of `rows` rows."""
        ends = np.cumsum([self.train, self.val, self.test]).tolist()
        if ends[-1] > rows:
            raise ValueError(f"The split needs {ends[-1]} rows, but the table has {rows}.")
        return dict(zip(PARTS, zip([0, *ends[:2]], ends, strict=True), strict=True))

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """See `Split.labels`."""
        position, _ = _positions(_clock_codes(frame))
        return _label(position, np.cumsum([self.train, self.val, self.test]).tolist())


@dataclass(frozen=True)
class FractionSplit:
    """Shares of the rows in order of time, rounded as Informer's and Autoformer's loaders round.

    The training part has `int(train * rows)` rows, the test part the last `int(test * rows)`, and
    validation is what lies between.

    Attributes:
        train: Share for training.
        test: Share for the test.
    """

    train: float = 0.7
    test: float = 0.2

    def borders(self, rows: int) -> dict[str, tuple[int, int]]:
        """First row and row after the last of each part, for a table of `rows` rows."""
        train, test = int(rows * self.train), int(rows * self.test)
        return {"train": (0, train), "val": (train, rows - test), "test": (rows - test, rows)}

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """See `Split.labels`."""
        position, rows = _positions(_clock_codes(frame))
        train, test = (rows * self.train).astype(int), (rows * self.test).astype(int)
        return _label(position, (train, rows - test, rows))


@dataclass(frozen=True)
class LastSteps:
    """The last `horizon` rows of each series are the test and the `horizon` before them validation.

    A series too short for both keeps at least one row for training, then fills validation.

    Attributes:
        horizon: Steps that the competition asks for.
    """

    horizon: int

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """See `Split.labels`."""
        position, rows = _positions(_clock_codes(frame))
        test = np.maximum(rows - self.horizon, 1)
        val = np.maximum(rows - 2 * self.horizon, 1)
        return _label(position, (val, np.maximum(test, val), rows))


@dataclass(frozen=True)
class TimeSplit:
    """Shares of the time that each series spans, not of its rows: fit for irregular sampling.

    Attributes:
        train: Share of the span for training.
        val: Share that follows, for validation; the rest is the test.
    """

    train: float = 0.7
    val: float = 0.1

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """See `Split.labels`."""
        ds = frame["ds"].to_numpy()
        elapsed = ds.astype(np.float64) if ds.dtype.kind in "fiu" else ds.astype("int64").astype(np.float64)
        by_series = pd.Series(elapsed).groupby(_series_codes(frame), sort=False)
        first, last = by_series.transform("min").to_numpy(), by_series.transform("max").to_numpy()
        span = last - first
        share = np.divide(elapsed - first, span, out=np.zeros_like(span), where=span > 0)
        ends = (np.full_like(share, end) for end in (self.train, self.train + self.val, np.inf))
        return _label(share, tuple(ends))


@dataclass(frozen=True)
class SeriesSplit:
    """Whole series: 20 % for the test, 60 % and 20 % of all for training and validation.

    The draw is scikit-learn's, twice, as in t-PatchGNN: four fifths of the shuffled series are seen,
    and of those, kept in that order, three quarters train.

    Attributes:
        seed: `random_state` of the draw.

    References:
        Zhang et al., "Irregular Multivariate Time Series Forecasting: A Transformable Patching Graph
        Neural Networks Approach", ICML (2024).
    """

    seed: int = 42

    def series(self, count: int) -> dict[str, np.ndarray]:
        """Numbers of the series in each part, in the order of the draw, for `count` series.

        Raises:
            ValueError: There are fewer than five series, too few to give each part one.
        """
        from sklearn.model_selection import train_test_split

        if count < 5:
            raise ValueError(f"Splitting whole series takes at least 5 of them, but there are {count}.")
        seen, test = train_test_split(np.arange(count), train_size=0.8, random_state=self.seed, shuffle=True)
        train, val = train_test_split(seen, train_size=0.75, shuffle=False)
        return {"train": train, "val": val, "test": test}

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """See `Split.labels`."""
        codes = _series_codes(frame)
        of_series = np.full(codes.max() + 1, "", dtype="<U5")
        for part, members in self.series(len(of_series)).items():
            of_series[members] = part
        return of_series[codes]


def split(frame: pd.DataFrame, rule: Split) -> dict[str, pd.DataFrame]:
    """Cut a long frame into `train`, `val` and `test` by a rule; rows of no part are left out."""
    labels = rule.labels(frame)
    return {part: frame[labels == part] for part in PARTS}
