"""From tables as sources write them to long frames: `unique_id`, `variable` where needed, `ds`, `y`."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd

KEYS = ("unique_id", "variable", "ds")


def open_text(path: Path, encoding: str = "utf-8") -> TextIO:
    """Open a text file that may be compressed with gzip, bzip2 or xz."""
    opener = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
    return opener(path, "rt", encoding=encoding)  # type: ignore[operator,return-value]


def categories(codes: np.ndarray, names: Iterable[object]) -> pd.Categorical:
    """Text labels by number, in the order given."""
    return pd.Categorical.from_codes(codes, categories=pd.Index([str(name) for name in names]))


def stack(times: np.ndarray | pd.Index, values: np.ndarray, names: Sequence[object]) -> pd.DataFrame:
    """Stack a table into a long frame, one series for each column.

    Args:
        times: `[rows]`.
        values: `[rows, columns]`; NaN is kept.
        names: `[columns]`.
    """
    rows, columns = values.shape
    return pd.DataFrame(
        {
            "unique_id": categories(np.repeat(np.arange(columns), rows), names),
            "ds": np.tile(np.asarray(times), columns),
            "y": np.asarray(values, dtype=np.float64).T.ravel(),
        }
    )


def ragged(
    names: Sequence[object], times: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> pd.DataFrame:
    """Join series of unequal length into a long frame."""
    lengths = [len(series) for series in values]
    return pd.DataFrame(
        {
            "unique_id": categories(np.repeat(np.arange(len(names)), lengths), names),
            "ds": np.concatenate(list(times)),
            "y": np.concatenate(list(values)).astype(np.float64),
        }
    )


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort by series, variable and time, and average what was observed twice at one time.

    Columns beside the keys and `y` keep the first value of those that fall together.
    """
    keys = [_sortable(frame[key]) for key in KEYS if key in frame]
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    starts = np.flatnonzero(begins)
    merged = frame.iloc[order[starts]].reset_index(drop=True)
    if len(starts) < len(order):
        merged["y"] = _mean_of_runs(frame["y"].to_numpy(np.float64)[order], starts)
    return merged


def _sortable(column: pd.Series) -> np.ndarray:
    """Codes of labels in their given order, times and numbers as they are."""
    return column.cat.codes.to_numpy() if isinstance(column.dtype, pd.CategoricalDtype) else column.to_numpy()


def _mean_of_runs(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Mean of the numbers in each run that begins at one of `starts`; a run of one keeps its number."""
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    counts = np.add.reduceat(known.astype(np.int64), starts)
    return np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)


def to_wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Give each variable of a long frame a column of its own, NaN where it was not observed.

    The result has `unique_id`, `ds` and the variables, the form in which `Forecaster` takes several
    targets: `Forecaster(target_col=list(card.variables)).fit(to_wide(frame))`.
    """
    if "variable" not in frame:
        raise ValueError("The frame has no column `variable`: each of its series has one variable already.")
    wide = frame.set_index(["unique_id", "ds", "variable"])["y"].unstack("variable")
    wide.columns = [str(name) for name in wide.columns]
    return wide.reset_index()


def without_sentinels(frame: pd.DataFrame, sentinels: dict[str, float]) -> pd.DataFrame:
    """Drop the rows in which a source wrote a number for "unknown"."""
    name = frame["variable"] if "variable" in frame else frame["unique_id"]
    unknown = frame["y"].to_numpy() == name.astype(str).map(sentinels).to_numpy(dtype=np.float64)
    return frame[~unknown].reset_index(drop=True)
