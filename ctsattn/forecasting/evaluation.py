"""What a trained model is asked about itself: calibration, score, joint paths, pictures."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctsattn import metrics
from ctsattn.data.batch import TaskSpec
from ctsattn.data.errors import examples
from ctsattn.data.series import SeriesStore, spans
from ctsattn.data.windows import Windows, answer_windows
from ctsattn.forecasting.asking import Queries
from ctsattn.forecasting.calibration import GRID, Calibration, fit_calibration
from ctsattn.forecasting.fitting import seen_from, truths, windows_after
from ctsattn.forecasting.frames import MODEL, asked_quantiles, long_rows, quantile_columns, target_names
from ctsattn.forecasting.predicting import predict_quantiles
from ctsattn.forecasting.sampling import score_grid, to_values
from ctsattn.forecasting.state import Fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CUTOFFS = 32  # calibration cutoffs in a series
_MAX_WINDOWS = 4096  # calibration windows
_DECILES = tuple(q / 10 for q in range(1, 10))


def learn_calibration(
    fitted: Fitted, store: SeriesStore, levels: tuple[float, ...], accelerator: str
) -> Calibration:
    """Learn conformal corrections on cutoffs that training did not see.

    Args:
        fitted: The trained model; corrections it has are not used.
        store: Held-out data with its history.
        levels: Quantile levels to calibrate exactly, besides a fixed grid.
        accelerator: Where to run.

    Raises:
        ValueError: No observation is held out.
    """
    windows = calibration_windows(fitted, store)
    if not len(windows.times):
        raise ValueError(
            f"There is no held-out observation of {examples(store.source.columns.targets)} to "
            f"calibrate on: of series that were trained on, only cutoffs after the end of their training "
            f"data count. Pass later data, or series that are new."
        )
    grid = np.unique([*GRID, *levels])
    bare = Fitted(**{**fitted.__dict__, "calibration": None})
    found = predict_quantiles(bare, store, windows, grid, accelerator=accelerator)
    truth = truths(store, windows)
    there = np.isfinite(truth)
    elapsed = np.broadcast_to(found.elapsed[:, None], truth.shape)
    return fit_calibration(found.values[there], truth[there], grid, elapsed[there], found.scale[there])


def calibration_windows(fitted: Fitted, store: SeriesStore) -> Windows:
    """Windows at up to 32 cutoffs of each series, none before the end of its training data."""
    begin = _first_unseen(fitted, store)
    moments = store.moments
    end = moments.indptr[1:] - 1  # the last observation has nothing after it
    series = np.flatnonzero(begin < end)
    each = max(1, min(_CUTOFFS, _MAX_WINDOWS // max(1, len(series))))
    steps = np.linspace(0, 1, each, endpoint=False)
    at = begin[series, None] + np.floor((end - begin)[series, None] * steps).astype(np.int64)
    at = np.unique(at)
    windows = windows_after(store, fitted.spec, moments.owner(at), moments.times[at])
    return windows.take(np.flatnonzero(np.diff(windows.indptr) > 0))


def _first_unseen(fitted: Fitted, store: SeriesStore) -> NDArray[np.int64]:
    """Position in `moments` of the first cutoff of each series that training did not see.

    In a series that is new altogether it is the middle one: forecasts are made at the end of a history, and
    errors after a few observations are not exchangeable with those.
    """
    moments = store.moments
    begin = (moments.indptr[:-1] + moments.indptr[1:]) // 2
    if fitted.store is None:
        return begin
    place = fitted.store.source.positions(store.source.ids)
    seen = np.flatnonzero(np.asarray(place) >= 0)
    ends = store.source.clock.convert(fitted.store.end[place[seen]], fitted.store.source.clock)
    begin[seen] = np.maximum(moments.search(seen, ends) - 1, moments.indptr[seen])
    return begin


def last_horizon(store: SeriesStore, spec: TaskSpec) -> Windows:
    """One window for each series, seen from one horizon before its last observation."""
    every = np.flatnonzero(store.has_history)
    cutoff = store.last_target - store.source.clock.ticks(spec.horizon * spec.time_unit)
    windows = windows_after(store, spec, every, cutoff[every])
    moments = store.moments
    before = moments.search(every, cutoff[every]) > moments.indptr[every]
    return seen_from(store, windows.take(np.flatnonzero(before)))


def score(fitted: Fitted, store: SeriesStore, accelerator: str) -> float:
    """Minus the weighted quantile loss, over the deciles, on the last horizon of each series."""
    windows = last_horizon(store, fitted.spec)
    if not len(windows.times):
        raise ValueError(
            f"No series has observations of {examples(store.source.columns.targets)} both before and "
            f"within its last horizon: there is nothing to score. Give a longer history, or fit with a "
            f"shorter horizon."
        )
    names = asked_quantiles(None, _DECILES)
    grid = np.array(_DECILES)
    found = predict_quantiles(fitted, store, windows, grid, accelerator=accelerator)
    queries = Queries(windows.series[windows.queries.segment], windows.times)
    frame = truth_frame(fitted, store, queries, windows, quantile_columns_of(found.values, grid, names))
    scores = metrics.evaluate(
        frame, ["wql"], models=[MODEL], by=(), id_col="series", time_col="tick", target_col="truth"
    )
    return -float(scores[MODEL].iloc[0])


def quantile_columns_of(
    values: NDArray[np.float64], grid: NDArray[np.float64], names: list[tuple[str, float]]
) -> dict[str, NDArray[np.float64]]:
    """As `quantile_columns`, for `[rows, targets, levels]` laid out as `long_rows` does."""
    return quantile_columns(values.reshape(-1, values.shape[-1]), grid, names)


def truth_frame(
    fitted: Fitted, store: SeriesStore, queries: Queries, windows: Windows, columns: dict[str, Any]
) -> Any:
    """A plain frame of positions, ticks, forecasts and truth, for scores inside the library."""
    import pandas as pd

    series, ticks, variable = long_rows(queries, target_names(fitted.schema))
    truth = truths(store, windows).reshape(-1)
    return pd.DataFrame({"series": series, "tick": ticks, **variable, **columns, "truth": truth})


def sample_frame(
    fitted: Fitted, store: SeriesStore, queries: Queries, n: int, rng: np.random.Generator, accelerator: str
) -> Any:
    """Joint paths as a long frame: id, time, (variable,) sample, value."""
    windows = answer_windows(store, fitted.spec, queries.series, queries.ticks)
    _, levels = score_grid()
    found = predict_quantiles(fitted, store, windows, levels, accelerator=accelerator)
    paths = draw_paths(fitted, store, queries, found.values, n, rng)  # [n, rows, targets]
    series, ticks, columns = long_rows(queries, target_names(fitted.schema))
    order = np.arange(len(series)).repeat(n)
    columns = {k: v.take(order).reset_index(drop=True) for k, v in columns.items()}
    values = paths.reshape(n, -1).T.reshape(-1)
    columns |= {"sample": np.tile(np.arange(n), len(series)), MODEL: values}
    return store.source.frame(series[order], ticks[order], columns)


def draw_paths(
    fitted: Fitted,
    store: SeriesStore,
    queries: Queries,
    quantiles: NDArray[np.float64],
    n: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw `[n, rows, targets]` values, joint over the rows of each series and target."""
    times = elapsed_units(fitted, store, queries)
    paths = np.empty((n, *quantiles.shape[:2]))
    bounds = np.flatnonzero(np.diff(queries.series, prepend=-1, append=-1))
    for begin, end in pairwise(bounds):
        for target in range(quantiles.shape[1]):
            scores = fitted.correlation.draw(times[begin:end], n, rng)
            paths[:, begin:end, target] = to_values(scores, quantiles[begin:end, target])
    return paths


