"""What each column is for: as declared, or by rules that are written down and shown."""

from __future__ import annotations

import warnings
from collections.abc import Hashable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.errors import examples
from ctsattn.data.frame import Panel, Rows
from ctsattn.data.schema import (
    FUTURE,
    IGNORED,
    NUMBER,
    PAST,
    RULE,
    STATIC,
    TARGET,
    TEXT,
    DataWarning,
    Feature,
)
from ctsattn.data.values import kind_of, learn_vocabulary, to_numbers

MANY_TEXTS = 100
AHEAD = 3  # values after the last target that show a column to be known ahead


def assign_roles(panel: Panel) -> tuple[Feature, ...]:
    """Give each column beside id and time a role, a kind and a reason.

    Columns of `static_df`, `past_df` and `future_df` have the role of their frame. A column of the main
    frame has the declared role or, undeclared, by the first rule that holds: times, objects and row numbers
    are ignored;
    text with over a hundred values that hardly repeat is ignored; a column constant within every series is
    static (ignored when it is the same everywhere); one that at least half of the series have at three times
    or more after their last target is known ahead, so future; any other is past.

    Raises:
        ValueError: If a declared column is nowhere, or a declared static one varies within a series.
    """
    columns = panel.source.columns
    declared = columns.declared()
    found: dict[Hashable, Feature] = {}
    for name in columns.targets:
        found[name] = Feature(name, TARGET, NUMBER, "target_col")
    frames = {STATIC: panel.static, PAST: _columns(panel.past), FUTURE: _columns(panel.future)}
    for role, table in frames.items():
        for name, column in (table or {}).items():
            if name not in columns.targets and name not in panel.rows.columns:
                found[name] = _feature(name, column, role, f"column of {role}_df")
    tail = _after_last_target(panel)
    for name, column in panel.rows.columns.items():
        if name in columns.targets:
            continue
        if name in declared:
            _warn_if_empty(column, name)
            found[name] = _feature(name, column, declared[name], f"named in {declared[name]}_cols")
        else:
            role, why = _infer(column, panel.rows, panel.num_series, tail)
            found[name] = _feature(name, column, role, why)
    absent = [name for name in declared if name not in found]
    if absent:
        raise ValueError(
            f"Declared column(s) {examples(absent)} are in no frame. The history has "
            f"{examples(panel.rows.columns, 12)}. Mend the name, or pass the frame that has it."
        )
    return tuple(found.values())


def _warn_if_empty(column: pd.Series, name: Hashable) -> None:
    if not column.notna().any():
        warnings.warn(
            f"Declared covariate {name!r} has no value in {len(column)} rows; it tells the model nothing.",
            DataWarning,
            stacklevel=3,
        )


def _columns(rows: Rows | None) -> dict[Hashable, pd.Series] | None:
    return None if rows is None else rows.columns


def _feature(name: Hashable, column: pd.Series, role: str, why: str) -> Feature:
    kind = kind_of(column)
    if kind not in (NUMBER, TEXT):
        if role != IGNORED and not why.startswith(RULE):
            raise TypeError(
                f"Covariate {name!r} has dtype {column.dtype}, for example {examples(column.iloc[:3])}. "
                f"Numbers, bools and text are accepted. Turn it into numbers, or leave it out."
            )
        return Feature(name, IGNORED, kind, why)
    if role == IGNORED:
        return Feature(name, role, kind, why)
    if kind == TEXT:
        return Feature(name, role, kind, why, vocabulary=learn_vocabulary(column))
    return Feature(name, role, kind, why, *_moments(column, name, role))


def _moments(column: pd.Series, name: Hashable, role: str) -> tuple[tuple[str, ...], float, float]:
    """Mean and standard deviation for what is scaled by the training data; 0 and 1 for channels."""
    if role not in (STATIC, FUTURE):
        return (), 0.0, 1.0
    values = to_numbers(column, name, "Covariate", lambda rows: f"row(s) {examples(rows)}")
    values = values[~np.isnan(values)]
    if not values.size:
        return (), 0.0, 1.0
    mean, std = float(values.mean()), float(values.std())
    return (), mean, std if std > 1e-12 * abs(mean) and std > 0 else 1.0


def _infer(column: pd.Series, rows: Rows, num_series: int, tail: NDArray[np.bool_]) -> tuple[str, str]:
    kind = kind_of(column)
    if kind not in (NUMBER, TEXT):
        return IGNORED, f"{RULE}: neither numbers nor text ({column.dtype})"
    if getattr(column.dtype, "kind", "O") in "iu" and len(column) > 2 and (column.diff().iloc[1:] == 1).all():
        return IGNORED, f"{RULE}: numbers the rows"
    codes, uniques = pd.factorize(column)
    seen = int((codes >= 0).sum())
    if not seen:
        return IGNORED, f"{RULE}: has no value"
    if len(uniques) == 1:
        return IGNORED, f"{RULE}: the same everywhere"
    constant = _constant_within(codes, rows.series, num_series)
    if kind == TEXT and len(uniques) > MANY_TEXTS and len(uniques) > (num_series if constant else seen) / 2:
        return IGNORED, f"{RULE}: {len(uniques)} texts that hardly repeat"
    if constant:
        return STATIC, f"{RULE}: constant within every series"
    ahead = np.bincount(rows.series[tail & (codes >= 0)], minlength=num_series)
    if 2 * (ahead >= AHEAD).sum() >= len(np.unique(rows.series)):
        return FUTURE, f"{RULE}: known ahead of the last target"
    return PAST, f"{RULE}: varies in time"


def _constant_within(codes: NDArray[np.int64], series: NDArray[np.int64], num_series: int) -> bool:
    there = codes >= 0
    low, high = np.full(num_series, np.iinfo(np.int64).max), np.full(num_series, -1)
    np.minimum.at(low, series[there], codes[there])
    np.maximum.at(high, series[there], codes[there])
    return bool((low[high >= 0] == high[high >= 0]).all())


def check_static(column: pd.Series, feature: Feature, panel: Panel) -> None:
    """Refuse a declared static column that varies within a series; warn of one that a rule made static.

    Raises:
        ValueError: Names the series and times.

    Warns:
        DataWarning: The last value of each series counts.
    """
    codes, _ = pd.factorize(column)
    rows, num_series = panel.rows, panel.num_series
    if _constant_within(codes, rows.series, num_series):
        return
    there = np.flatnonzero(codes >= 0)
    first = np.full(num_series, -1)
    first[rows.series[there][::-1]] = codes[there][::-1]
    odd = there[codes[there] != first[rows.series[there]]]
    text = (
        f"Column {feature.name!r} is static ({feature.why}), but varies within "
        f"{len(np.unique(rows.series[odd]))} series, for example "
        f"{panel.source.describe(rows.series[odd], rows.ticks[odd])}."
    )
    if not feature.by_rule:
        raise ValueError(f"{text} Name it in past_cols or future_cols instead.")
    warnings.warn(f"{text} Its last value counts. Declare its role and fit again.", DataWarning, stacklevel=2)


def _after_last_target(panel: Panel) -> NDArray[np.bool_]:
    """Rows later than the last observed target of their series; none in a series without targets."""
    rows = panel.rows
    observed = np.zeros(len(rows.ticks), bool)
    for name in panel.source.columns.targets:
        observed |= panel.rows.columns[name].notna().to_numpy()
    last = np.full(panel.num_series, rows.ticks.min())
    np.maximum.at(last, rows.series[observed], rows.ticks[observed])
    seen = np.zeros(panel.num_series, bool)
    seen[rows.series[observed]] = True
    return (rows.ticks > last[rows.series]) & seen[rows.series]
