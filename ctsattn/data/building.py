"""A checked panel becomes a schema (once, in `fit`) and a store of series (every time)."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.calendar import check_calendar
from ctsattn.data.errors import examples
from ctsattn.data.frame import Panel, Rows
from ctsattn.data.roles import assign_roles, check_static
from ctsattn.data.scalers import ScaleLaw, log_units
from ctsattn.data.schema import FUTURE, NUMBER, STATIC, TARGET, TEXT, DataWarning, Feature, Origin, Schema
from ctsattn.data.series import Ragged, SeriesStore
from ctsattn.data.steps import typical_step
from ctsattn.data.values import to_codes, to_numbers

DUPLICATES = ("error", "mean", "last")


def learn_schema(
    panel: Panel, *, calendar: Sequence[str] = (), duplicates: str = "error"
) -> tuple[Schema, SeriesStore]:
    """Decide on roles, vocabularies, scales and steps from the training data.

    Args:
        panel: The training data.
        calendar: Names of calendar features that the model shall see; none by default.
        duplicates: As in `build_store`.

    Returns:
        The schema, and the store that was built on the way.
    """
    check_calendar(tuple(calendar), panel.source.clock)
    features = assign_roles(panel)
    schema = Schema(panel.source.columns, features, panel.source.clock.kind, tuple(calendar))
    store = build_store(panel, schema, duplicates=duplicates)
    step = typical_step(store)
    return replace(schema, laws=scale_laws(store), step=step, origin=first_moment(store)), store


def first_moment(store: SeriesStore) -> Origin | None:
    """The earliest observation of all series; None without observations."""
    first = store.first[store.has_history]
    return Origin(first.min().item(), store.source.clock.per_second) if len(first) else None


def scale_laws(store: SeriesStore) -> tuple[ScaleLaw, ...]:
    """How spread grows with level, for each channel."""
    return tuple(_law(store, channel) for channel in range(store.num_channels))


def _law(store: SeriesStore, channel: int) -> ScaleLaw:
    segments = np.arange(store.num_series) * store.num_channels + channel
    part = store.past.take(segments[store.past.counts[segments] > 0])
    if not len(part):
        return ScaleLaw()
    heads, counts = part.indptr[:-1], part.counts
    mean = np.add.reduceat(part.values, heads) / counts
    centred = part.values - np.repeat(mean, counts)
    law = ScaleLaw.learn(mean, np.sqrt(np.add.reduceat(centred**2, heads) / counts))
    spread = float(part.values.std())
    unit, middle = log_units(part.values)
    centre = float(part.values.mean())
    return replace(law, centre=centre, spread=spread or 1.0, unit=unit, middle=middle)


def build_store(panel: Panel, schema: Schema, *, duplicates: str = "error") -> SeriesStore:
    """Turn a panel into flat arrays by the rules of a schema.

    A missing value removes that observation of that column and nothing else.

    Args:
        panel: A history with its covariates.
        schema: What training decided.
        duplicates: What to do with several observations of a column at one time of a series: "error",
            "mean" (texts: the last) or "last".

    Returns:
        The store.

    Raises:
        ValueError: If values cannot be read, or times are duplicated; names column, id, time and count.
    """
    if duplicates not in DUPLICATES:
        raise ValueError(
            f"`duplicates` must be one of {', '.join(map(repr, DUPLICATES))}, not {duplicates!r}."
        )
    _check_clock(panel, schema)
    _check_targets(panel, schema)
    _warn_of_absent(panel, schema)
    return SeriesStore(
        source=panel.source,
        past=_gather(panel, schema.channels, duplicates),
        known=_gather(panel, schema.known, duplicates),
        num_targets=len(schema.having(TARGET)),
        num_channels=len(schema.channels),
        num_known=len(schema.known),
        static=static_values(panel, schema.having(STATIC, NUMBER)).astype(np.float32),
        static_codes=static_values(panel, schema.having(STATIC, TEXT)).astype(np.int64),
        calendar=schema.calendar,
    )


def _check_clock(panel: Panel, schema: Schema) -> None:
    kind = panel.source.clock.kind
    if kind != schema.clock_kind and not {kind, schema.clock_kind} <= {"integer", "float"}:
        raise TypeError(
            f"The model was trained on {schema.clock_kind} times, but column {panel.source.columns.time!r} "
            f"holds {kind} times ({panel.source.clock.dtype}). Convert it to what training had."
        )


def _check_targets(panel: Panel, schema: Schema) -> None:
    """Refuse a frame whose targets were found under another dialect's name than the training frame's."""
    for feature, found in zip(schema.having(TARGET), panel.source.columns.targets, strict=False):
        if feature.name != found and feature.name not in panel.rows.columns:
            raise ValueError(
                f"The model forecasts {feature.name!r}, and the frame has {found!r} in its place. Rename it: "
                f"df = df.rename(columns={{{found!r}: {feature.name!r}}})."
            )


def _warn_of_absent(panel: Panel, schema: Schema) -> None:
    covariates = [f.name for f in schema.features if f.role not in (TARGET, "ignored")]
    absent = [name for name in covariates if not _sources(panel, name) and name not in (panel.static or {})]
    if absent:
        warnings.warn(
            f"Covariate(s) {examples(absent)} that the model was trained with are in no frame; they count as "
            f"missing.",
            DataWarning,
            stacklevel=3,
        )


def _sources(panel: Panel, name: Hashable) -> list[Rows]:
    """Frames that hold a column; later ones win where they meet."""
    frames = (panel.rows, panel.past, panel.future)
    return [rows for rows in frames if rows is not None and name in rows.columns]


def _gather(panel: Panel, features: tuple[Feature, ...], duplicates: str) -> Ragged:
    """Collect the observations of some columns, segment = series x columns + column."""
    width = len(features)
    parts = [
        _one(panel, rows, feature, number, width, duplicates)
        for number, feature in enumerate(features)
        for rows in _sources(panel, feature.name)
    ]
    if len(parts) == 1:
        return parts[0]
    empty = (np.zeros(0, np.int64), panel.rows.ticks[:0], np.zeros(0))
    columns = [(part.segment, part.times, part.values) for part in parts]
    segment, ticks, values = (np.concatenate(x) for x in zip(empty, *columns, strict=True))
    merged = Ragged.from_rows(segment, ticks, values, panel.num_series * width)
    _tell_of_contradictions(merged, features, panel)
    return merged.latest()


def _tell_of_contradictions(merged: Ragged, features: tuple[Feature, ...], panel: Panel) -> None:
    """Warn of what was measured and has different values at one time in two frames.

    What is known ahead may be forecast anew, so that the future frame holds in silence.
    """
    at = _contradictions(merged)
    for number in np.unique(merged.segment[at] % len(features)):
        if features[number].role == FUTURE:
            continue
        here = at[merged.segment[at] % len(features) == number]
        place = panel.source.describe(merged.segment[here] // len(features), merged.times[here])
        warnings.warn(
            f"Column {features[number].name!r} is in several frames, which differ at {len(here)} time(s): "
            f"{place}. Those of the later frame hold: `past_df` before `df`. Leave the column out of one.",
            DataWarning,
            stacklevel=2,
        )


def _one(panel: Panel, rows: Rows, feature: Feature, number: int, width: int, duplicates: str) -> Ragged:
    """Observations of one column of one frame."""
    values = column_values(panel, rows, feature)
    values = values if rows.order is None else values[rows.order]
    series, ticks = rows.sorted
    there = ~np.isnan(values)
    if not there.all():
        series, ticks, values = series[there], ticks[there], values[there]
    segment = series if width == 1 else series * width + number
    part = Ragged.from_rows(segment, ticks, values, panel.num_series * width)
    policy = duplicates if feature.kind == NUMBER or duplicates == "error" else "last"
    return _resolve(part, feature, width, policy, panel)


def column_values(panel: Panel, rows: Rows, feature: Feature) -> NDArray[np.float64]:
    """One column of a frame as numbers or codes, NaN where missing; known-future numbers standardised."""
    column = rows.columns[feature.name]
    if feature.kind == TEXT:
        return to_codes(column, feature)
    what = "Target" if feature.role == TARGET else "Covariate"
    values = to_numbers(
        column, feature.name, what, lambda at: panel.source.describe(rows.series[at], rows.ticks[at])
    )
    return (values - feature.mean) / feature.std if feature.role == FUTURE else values


def _resolve(part: Ragged, feature: Feature, width: int, policy: str, panel: Panel) -> Ragged:
    """Leave one observation for each segment and time, or say which have more."""
    again = part.again
    if not again.any():
        return part
    if policy == "error" and (feature.role == TARGET or len(_contradictions(part))):
        raise _duplicated(part, feature, width, panel)
    if policy == "mean":
        group = np.cumsum(np.concatenate([[True], ~again[:-1]])) - 1
        mean = np.bincount(group, part.values) / np.bincount(group)
        part = replace(part, values=mean[group])
    return part.latest()


def _contradictions(part: Ragged) -> NDArray[np.int64]:
    """Where the next observation is of the same segment and time, and another value."""
    at = np.flatnonzero(part.again)
    return at[part.values[at] != part.values[at + 1]]


def _duplicated(part: Ragged, feature: Feature, width: int, panel: Panel) -> ValueError:
    again = part.again
    head = np.flatnonzero(again & ~np.concatenate([[False], again[:-1]]))
    series, names = part.segment[head] // width, panel.source.columns
    count = 1 + int(np.argmin(np.append(again[head[0] :], False)))
    keys = [names.time] if names.id is None else [names.id, names.time]
    hint = (
        "If it holds several series, name their id column, id_col=...; else pass"
        if names.id is None
        else "Pass"
    )
    return ValueError(
        f"Column {feature.name!r} has several values at one time of a series: {len(head)} time(s) in "
        f"{len(np.unique(series))} series, {len(head) + int(again.sum())} rows in all. The first are {count} "
        f"rows at {panel.source.describe(series, part.times[head])}. One value for each time is accepted. "
        f"{hint} duplicates='mean' or 'last', or drop them: df = df.drop_duplicates({keys!r})."
    )


def static_values(panel: Panel, features: tuple[Feature, ...]) -> NDArray[np.float64]:
    """`[series, features]` standardised numbers or codes; 0 where missing."""
    out = np.zeros((panel.num_series, len(features)))
    for number, feature in enumerate(features):
        column = _static_column(panel, feature)
        if column is None:
            continue
        if feature.kind == TEXT:
            values = to_codes(column, feature)
        else:
            values = to_numbers(
                column, feature.name, "Covariate", lambda at: f"id(s) {examples(panel.source.ids[at])}"
            )
            values = (values - feature.mean) / feature.std
        out[:, number] = np.nan_to_num(values, nan=0.0)
    return out


def _static_column(panel: Panel, feature: Feature) -> pd.Series | None:
    """One value for each series: from `static_df`, or the last that the series' rows have."""
    if feature.name in (panel.static or {}):
        return (panel.static or {})[feature.name]
    if feature.name not in panel.rows.columns:
        return None
    column = panel.rows.columns[feature.name]
    check_static(column, feature, panel)
    rows = panel.rows
    order = np.arange(len(column)) if rows.order is None else rows.order
    there = order[column.notna().to_numpy()[order]]
    last = np.full(panel.num_series, len(column))
    last[rows.series[there]] = there  # of several, the assignment leaves the last
    return column.reindex(last).reset_index(drop=True)
