"""Between arrays and the caller's frames: names of columns, checks of what was asked, answers."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.dialects import recognise
from ctsattn.data.errors import examples
from ctsattn.data.frame import Rows
from ctsattn.data.schema import TARGET, Columns, DataWarning, Schema
from ctsattn.data.series import Ragged, SeriesStore
from ctsattn.data.tables import Table, write_table
from ctsattn.forecasting.asking import Queries, beyond_known

MODEL = "ctsattn"
_ADDED = (MODEL, "variable", "sample", "cutoff", "in_sample", "cold_start")
Named = list[tuple[str, float]]


def check_names(*columns: Any) -> None:
    """Refuse ids, times and targets named as columns that an answer adds: one would hide the other."""
    names = [
        name for column in columns for name in (column if isinstance(column, (list, tuple)) else [column])
    ]
    taken = [n for n in names if n in _ADDED or str(n).startswith(f"{MODEL}-")]
    if taken:
        raise ValueError(
            f"Answers have a column {taken[0]!r} of their own, so no id, time or target can have this name. "
            f"Rename it: df = df.rename(columns={{{taken[0]!r}: {str(taken[0]) + '_'!r}}})."
        )


def asked_quantiles(
    level: Sequence[float] | float | None,
    quantiles: Sequence[float] | float | None,
    default: Sequence[float] = (),
) -> Named:
    """Columns to answer and the quantile level of each, in the order of the answer.

    Args:
        level: Central levels in percent.
        quantiles: Levels in (0, 1).
        default: Quantiles when neither is given.

    Returns:
        Names such as "ctsattn-lo-80" or "ctsattn-q0.1" with their levels.

    Raises:
        ValueError: Both are given, or a level is out of range.
    """
    if level is not None and quantiles is not None:
        raise ValueError("Give `level` or `quantiles`, not both: level=[80] is quantiles=[0.1, 0.9].")
    if level is None:
        wanted = _numbers(default if quantiles is None else quantiles)
        _check_range("quantiles", wanted, 1.0)
        return [(f"{MODEL}-q{_plain(q)}", round(q, 12)) for q in wanted]
    percents = _numbers(level)
    _check_range("level", percents, 100.0)
    _check_percents(percents)
    names: Named = []
    for percent in percents:
        tail = (100.0 - percent) / 200.0
        names += [
            (f"{MODEL}-lo-{_plain(percent)}", round(tail, 12)),
            (f"{MODEL}-hi-{_plain(percent)}", round(1 - tail, 12)),
        ]
    return names


def _plain(number: float) -> str:
    """All digits of a number, so that two levels never share a name: 80, 95.5, 0.00001."""
    return np.format_float_positional(round(number, 12), trim="-")


def _numbers(values: Any) -> list[float]:
    try:
        return list(dict.fromkeys(float(v) for v in np.atleast_1d(np.asarray(values, dtype=object))))
    except (TypeError, ValueError) as error:
        raise ValueError(f"Levels must be numbers, got {values!r}.") from error


def _check_range(name: str, values: list[float], top: float) -> None:
    bad = [v for v in values if not 0 < v < top]
    if bad:
        raise ValueError(f"`{name}` must lie between 0 and {top:g}, both excluded, but {bad[0]:g} was given.")


def _check_percents(percents: list[float]) -> None:
    small = [p for p in percents if p < 1]
    if small:
        raise ValueError(
            f"`level` is in percent, so {small[0]:g} is a band of {small[0]:g} %. For a share write "
            f"level=[{_plain(100 * small[0])}], or quantiles=[...] for quantiles."
        )


def grid_of(names: Named) -> NDArray[np.float64]:
    """Distinct levels, ascending, the median always among them."""
    return np.unique([0.5, *(q for _, q in names)])


def describe_features(schema: Schema) -> pd.DataFrame:
    """One row for each column: name, role, kind, and why."""
    rows = [(f.name, f.role, f.kind, f.why) for f in schema.features]
    return pd.DataFrame(rows, columns=["column", "role", "kind", "why"])


def target_names(schema: Schema) -> list[Any]:
    """Names of the targets, in order."""
    return [f.name for f in schema.having(TARGET)]


def quantile_columns(
    values: NDArray[np.float64], grid: NDArray[np.float64], names: Named
) -> dict[str, NDArray[np.float64]]:
    """Median and named quantiles of `values` `[rows, levels]` as columns."""
    place = {round(q, 12): i for i, q in enumerate(grid)}
    columns = {MODEL: values[:, place[0.5]]}
    return columns | {name: values[:, place[round(q, 12)]] for name, q in names}


def long_rows(
    queries: Queries, targets: Sequence[Any]
) -> tuple[NDArray[np.int64], NDArray[Any], dict[Hashable, Any]]:
    """Series and ticks of the rows of a long answer, and its column `variable` for several targets."""
    if len(targets) == 1:
        return queries.series, queries.ticks, {}
    variable = pd.Series(np.tile(np.array(targets, dtype=object), len(queries))).infer_objects()
    return (
        np.repeat(queries.series, len(targets)),
        np.repeat(queries.ticks, len(targets)),
        {"variable": variable},
    )


def forecast_frame(
    store: SeriesStore,
    schema: Schema,
    queries: Queries,
    values: NDArray[np.float64],
    names: Named,
    flags: Sequence[str] | None = None,
) -> Any:
    """Answer in the caller's library; flags stand in columns only where a row has one.

    Args:
        store: The history.
        schema: Names of the targets.
        queries: Rows of the answer.
        values: `[rows, targets, levels]` at the levels of `grid_of(names)`.
        names: Columns to write.
        flags: Columns of flags to write; None: those that a row has.
    """
    targets = target_names(schema)
    series, ticks, columns = long_rows(queries, targets)
    flat = values.reshape(len(series), values.shape[-1])
    columns |= quantile_columns(flat, grid_of(names), names)
    for flag, rows in flags_of(store, queries).items():
        if rows.any() if flags is None else flag in flags:
            columns[flag] = rows.reshape(-1)
    return store.source.frame(series, ticks, columns)


def flags_of(store: SeriesStore, queries: Queries) -> dict[str, NDArray[np.bool_]]:
    """What is to be said of rows `[rows, targets]`: that they lie in the history, or that there is none."""
    cold = ~store.has_target[queries.series]
    inside = store.has_history[queries.series] & (queries.ticks <= store.last_target[queries.series])
    return {"in_sample": inside[:, None] & ~cold, "cold_start": cold}


def check_observed(store: SeriesStore) -> None:
    """Refuse targets that training never sees: whatever was forecast for them would be made up."""
    never = np.flatnonzero(~store.has_target.any(axis=0))
    if never.size:
        names = [store.source.columns.targets[target] for target in never]
        raise ValueError(
            f"Target column {examples(names)} has no observed value in {store.num_series} series. Give "
            f"observations, or leave it out of target_col."
        )


def check_cold(store: SeriesStore, queries: Queries, allowed: bool) -> None:
    """Refuse series without any observation of a target unless they are allowed."""
    lacks = ~store.has_target[queries.series]
    cold = np.unique(queries.series[lacks.any(axis=1)])
    if cold.size and not allowed:
        names = examples(np.array(store.source.columns.targets, dtype=object)[lacks.any(axis=0)])
        raise ValueError(
            f"{cold.size} series have no observation of {names} to forecast from: "
            f"{examples(store.source.ids.take(cold))}. Give their history, or pass cold_start=True for the "
            f"distribution of the training data."
        )


def warn_beyond_known(store: SeriesStore, schema: Schema, queries: Queries) -> None:
    """Say when asked times lie beyond the known covariates; the last known value is held there."""
    late, columns = beyond_known(store, schema, queries)
    if late.any():
        names = dict.fromkeys(name for row in columns for name in row)
        warnings.warn(
            f"{int(late.sum())} of {len(queries)} asked rows lie beyond the last known value of "
            f"{examples(names)}: {store.source.describe(queries.series[late], queries.ticks[late], 1)}; "
            f"the last value is held there. List them with missing_future(future_df, ...).",
            DataWarning,
            stacklevel=3,
        )


def missing_future_frame(store: SeriesStore, schema: Schema, queries: Queries, future: Rows | None) -> Any:
    """Asked rows beyond the known covariates ("missing"), and future rows that nothing asks ("extra")."""
    late, columns = beyond_known(store, schema, queries)
    series, ticks = queries.series[late], queries.ticks[late]
    names = [", ".join(map(str, columns[row])) for row in np.flatnonzero(late)]
    status = ["missing"] * len(names)
    if future is not None:
        asked = Ragged.from_rows(queries.series, queries.ticks, np.zeros(len(queries)), store.num_series)
        extra = asked.search(future.series, future.ticks) == asked.search(
            future.series, future.ticks, after=False
        )
        series = np.concatenate([series, future.series[extra]])
        ticks = np.concatenate([ticks, future.ticks[extra]])
        names += [""] * int(extra.sum())
        status += ["extra"] * int(extra.sum())
    text: Table = {"status": pd.Series(status, dtype=object), "columns": pd.Series(names, dtype=object)}
    return store.source.frame(series, ticks, text)


def missing_rows(df: Any, columns: Columns) -> Any:
    """Ids and times of the rows of `df` where a target is missing.

    Raises:
        ValueError: There is no frame, or nothing is missing in it.
    """
    if df is None:
        raise ValueError(
            "Say what to impute: impute(times=[...]), or impute(df=df) for the missing rows of a frame."
        )
    table, found, library = recognise(df, columns)
    missing = np.zeros(len(table[found.time]), bool)
    for name in found.targets:
        missing |= table[name].isna().to_numpy()
    if not missing.any():
        raise ValueError(
            f"No value of {examples(found.targets)} is missing in the frame. Give the times to estimate: "
            f"impute(times=[...])."
        )
    keys = [name for name in (found.id, found.time) if name is not None]
    kept: Table = {name: table[name][missing].reset_index(drop=True) for name in keys}
    return write_table(kept, library)


def check_inside(store: SeriesStore, queries: Queries) -> None:
    """Refuse to impute after the last observation."""
    after = ~store.has_history[queries.series] | (queries.ticks > store.last_target[queries.series])
    if after.any():
        raise ValueError(
            f"{int(after.sum())} of {len(queries)} times lie after the last observation: "
            f"{store.source.describe(queries.series[after], queries.ticks[after])}. `impute` fills gaps; use "
            f"`predict` for what comes after."
        )
