"""Scores of forecasts: long frames in, long frames out, each score defined once, on utilsforecast.

utilsforecast skips a NaN forecast, so that its score looks perfect. Here a forecast that is not finite is
refused, a truth that is missing is left out and counted, and every scored row counts exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from ctsattn.metrics.reading import (
    check_columns,
    error_scale,
    group,
    like,
    model_columns,
    quantile_columns,
    refuse_gaps,
    to_pandas,
)
from ctsattn.metrics.scores import GROUP, METRICS, PER_LEVEL, Task

__all__ = ["METRICS", "evaluate", "owa"]


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
    frame = to_pandas(native)
    special = {id_col, time_col, target_col, cutoff_col, "variable"}
    check_columns(frame, metrics, target_col, models)
    names = list(models) if models is not None else model_columns(frame, special)
    groups = [c for c in (id_col, cutoff_col, "variable") if c in frame] if by is None else list(by)
    refuse_gaps(frame, names, id_col, time_col)
    codes, keys = group(frame, groups)
    scored = frame[target_col].notna().to_numpy()
    counts = np.bincount(codes[scored], minlength=len(keys))
    frame = frame.assign(**{GROUP: codes})[scored].reset_index(drop=True)
    scale = None
    if train_df is not None and {"mase", "msis"} & set(metrics):
        train = to_pandas(nw.from_native(train_df, eager_only=True))
        scale = error_scale(frame, train, seasonality, id_col, time_col, target_col, cutoff_col)
    found = quantile_columns(frame, names, quantiles)
    parts = []
    for name in metrics:
        for one in level if name in PER_LEVEL else (50.0,):
            task = Task(frame, names, target_col, found, float(one), scale)
            if name in ("pinball", "crps", "wql") and not found:
                raise ValueError(
                    f"{name!r} needs quantile columns. Ask for them: predict(..., quantiles=[0.1, 0.5, 0.9])."
                )
            scores = METRICS[name](task).set_index(GROUP)[names].reindex(range(len(keys)))
            label = f"{name}-{one:g}" if name in PER_LEVEL else name
            head = keys.assign(metric=label, rows=counts)
            parts.append(pd.concat([head, scores.reset_index(drop=True)], axis=1))
    result = pd.concat(parts, ignore_index=True)
    return like(result, native)


def owa(scores: Any, reference: str, models: Sequence[str] | None = None) -> dict[str, float]:
    """Overall weighted average of the M4 competition: mean of relative sMAPE and relative MASE.

    Args:
        scores: Result of `evaluate(..., ["smape", "mase"], by=())`.
        reference: Column of the reference forecast, usually a deseasonalised naive one.
        models: Columns to score; all but the reference when None.

    Returns:
        One number per model; below 1 is better than the reference.
    """
    frame = to_pandas(nw.from_native(scores, eager_only=True)).set_index("metric")
    if reference not in frame.columns or not {"smape", "mase"} <= set(frame.index):
        raise ValueError(
            f"`owa` needs the scores 'smape' and 'mase' and the reference column {reference!r}. "
            'Make them with evaluate(..., ["smape", "mase"], by=()).'
        )
    others = models if models is not None else [c for c in frame.columns if c not in ("rows", reference)]
    relative = frame.loc[["smape", "mase"], others].div(frame.loc[["smape", "mase"], reference], axis=0)
    return {name: float(relative[name].mean()) for name in others}
