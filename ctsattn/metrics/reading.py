"""Reading frames of forecasts: which columns are what, groups of rows, gaps, error scales."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from ctsattn.metrics.scores import METRICS

_BAND = re.compile(r"^(?P<model>.+?)-(?P<kind>lo-|hi-|q)(?P<number>\d+(?:\.\d+)?)$")


def to_pandas(frame: nw.DataFrame) -> pd.DataFrame:
    """Take the columns as pandas, with a plain index."""
    if frame.implementation.is_pandas():
        return frame.to_native().reset_index(drop=True)
    return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def like(result: pd.DataFrame, native: nw.DataFrame) -> Any:
    """Give a result back in the library of another frame."""
    if native.implementation.is_pandas():
        return result
    columns = {c: result[c].to_numpy() for c in result.columns}
    return nw.from_dict(columns, backend=native.implementation).to_native()


def check_columns(
    frame: pd.DataFrame, metrics: Sequence[str], target_col: str, models: Sequence[str] | None
) -> None:
    """Refuse unknown scores and absent columns."""
    unknown = [m for m in metrics if m not in METRICS]
    if unknown:
        raise ValueError(f"Unknown scores {unknown}; there are {', '.join(METRICS)}.")
    missing = [c for c in (target_col, *(models or ())) if c not in frame]
    if missing:
        raise ValueError(f"The frame has no column {missing}; it has {list(frame.columns)}.")


def model_columns(frame: pd.DataFrame, special: set[str]) -> list[str]:
    """Numeric columns that are neither special nor bands of another one."""
    numeric = [c for c in frame if c not in special and pd.api.types.is_numeric_dtype(frame[c])]
    names = [c for c in numeric if not pd.api.types.is_bool_dtype(frame[c]) and not _is_band(c, numeric)]
    if not names:
        raise ValueError(f"No column holds forecasts; the frame has {list(frame.columns)}.")
    return names


def _is_band(column: str, columns: Sequence[str]) -> bool:
    match = _BAND.match(str(column))
    return match is not None and match["model"] in columns


def refuse_gaps(frame: pd.DataFrame, models: Sequence[str], id_col: str, time_col: str) -> None:
    """Refuse forecasts that are not finite, in the models' columns and in their bands."""
    for column in frame.columns:
        if column not in models and not _is_band(column, models):
            continue
        bad = ~np.isfinite(frame[column].to_numpy(float, na_value=np.nan))
        if bad.any():
            where = frame.loc[bad, [c for c in (id_col, time_col) if c in frame]].head(3).to_dict("records")
            raise ValueError(
                f"Forecast {column!r} is not finite in {bad.sum()} of {len(frame)} rows, first at {where}. "
                "A score that skips them would look better than it is; mend or remove these rows."
            )


def group(frame: pd.DataFrame, groups: list[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Code of each row's group, and the groups in order of first appearance."""
    if not groups:
        return np.zeros(len(frame), dtype=np.int64), pd.DataFrame(index=range(1))
    codes = frame.groupby(groups, sort=False, observed=True, dropna=False).ngroup().to_numpy()
    keys = frame[groups].drop_duplicates(ignore_index=True)
    return codes, keys


def quantile_columns(
    frame: pd.DataFrame, models: list[str], wanted: Sequence[float] | None
) -> dict[float, dict[str, str]]:
    """For each quantile the column of every model; only quantiles that every model has."""
    found: dict[float, dict[str, str]] = {}
    for column in frame.columns:
        match = _BAND.match(str(column))
        if match is not None and match["model"] in models:
            q = _quantile(match["kind"], float(match["number"]))
            found.setdefault(q, {}).setdefault(match["model"], column)
    for model in models:
        found.setdefault(0.5, {}).setdefault(model, model)
    complete = {q: columns for q, columns in found.items() if len(columns) == len(models)}
    if wanted is None:
        return complete if len(complete) > 1 else {}
    missing = [q for q in wanted if round(q, 10) not in complete]
    if missing:
        raise ValueError(f"Not every model has the quantiles {missing}; all have {sorted(complete)}.")
    return {round(q, 10): complete[round(q, 10)] for q in wanted}


def _quantile(kind: str, number: float) -> float:
    if kind == "q":
        return round(number, 10)
    tail = (1.0 - number / 100.0) / 2.0
    return round(tail if kind == "lo-" else 1.0 - tail, 10)


def error_scale(
    frame: pd.DataFrame,
    train: pd.DataFrame,
    seasonality: int,
    id_col: str,
    time_col: str,
    target_col: str,
    cutoff_col: str,
) -> np.ndarray:
    """Error scale of each row of `frame`, from its series' training rows up to its cutoff."""
    keys = [c for c in (id_col, "variable") if c in frame and c in train]
    train = train[train[target_col].notna()].sort_values(time_col, kind="stable")
    series = dict(list(train.groupby(keys, sort=False, observed=True))) if keys else {(): train}
    where = [*keys, cutoff_col] if cutoff_col in frame else keys
    scale = np.ones(len(frame))
    groups: list[tuple[tuple[Any, ...], Any]] = [((), np.arange(len(frame)))]
    if where:
        indices = frame.groupby(where, sort=False, observed=True).indices
        groups = [(key if isinstance(key, tuple) else (key,), rows) for key, rows in indices.items()]
    for key, rows in groups:
        own = series.get(key[: len(keys)])
        if own is None:
            raise ValueError(f"`train_df` has no rows for {dict(zip(keys, key, strict=False))}.")
        if len(key) > len(keys):
            own = own[own[time_col] <= key[len(keys)]]
        scale[rows] = _seasonal_error(own[target_col].to_numpy(float), seasonality)
    return scale


def _seasonal_error(values: np.ndarray, seasonality: int) -> float:
    lag = seasonality if len(values) > seasonality else 1
    error = float(np.abs(values[lag:] - values[:-lag]).mean()) if len(values) > lag else 0.0
    size = float(np.abs(values).mean()) if len(values) else 0.0
    return error or size or 1.0
