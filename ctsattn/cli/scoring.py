"""Scores of forecasts for `ctsattn evaluate` and `ctsattn benchmark`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ctsattn import datasets, metrics
from ctsattn.cli.files import PIPE, read_frame
from ctsattn.plotting.frames import bands

_MODEL = "ctsattn"


def read_data(place: str, id_col: str) -> pd.DataFrame:
    """Read a file or, where there is none of that name, load the data set of that name."""
    if place != PIPE and not Path(place).exists() and place in datasets.DATASETS:
        return datasets.load(place).drop(columns="truth", errors="ignore")
    return read_frame(place, (id_col,))


def against_truth(
    truth: pd.DataFrame, forecast: pd.DataFrame, *, id_col: str, time_col: str, target_col: Sequence[str]
) -> pd.DataFrame:
    """Put the truth beside each forecast of the same series and time.

    Raises:
        ValueError: If a column is missing, there are several targets, or no forecast has a truth.
    """
    if len(target_col) > 1:
        raise ValueError("A forecast file is scored for one target at a time: give --target-col once.")
    keys = [name for name in (id_col, time_col) if name in forecast.columns]
    for name, frame in (("data", truth), ("forecast", forecast)):
        missing = [key for key in (*keys, time_col) if key not in frame.columns]
        if missing:
            raise ValueError(f"The {name} file has no column {missing[0]!r}; it has {list(frame.columns)}.")
    left, right = (frame.assign(**{time_col: _clock(frame[time_col])}) for frame in (forecast, truth))
    rows = left.drop(columns=target_col, errors="ignore").merge(
        right[[*keys, target_col[0]]].dropna(), on=keys, how="inner"
    )
    if rows.empty:
        raise ValueError("No forecast has a truth at the same series and time, so there is nothing to score.")
    return rows


def side_by_side(cvs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Join cross-validations over the same rows; the forecast columns take the models' names."""
    joined: pd.DataFrame | None = None
    for name, cv in cvs.items():
        forecasts = {c: name + str(c).removeprefix(_MODEL) for c in cv.columns if _is_forecast(str(c))}
        renamed = cv.rename(columns=forecasts)
        if joined is None:
            joined = renamed
        else:
            keys = [c for c in cv.columns if c not in forecasts]
            joined = joined.merge(renamed, on=keys, how="inner", validate="one_to_one")
    assert joined is not None
    return joined


def _is_forecast(column: str) -> bool:
    return column == _MODEL or column.startswith(f"{_MODEL}-")


def scores(
    cv: pd.DataFrame, id_col: str, time_col: str, target_col: Sequence[str], level: Sequence[float]
) -> pd.DataFrame:
    """Scores over all rows, one row a model, best mean absolute error first.

    Args:
        cv: Forecasts beside the truth.
        id_col: Column of the series.
        time_col: Column of the times.
        target_col: Columns of the targets; with several, `cv` holds them under `variable`.
        level: Levels in percent whose coverage is wanted where `cv` has the band.
    """
    truth = "y" if "variable" in cv.columns and target_col[0] not in cv.columns else target_col[0]
    there = {band[0] for model in _models(cv, truth) for band in bands(cv, model)}
    asked = [one for one in level if float(one) in there]
    names = ["mae", "rmse", "smape", *(["pinball", "coverage"] if asked else [])]
    table = metrics.evaluate(
        cv,
        names,
        by=["variable"] if "variable" in cv.columns else (),
        level=asked or (80,),
        id_col=id_col,
        time_col=time_col,
        target_col=truth,
    )
    groups = [c for c in ("variable",) if c in table.columns]
    models = [c for c in table.columns if c not in (*groups, "metric", "rows")]
    long = table.melt([*groups, "metric", "rows"], models, var_name="model")
    wide = long.pivot(index=[*groups, "model", "rows"], columns="metric", values="value")
    order = list(dict.fromkeys(table["metric"]))
    return wide[order].sort_values([*groups, "mae"]).reset_index().rename_axis(columns=None)


def _models(cv: pd.DataFrame, truth: str) -> list[str]:
    """Names of the forecast columns: those that have bands."""
    stems = (str(c).rsplit("-lo-", 1)[0] for c in cv.columns if "-lo-" in str(c))
    return [name for name in dict.fromkeys(stems) if name != truth]


def _clock(times: pd.Series) -> pd.Series:
    """Timestamps of a file as something that two files agree on."""
    if pd.api.types.is_numeric_dtype(times):
        return times
    return pd.to_datetime(times, utc=True)
