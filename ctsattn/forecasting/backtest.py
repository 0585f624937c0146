"""Cross-validation: cutoffs, training on what precedes them, forecasts at the true times that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.building import build_store, learn_schema
from ctsattn.data.clock import Ticks
from ctsattn.data.errors import examples
from ctsattn.data.frame import Panel, Rows
from ctsattn.data.schema import FUTURE, IGNORED, PAST, STATIC, Schema
from ctsattn.data.series import Ragged, SeriesStore, spans
from ctsattn.data.steps import parse_duration
from ctsattn.data.times import read_times
from ctsattn.data.windows import Windows
from ctsattn.forecasting.asking import Queries
from ctsattn.forecasting.fitting import seen_from, truths
from ctsattn.forecasting.frames import Named, grid_of, long_rows, quantile_columns, target_names
from ctsattn.forecasting.predicting import predict_quantiles


@dataclass(frozen=True)
class Reach:
    """How far a window looks ahead: a number of observations, or a span in seconds (or units).

    Attributes:
        rows: Observations, or None.
        seconds: Span, or None.
    """

    rows: int | None = None
    seconds: float | None = None

    @staticmethod
    def of(value: Any, store: SeriesStore, default: float) -> Reach:
        """Read a horizon or step as the caller gives it."""
        if value is None:
            return Reach(seconds=default)
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            if value < 1:
                raise ValueError(f"A horizon or step of observations must be at least 1, got {value}.")
            return Reach(rows=int(value))
        return Reach(seconds=parse_duration(value, store.source.clock))

    def back(self, store: SeriesStore, from_ticks: Ticks) -> Ticks:
        """The moment in each series that lies this far before another."""
        if self.seconds is not None:
            return from_ticks - store.source.clock.ticks(self.seconds)
        moments = store.moments
        every = np.arange(store.num_series)
        place = moments.search(every, from_ticks) - 1 - (self.rows or 0)
        smallest = -np.inf if moments.times.dtype.kind == "f" else np.iinfo(np.int64).min // 4
        there = place >= moments.indptr[:-1]
        return np.where(there, moments.times[np.maximum(place, 0)] if len(moments) else 0, smallest)

    def ahead(self, store: SeriesStore, series: NDArray[np.int64], cutoff: Ticks) -> Windows:
        """Windows that ask for the observed times within this reach after each cutoff."""
        moments = store.moments
        start = moments.search(series, cutoff)
        if self.seconds is not None:
            stop = moments.search(series, cutoff + store.source.clock.ticks(self.seconds))
        else:
            stop = np.minimum(start + (self.rows or 0), moments.indptr[series + 1])
        at, counts = spans(start, stop)
        queries = Ragged(moments.times[at], np.zeros(len(at)), np.concatenate([[0], np.cumsum(counts)]))
        return Windows.of(series, cutoff, queries)


def choose_cutoffs(
    store: SeriesStore, reach: Reach, step: Reach, n_windows: int | None, cutoffs: Any, span: Any
) -> list[Ticks]:
    """Cutoffs `[series]` of each fold, earliest first.

    Raises:
        ValueError: More than one way is used, or a number is out of range.
    """
    given = [n for n, v in (("n_windows", n_windows), ("cutoffs", cutoffs), ("span", span)) if v is not None]
    if len(given) > 1:
        raise ValueError(f"Choose cutoffs in one way, but {' and '.join(map(repr, given))} were given.")
    if cutoffs is not None:
        column = pd.Series(list(cutoffs) if np.ndim(cutoffs) else [cutoffs])
        ticks, clock = read_times(column, "cutoffs")
        moments = np.unique(store.source.clock.convert(ticks, clock, "cutoffs"))
        return [np.full(store.num_series, tick, store.end.dtype) for tick in moments]
    if n_windows is not None and (
        isinstance(n_windows, bool) or not isinstance(n_windows, (int, np.integer)) or n_windows < 1
    ):
        raise ValueError(f"`n_windows` must be an integer of at least 1, got {n_windows!r}.")
    found = [reach.back(store, store.last_target)]
    earliest = (
        None
        if span is None
        else store.last_target - store.source.clock.ticks(parse_duration(span, store.source.clock))
    )
    while earliest is not None or len(found) < (n_windows or 1):
        before = step.back(store, found[-1])
        if earliest is not None and not (before >= earliest).any():
            break
        found.append(before)
    return found[::-1]


def fix_roles(panel: Panel, schema: Schema) -> Panel:
    """Declare what was inferred, so that a shorter history is read in the same way."""
    names = {role: tuple(f.name for f in schema.having(role)) for role in (STATIC, PAST, FUTURE)}
    columns = replace(panel.source.columns, static=names[STATIC], past=names[PAST], future=names[FUTURE])
    ignored = {f.name for f in schema.having(IGNORED)}
    kept = {n: c for n, c in panel.rows.columns.items() if n not in ignored}
    return replace(
        panel, source=replace(panel.source, columns=columns), rows=replace(panel.rows, columns=kept)
    )


def rows_until(rows: Rows | None, cutoff: Ticks) -> Rows | None:
    """Rows at or before the cutoff of their series."""
    if rows is None:
        return None
    keep = rows.ticks <= cutoff[rows.series]
    columns = {n: c[keep].reset_index(drop=True) for n, c in rows.columns.items()}
    return Rows(rows.series[keep], rows.ticks[keep], columns)


def panel_until(panel: Panel, cutoff: Ticks) -> Panel:
    """A panel that knows nothing of targets and past covariates after the cutoff of each series."""
    rows, past = rows_until(panel.rows, cutoff), rows_until(panel.past, cutoff)
    if rows is None or not len(rows.ticks):
        begin = panel.source.clock.restore(panel.rows.ticks[[panel.rows.ticks.argmin()]]).iloc[0]
        raise ValueError(
            f"No observation precedes the first cutoff: column {panel.source.columns.time!r} begins at "
            f"{begin}. Use fewer windows, a shorter horizon, or later cutoffs."
        )
    return replace(panel, rows=rows, past=past)


@dataclass(frozen=True)
class CrossValidation:
    """One cross-validation of an estimator.

    Attributes:
        estimator: An unfitted estimator that learns from a panel: `learn(panel)`.
        names: Columns to answer.
        horizon: What each window looks ahead; None: what training does.
        refit: Whether to train anew for each cutoff.
    """

    estimator: Any
    names: Named
    horizon: Any
    refit: bool

    def run(self, panel: Panel, *, n_windows: int | None, step: Any, cutoffs: Any, span: Any) -> Any:
        """Train and forecast; see `Forecaster.cross_validation`."""
        schema, store = learn_schema(panel, duplicates=self.estimator.duplicates)
        panel = fix_roles(panel, schema)
        horizon = self.horizon if self.horizon is not None else self.estimator.horizon
        default = self.estimator.default_horizon(store, schema)
        reach = Reach.of(horizon, store, default)
        steps = reach if step is None else Reach.of(step, store, default)
        folds = choose_cutoffs(store, reach, steps, n_windows, cutoffs, span)
        parts: list[tuple[Queries, Ticks, Any, Any]] = []
        fitted, full = self._train(panel, folds[0])
        for number, cutoff in enumerate(folds):
            if self.refit and number > 0:
                fitted, full = self._train(panel, cutoff)
            parts.append(self._forecast(fitted, full, reach, cutoff))
        return self._frame(full, fitted, parts)

    def _train(self, panel: Panel, cutoff: Ticks) -> tuple[Any, SeriesStore]:
        """A model of what precedes the cutoff, and the whole history read by the same schema."""
        fitted = self.estimator.learn(panel_until(panel, cutoff))
        end = fitted.store.end[fitted.store.has_history]
        if (end > cutoff[fitted.store.has_history]).any():
            raise RuntimeError(
                "A training row is later than its cutoff. This is an error of ctsattn; please report it."
            )
        return fitted, build_store(panel, fitted.schema, duplicates=self.estimator.duplicates)

    def _forecast(
        self, fitted: Any, store: SeriesStore, reach: Reach, cutoff: Ticks
    ) -> tuple[Queries, Ticks, NDArray[np.float64], NDArray[np.float64]]:
        moments = store.moments
        every = np.arange(store.num_series)
        seen = np.flatnonzero(moments.search(every, cutoff) > moments.indptr[:-1])
        windows = reach.ahead(store, seen, cutoff[seen])
        found = predict_quantiles(
            fitted,
            store,
            seen_from(store, windows),
            grid_of(self.names),
            accelerator=self.estimator.accelerator,
        )
        owner = windows.queries.segment
        return (
            Queries(windows.series[owner], windows.times),
            windows.cutoff[owner],
            found.values,
            truths(store, windows),
        )

    def _frame(self, store: SeriesStore, fitted: Any, parts: list[Any]) -> Any:
        series = np.concatenate([queries.series for queries, *_ in parts])
        ticks = np.concatenate([queries.ticks for queries, *_ in parts])
        cutoff = np.concatenate([c for _, c, _, _ in parts])
        if not len(series):
            raise ValueError(
                f"No series has observations of {examples(store.source.columns.targets)} both before and "
                f"after a cutoff. Use fewer windows, or a shorter horizon."
            )
        order = np.lexsort((ticks, cutoff, series))
        values = np.concatenate([v for *_, v, _ in parts])[order]
        truth = np.concatenate([t for *_, t in parts])[order].reshape(-1)
        targets = target_names(fitted.schema)
        series, ticks, columns = long_rows(Queries(series[order], ticks[order]), targets)
        cutoff = np.repeat(cutoff[order], len(targets))
        there = np.isfinite(truth)
        columns = {"cutoff": store.source.clock.restore(cutoff[there]).reset_index(drop=True)} | {
            k: v[there].reset_index(drop=True) for k, v in columns.items()
        }
        flat = values.reshape(-1, values.shape[-1])[there]
        columns |= quantile_columns(flat, grid_of(self.names), self.names)
        columns[targets[0] if len(targets) == 1 else "y"] = truth[there]
        return store.source.frame(series[there], ticks[there], columns)
