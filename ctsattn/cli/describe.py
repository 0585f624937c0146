"""`ctsattn describe`: what is in a file, and what the model will make of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.building import learn_schema
from ctsattn.data.clock import Clock
from ctsattn.data.errors import examples
from ctsattn.data.frame import Panel, read_panel
from ctsattn.data.schema import IGNORED, TARGET, Columns, Schema
from ctsattn.data.series import SeriesStore
from ctsattn.data.task import infer_task

_UNITS = (
    ("years", 365.25 * 86400),
    ("days", 86400.0),
    ("hours", 3600.0),
    ("minutes", 60.0),
    ("seconds", 1.0),
    ("milliseconds", 1e-3),
    ("microseconds", 1e-6),
    ("nanoseconds", 1e-9),
)
# Gaps within a hundredth of each other count as one sampling rate; a rate is named from this share on.
_SAME_RATE, _RATE_SHARE = 0.01, 0.05
_REGULAR_SHARE = 0.99


@dataclass(frozen=True)
class Report:
    """What `describe` found; times as text, spans in seconds or units of a numeric clock.

    Attributes:
        series: Number of series.
        observations: Number of known target values.
        per_series: Fewest, median and most observations in a series.
        clock: Kind of the clock, and its zone.
        first: Earliest time.
        last: Latest time.
        gaps: Shortest, median, ninth-tenth and longest gap between observations of a series.
        rates: Gaps that are common, with their share, most common first.
        regular: Whether nearly all gaps are one and the same.
        missing: Share of rows without a value, for each target.
        duplicates: Rows that share series and time with an earlier row.
        first_duplicate: Where the first of them is; empty without any.
        columns: Role of each column beside id and time, and why.
        time_unit: The model's unit of time.
        step: Typical step, as the model sees it.
        horizon: How far training will look ahead.
        lookback: How far a window will look back.
        periods: Periods that the model will look for.
    """

    series: int
    observations: int
    per_series: tuple[int, float, int]
    clock: str
    first: str
    last: str
    gaps: tuple[float, ...]
    rates: tuple[tuple[float, float], ...]
    regular: bool
    missing: dict[str, float]
    duplicates: int
    first_duplicate: str
    columns: dict[str, tuple[str, str]]
    time_unit: float
    step: float
    horizon: float
    lookback: float
    periods: tuple[float, ...]
    is_physical: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, dictionaries, numbers and texts."""
        return asdict(self)


def describe(df: Any, columns: Columns, *, horizon: Any = None, lookback: Any = None) -> Report:
    """Look at a frame as `fit` would, without training.

    Args:
        df: Long frame.
        columns: Names of its columns.
        horizon: As in `Forecaster`.
        lookback: As in `Forecaster`.

    Returns:
        The report. Duplicates are counted, not refused.

    Raises:
        ValueError: If a column is missing or cannot be read.
        TypeError: If a target holds text.
    """
    panel = read_panel(df, columns)
    schema, store = learn_schema(panel, duplicates="last")
    clock = panel.source.clock
    spec = infer_task(store, schema, horizon=horizon, lookback=lookback)
    gaps = _gaps(store)
    count = np.bincount(store.moments.segment, minlength=store.num_series)
    rates = common_rates(gaps)
    duplicates, place = _duplicates(panel)
    ends = clock.restore(np.array([panel.rows.ticks.min(), panel.rows.ticks.max()]))
    unit = spec.time_unit
    return Report(
        series=store.num_series,
        observations=int((store.past.segment % store.num_channels < store.num_targets).sum()),
        per_series=(int(count.min()), float(np.median(count)), int(count.max())),
        clock=_clock_in_words(clock),
        first=str(ends.iloc[0]),
        last=str(ends.iloc[1]),
        gaps=tuple(np.quantile(gaps, [0, 0.5, 0.9, 1]).tolist()) if gaps.size else (0.0,) * 4,
        rates=rates,
        regular=bool(rates) and rates[0][1] >= _REGULAR_SHARE,
        missing=_missing(panel, schema),
        duplicates=duplicates,
        first_duplicate=place,
        columns={str(f.name): (f.role, f.why) for f in schema.features},
        time_unit=unit,
        step=spec.median_gap * unit,
        horizon=spec.horizon * unit,
        lookback=spec.lookback * unit,
        periods=tuple(period * unit for period in spec.periods),
        is_physical=clock.is_physical,
    )


def _gaps(store: SeriesStore) -> NDArray[np.float64]:
    """Gaps between neighbouring moments at which a series was observed, in seconds or units."""
    moments = store.moments
    return store.source.clock.seconds(np.diff(moments.times)[np.diff(moments.segment) == 0])


