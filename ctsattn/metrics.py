"""Scores of forecasts: long frames in, long frames out, each score defined once, on utilsforecast.

utilsforecast skips a NaN forecast, so that its score looks perfect. Here a forecast that is not finite is
refused, a truth that is missing is left out and counted, and every scored row counts exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from utilsforecast import losses as uf

_GROUP = "__group"
_BAND = re.compile(r"^(?P<model>.+?)-(?P<kind>lo-|hi-|q)(?P<number>\d+(?:\.\d+)?)$")


@dataclass(frozen=True)
class _Task:
    """A checked frame with one group code per row, and what the scores need besides."""

    frame: pd.DataFrame
    models: list[str]
    target: str
    quantiles: dict[float, dict[str, str]]
    level: float
    scale: np.ndarray | None

    @property
    def names(self) -> dict[str, str]:
        return {"id_col": _GROUP, "target_col": self.target, "cutoff_col": "__no_cutoff"}

    def scaled(self, columns: Sequence[str]) -> pd.DataFrame:
        """Truth and forecasts divided by the error scale of their series."""
        if self.scale is None:
            raise ValueError(
                "Scaled scores (mase, msis) compare with the errors of a seasonal naive forecast on the training "
                "data. Pass it: evaluate(..., train_df=train_df, seasonality=...)."
            )
        frame = self.frame[[_GROUP]].copy()
        for column in (self.target, *columns):
            frame[column] = self.frame[column].to_numpy(float) / self.scale
        return frame

    def band(self) -> dict[str, tuple[str, str]]:
        """Lower and upper column of each model at the asked level."""
        number = f"{self.level:g}"
        columns = {m: (f"{m}-lo-{number}", f"{m}-hi-{number}") for m in self.models}
        missing = [c for pair in columns.values() for c in pair if c not in self.frame.columns]
        if missing:
            raise ValueError(
                f"A score at level {number} needs the columns {', '.join(map(repr, missing))}. "
                f"Ask for them: predict(..., level=[{number}])."
            )
        return columns


def _mae(task: _Task) -> pd.DataFrame:
    return uf.mae(task.frame, task.models, **task.names)


def _mse(task: _Task) -> pd.DataFrame:
    return uf.mse(task.frame, task.models, **task.names)


def _rmse(task: _Task) -> pd.DataFrame:
    return uf.rmse(task.frame, task.models, **task.names)


def _smape(task: _Task) -> pd.DataFrame:
    # utilsforecast gives half of the usual value.
    halves = uf.smape(task.frame, task.models, **task.names)
    return halves.assign(**{m: 2.0 * halves[m] for m in task.models})


def _mase(task: _Task) -> pd.DataFrame:
    return uf.mae(task.scaled(task.models), task.models, **task.names)


def _pinball(task: _Task) -> pd.DataFrame:
    levels = sorted(task.quantiles)
    columns = {m: [task.quantiles[q][m] for q in levels] for m in task.models}
    return uf.mqloss(task.frame, columns, np.array(levels), **task.names)


def _crps(task: _Task) -> pd.DataFrame:
    scores = _pinball(task)
    return scores.assign(**{m: 2.0 * scores[m] for m in task.models})


def _wql(task: _Task) -> pd.DataFrame:
    scores = _crps(task).set_index(_GROUP)
    size = task.frame[task.target].abs().groupby(task.frame[_GROUP]).mean()
    # A truth of zeros has no size to compare with; its score stays in the units of the data.
    size = size.where(size > 0, 1.0).reindex(scores.index)
    return scores[task.models].div(size, axis=0).reset_index()


def _coverage(task: _Task) -> pd.DataFrame:
    band = task.band()
    frame = task.frame.rename(columns=_band_names(band, task.level))
    return uf.coverage(frame, task.models, _as_level(task.level), **task.names)


def _msis(task: _Task) -> pd.DataFrame:
    band = task.band()
    columns = [c for pair in band.values() for c in pair]
    frame = task.scaled(columns).rename(columns=_band_names(band, task.level))
    return uf.winkler_score(frame, task.models, _as_level(task.level), **task.names)


def _as_level(level: float) -> Any:
    """Utilsforecast builds column names from the level, so 80.0 must read 80."""
    return int(level) if float(level).is_integer() else float(level)


def _band_names(band: dict[str, tuple[str, str]], level: float) -> dict[str, str]:
    number = _as_level(level)
    return {
        column: f"{model}-{side}-{number}"
        for model, pair in band.items()
        for side, column in zip(("lo", "hi"), pair, strict=True)
    }


METRICS: dict[str, Callable[[_Task], pd.DataFrame]] = {
    "mae": _mae,
    "mse": _mse,
    "rmse": _rmse,
    "smape": _smape,
    "mase": _mase,
    "pinball": _pinball,
    "crps": _crps,
    "wql": _wql,
    "coverage": _coverage,
    "msis": _msis,
}
_PER_LEVEL = ("coverage", "msis")


def evaluate(
    df: Any,
    metrics: Sequence[str] = ("mae", "rmse", "smape"),
    *,
    models: Sequence[str] | None = None,
    by: Sequence[str] | None = None,
    train_df: Any = None,
    seasonality: int = 1,
    level: Sequence[float] = (80,),
    quantiles: Sequence[float] | None = None,
    id_col: str = "unique_id",
    time_col: str = "ds",
    target_col: str = "y",
    cutoff_col: str = "cutoff",
) -> Any:
    r"""Score forecasts that stand beside the truth, as `Forecaster.cross_validation` returns them.

    With $e = y - \hat y$, $\rho_q(e) = \max(q e, (q - 1) e)$, means over the rows of a group, and $s$ the
    error scale of a series (below):

    - `mae` $|e|$, `mse` $e^2$, `rmse` its root, `smape` $2 |e| / (|y| + |\hat y|)$ (0 where both are 0),
      `mase` $|e| / s$;
    - `pinball` $\rho_q$, mean over the quantiles too; `crps` twice that; `wql` is `crps` over the mean $|y|$;
    - `coverage-L` share of truths inside the band; `msis-L` is
      $[(u - l) + (2/\alpha)(l - y)_+ + (2/\alpha)(y - u)_+] / s$, with $\alpha = 1 - L/100$.

    The error scale is the mean of $|y_t - y_{t-m}|$ over the series' training rows up to the cutoff, for
    seasonality $m$ (1 where the series is not longer than $m$). Where it is 0, the mean of $|y|$ takes its
    place, and 1 where that is 0 as well, so that scores of constant series are defined.

    Args:
        df: Long frame (pandas, polars, pyarrow) with the truth and one column per model, and for the
            probabilistic scores the columns `model-lo-80`, `model-hi-80` or `model-q0.1`.
        metrics: Names from `METRICS`.
        models: Forecast columns; all numeric columns that are not something else when None.
        by: Columns whose values make a group; None: series, cutoff and variable. `()` pools all rows.
        train_df: Training data, for `mase` and `msis`.
        seasonality: Rows in a season, for `mase` and `msis`.
        level: Levels in percent, for `coverage` and `msis`.
        quantiles: Quantiles for `pinball`, `crps` and `wql`; all that every model has when None.
        id_col: Series identifier; may be absent for one series.
        time_col: Time.
        target_col: Truth.
        cutoff_col: Cutoff; may be absent.

    Returns:
        Frame of the kind that came in, one row per group and score: the group's columns, `metric`, `rows`
        (how many rows were scored), and one column per model. Where a group has no truth, `rows` is 0 and
        the score NaN.

    Raises:
        ValueError: A forecast is not finite, or columns or names are missing.

    References:
        Hyndman and Koehler, "Another look at measures of forecast accuracy" (2006).
        Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation" (2007).
    """
    native = nw.from_native(df, eager_only=True)
    frame = _to_pandas(native)
    special = {id_col, time_col, target_col, cutoff_col, "variable"}
    _check_columns(frame, metrics, target_col, models)
    names = list(models) if models is not None else _model_columns(frame, special)
    groups = [c for c in (id_col, cutoff_col, "variable") if c in frame] if by is None else list(by)
    _refuse_gaps(frame, names, id_col, time_col)
    codes, keys = _group(frame, groups)
    scored = frame[target_col].notna().to_numpy()
    counts = np.bincount(codes[scored], minlength=len(keys))
    frame = frame.assign(**{_GROUP: codes})[scored].reset_index(drop=True)
    scale = None
    if train_df is not None and {"mase", "msis"} & set(metrics):
        train = _to_pandas(nw.from_native(train_df, eager_only=True))
        scale = _error_scale(frame, train, seasonality, id_col, time_col, target_col, cutoff_col)
    found = _quantile_columns(frame, names, quantiles)
    parts = []
    for name in metrics:
        for one in level if name in _PER_LEVEL else (50.0,):
            task = _Task(frame, names, target_col, found, float(one), scale)
            if name in ("pinball", "crps", "wql") and not found:
                raise ValueError(
                    f"{name!r} needs quantile columns. Ask for them: predict(..., quantiles=[0.1, 0.5, 0.9])."
                )
            scores = METRICS[name](task).set_index(_GROUP)[names].reindex(range(len(keys)))
            label = f"{name}-{one:g}" if name in _PER_LEVEL else name
            head = keys.assign(metric=label, rows=counts)
            parts.append(pd.concat([head, scores.reset_index(drop=True)], axis=1))
    result = pd.concat(parts, ignore_index=True)
    return _like(result, native)


def owa(scores: Any, reference: str, models: Sequence[str] | None = None) -> dict[str, float]:
    """Overall weighted average of the M4 competition: mean of relative sMAPE and relative MASE.

    Args:
        scores: Result of `evaluate(..., ["smape", "mase"], by=())`.
        reference: Column of the reference forecast, usually a deseasonalised naive one.
        models: Columns to score; all but the reference when None.

    Returns:
        One number per model; below 1 is better than the reference.
    """
    frame = _to_pandas(nw.from_native(scores, eager_only=True)).set_index("metric")
    if reference not in frame.columns or not {"smape", "mase"} <= set(frame.index):
        raise ValueError(
            f"`owa` needs the scores 'smape' and 'mase' and the reference column {reference!r}. "
            'Make them with evaluate(..., ["smape", "mase"], by=()).'
        )
    others = models if models is not None else [c for c in frame.columns if c not in ("rows", reference)]
    relative = frame.loc[["smape", "mase"], others].div(frame.loc[["smape", "mase"], reference], axis=0)
    return {name: float(relative[name].mean()) for name in others}


def _to_pandas(frame: nw.DataFrame) -> pd.DataFrame:
    if frame.implementation.is_pandas():
        return frame.to_native().reset_index(drop=True)
    return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def _like(result: pd.DataFrame, native: nw.DataFrame) -> Any:
    if native.implementation.is_pandas():
        return result
    columns = {c: result[c].to_numpy() for c in result.columns}
    return nw.from_dict(columns, backend=native.implementation).to_native()


def _check_columns(
    frame: pd.DataFrame, metrics: Sequence[str], target_col: str, models: Sequence[str] | None
) -> None:
    unknown = [m for m in metrics if m not in METRICS]
    if unknown:
        raise ValueError(f"Unknown scores {unknown}; there are {', '.join(METRICS)}.")
    missing = [c for c in (target_col, *(models or ())) if c not in frame]
    if missing:
        raise ValueError(f"The frame has no column {missing}; it has {list(frame.columns)}.")


def _model_columns(frame: pd.DataFrame, special: set[str]) -> list[str]:
    numeric = [c for c in frame if c not in special and pd.api.types.is_numeric_dtype(frame[c])]
    names = [c for c in numeric if not pd.api.types.is_bool_dtype(frame[c]) and not _is_band(c, numeric)]
    if not names:
        raise ValueError(f"No column holds forecasts; the frame has {list(frame.columns)}.")
    return names


def _is_band(column: str, columns: Sequence[str]) -> bool:
    match = _BAND.match(str(column))
    return match is not None and match["model"] in columns


def _refuse_gaps(frame: pd.DataFrame, models: Sequence[str], id_col: str, time_col: str) -> None:
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


def _group(frame: pd.DataFrame, groups: list[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Code of each row's group, and the groups in order of first appearance."""
    if not groups:
        return np.zeros(len(frame), dtype=np.int64), pd.DataFrame(index=range(1))
    codes = frame.groupby(groups, sort=False, observed=True, dropna=False).ngroup().to_numpy()
    keys = frame[groups].drop_duplicates(ignore_index=True)
    return codes, keys


def _quantile_columns(
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


def _error_scale(
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
    where = keys + [c for c in (cutoff_col,) if c in frame]
    scale = np.ones(len(frame))
    rows_of = (
        frame.groupby(where, sort=False, observed=True).indices if where else {(): np.arange(len(frame))}
    )
    for key, rows in rows_of.items():
        key = key if isinstance(key, tuple) else (key,)
        own = series.get(key[: len(keys)])
        if own is None:
            raise ValueError(f"`train_df` has no rows for {dict(zip(keys, key, strict=False))}.")
        if len(key) > len(keys):
            own = own[own[time_col] <= key[-1]]
        scale[rows] = _seasonal_error(own[target_col].to_numpy(float), seasonality)
    return scale


def _seasonal_error(values: np.ndarray, seasonality: int) -> float:
    lag = seasonality if len(values) > seasonality else 1
    error = float(np.abs(values[lag:] - values[:-lag]).mean()) if len(values) > lag else 0.0
    size = float(np.abs(values).mean()) if len(values) else 0.0
    return error or size or 1.0