def elapsed_units(fitted: Fitted, store: SeriesStore, queries: Queries) -> NDArray[np.float64]:
    """Times of rows since the first row of their series, in model units."""
    if not len(queries):
        return np.zeros(0)
    head = np.searchsorted(queries.series, queries.series)
    return store.source.clock.seconds(queries.ticks - queries.ticks[head]) / fitted.spec.time_unit


def history_frame(store: SeriesStore, names: list[Any]) -> Any:
    """The stored observations as the caller's kind of frame, one column for each target."""
    moments = store.moments
    _, counts = spans(moments.indptr[:-1], moments.indptr[1:])
    series = np.repeat(np.arange(store.num_series), counts)
    windows = Windows.of(np.arange(store.num_series), store.end, moments)
    values = truths(store, windows)
    return store.source.frame(series, moments.times, {n: values[:, i] for i, n in enumerate(names)})


def plot(
    forecaster: Any,
    fitted: Fitted,
    forecast: Any,
    *,
    df: Any,
    truth: Any,
    ids: Any,
    max_series: int,
    title: str | None,
) -> Figure:
    """Draw a forecast, or a cross-validation when the frame has cutoffs, over its history."""
    from ctsattn import plotting

    names = target_names(fitted.schema)
    store = fitted.store
    source = store.source if store is not None else None
    if df is None and store is not None:
        df = history_frame(store, names)
    columns = forecaster._columns() if source is None else source.columns
    options = {
        "id_col": columns.id if columns.id is not None else "unique_id",
        "time_col": columns.time,
        "target_col": names[0] if len(names) == 1 else names,
        "ids": ids,
        "max_series": max_series,
        "title": title,
    }
    if "cutoff" in forecast.columns:
        return plotting.plot_cross_validation(forecast, df, **options)
    if df is None:
        raise ValueError("This model was saved without its data, so pass the history: plot(df=history, ...).")
    return plotting.plot_forecast(df, forecast, truth, **options)