def common_rates(gaps: NDArray[np.float64], most: int = 4) -> tuple[tuple[float, float], ...]:
    """Gaps that are common, each with its share of all gaps, most common first.

    Args:
        gaps: Positive gaps.
        most: Largest number of rates to name.
    """
    if not gaps.size:
        return ()
    order = np.sort(gaps)
    starts = np.flatnonzero(np.diff(order) > _SAME_RATE * order[:-1]) + 1
    groups = [group for group in np.split(order, starts) if len(group) >= _RATE_SHARE * len(gaps)]
    # A long run of ever so slightly longer gaps is no rate: its ends differ.
    tight = [group for group in groups if group[-1] <= (1 + 2 * _SAME_RATE) * group[0]]
    rates = [(float(np.median(group)), len(group) / len(gaps)) for group in tight]
    return tuple(sorted(rates, key=lambda rate: -rate[1])[:most])


def _missing(panel: Panel, schema: Schema) -> dict[str, float]:
    """Share of rows in which a target has no value."""
    targets = [feature.name for feature in schema.having(TARGET)]
    return {str(name): float(panel.rows.columns[name].isna().mean()) for name in targets}


def _duplicates(panel: Panel) -> tuple[int, str]:
    """Rows whose series and time an earlier row has, and where the first is."""
    series, ticks = panel.rows.series, panel.rows.ticks
    order = np.lexsort((ticks, series))
    again = (np.diff(series[order]) == 0) & (np.diff(ticks[order]) == 0)
    at = order[1:][again]
    return len(at), panel.source.describe(series[at[:1]], ticks[at[:1]]) if len(at) else ""


def _clock_in_words(clock: Clock) -> str:
    words = {"datetime": "datetimes", "timedelta": "elapsed time", "integer": "integers", "float": "numbers"}
    zone = f" in {clock.zone}" if clock.zone else ""
    return words[clock.kind] + zone


def in_words(span: float, is_physical: bool = True) -> str:
    """A span of time in the largest unit that it fills; a plain number on a numeric clock."""
    if not is_physical:
        return f"{span:.4g}"
    name, size = next(((name, size) for name, size in _UNITS if span >= size), _UNITS[-1])
    number = f"{span / size:.3g}"
    return f"{number} {name[:-1] if number == '1' else name}"


def to_text(report: Report) -> str:
    """The report for a person, one fact a line."""
    rows = [*_data_rows(report), *_model_rows(report)]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{words}" for name, words in rows)


def _gap_rows(report: Report) -> list[tuple[str, str]]:
    if not report.gaps[-1]:
        return [("gaps", "none: no series was observed at two times")]
    shortest, median, ninth, longest = (in_words(gap, report.is_physical) for gap in report.gaps)
    rates = ", ".join(f"{in_words(gap, report.is_physical)} ({share:.0%})" for gap, share in report.rates)
    kind = "regular" if report.regular else "irregular"
    return [
        ("gaps", f"shortest {shortest}, median {median}, nine in ten within {ninth}, longest {longest}"),
        ("sampling", f"{kind}; common gaps: {rates}" if rates else f"{kind}; no gap is common"),
    ]


def _data_rows(report: Report) -> list[tuple[str, str]]:
    fewest, typical, most = report.per_series
    each = f"{fewest:,} to {most:,} in a series, median {typical:,.0f}"
    if fewest == most:
        each = f"{fewest:,} in each series"
    missing = ", ".join(f"{name} {share:.1%}" for name, share in report.missing.items())
    twice = (
        f"{report.duplicates} rows, the first: {report.first_duplicate}; fit needs --duplicates mean or last"
    )
    return [
        ("series", f"{report.series:,}"),
        (
            "observations",
            f"{report.observations:,}; {each}",
        ),
        ("clock", report.clock),
        ("span", f"{report.first} to {report.last}"),
        *_gap_rows(report),
        ("missing", missing),
        ("duplicates", twice if report.duplicates else "none"),
    ]


def _model_rows(report: Report) -> list[tuple[str, str]]:
    def words(span: float) -> str:
        return in_words(span, report.is_physical)

    ignored = [name for name, (role, _) in report.columns.items() if role == IGNORED]
    used = [f"{name}: {role} ({why})" for name, (role, why) in report.columns.items() if role != IGNORED]
    periods = ", ".join(words(period) for period in report.periods) or "none"
    rows = [("columns", used[0]), *(("", line) for line in used[1:])]
    if ignored:
        rows.append(("not used", examples(ignored, 8)))
    return [
        *rows,
        ("the model will", f"count time in units of {words(report.time_unit)}"),
        ("", f"step by {words(report.step)}"),
        ("", f"look ahead {words(report.horizon)} and back {words(report.lookback)}"),
        ("", f"look for periods: {periods}"),
    ]
