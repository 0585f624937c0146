"""From a store of series to a trained model: the split by time, the batches, the laws learned on top."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctsattn.data.batch import TaskSpec
from ctsattn.data.clock import Ticks
from ctsattn.data.errors import examples
from ctsattn.data.schema import DataWarning, Schema
from ctsattn.data.series import Ragged, SeriesStore, spans
from ctsattn.data.windows import TrainingWindows, Windows
from ctsattn.forecasting.digests import run_name
from ctsattn.forecasting.predicting import predict_quantiles
from ctsattn.forecasting.progress import ProgressLine
from ctsattn.forecasting.sampling import PathCorrelation, fit_correlation, score_grid, to_scores
from ctsattn.forecasting.state import Fitted
from ctsattn.forecasting.streams import HeldOut, WindowStream
from ctsattn.forecasting.training import Training, TrainingLog, TrainingWarning, own_randomness, train

_MIN_HELD_OUT = 8  # truths below which a validation loss says too little to stop on
_CUTOFFS = 8  # validation cutoffs in a series
_MAX_VALIDATION = 512  # validation windows
_WARM_UP_WINDOWS = 128  # windows in each batch from which the closed-form part is learned
_WARM_UP_TARGETS = 1024  # the same, times targets
_MAX_CORRELATION = 64  # windows from which the law of joint paths is learned


def windows_after(store: SeriesStore, spec: TaskSpec, series: NDArray[np.int64], cutoff: Ticks) -> Windows:
    """Windows that ask for every time within the horizon after a cutoff at which a target was observed."""
    moments = store.moments
    span = store.source.clock.ticks(spec.horizon * spec.time_unit)
    at, counts = spans(moments.search(series, cutoff), moments.search(series, cutoff + span))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Windows.of(series, cutoff, Ragged(moments.times[at], np.zeros(len(at)), indptr))


def seen_from(store: SeriesStore, windows: Windows) -> Windows:
    """Move cutoffs back to the last observation that they show, where training and `predict` stand too.

    A cutoff between two observations shows the same past, but elapsed time would count from another moment.
    """
    segments = store.segments(windows.series)
    place = store.past.search(segments, windows.cutoff[:, None]) - 1
    there = place >= store.past.indptr[segments]
    times = store.past.times[np.maximum(place, 0)]
    earliest = times.min(initial=windows.cutoff.min(initial=0))
    last = np.where(there, times, earliest).max(axis=1)
    return replace(windows, cutoff=np.where(there.any(axis=1), last, windows.cutoff))


def split_by_time(store: SeriesStore, spec: TaskSpec, share: float) -> tuple[Ticks, NDArray[np.bool_]]:
    """The moment in each series after which all is held out for validation.

    At most a horizon and at most `share` of the span of a series is held out; series too short to give up
    anything are not split.

    Returns:
        The last tick that training may see `[series]`, and which series are split.
    """
    clock, moments = store.source.clock, store.moments
    span = clock.seconds(store.end - store.first)
    held = np.minimum(spec.horizon * spec.time_unit, share * span)
    split = store.end - clock.ticks(held)
    every = np.arange(store.num_series)
    before = moments.search(every, split) - moments.indptr[:-1]
    after = moments.counts - before
    can = (before >= np.maximum(4, after)) & (after >= 1)
    return np.where(can, split, store.end), can


def validation_windows(store: SeriesStore, spec: TaskSpec, split: Ticks, can: NDArray[np.bool_]) -> Windows:
    """Windows whose truths all lie after the split: a few cutoffs in each series, at observations."""
    moments = store.moments
    series = np.flatnonzero(can)
    begin = moments.search(series, split[series]) - 1
    end = moments.indptr[series + 1] - 1
    steps = np.arange(max(1, min(_CUTOFFS, _MAX_VALIDATION // max(1, len(series)))))
    at = begin[:, None] + (end - begin)[:, None] * steps // len(steps)
    fresh = np.ones(at.shape, bool)
    fresh[:, 1:] = at[:, 1:] > at[:, :-1]
    owner = np.broadcast_to(series[:, None], at.shape)[fresh]
    windows = windows_after(store, spec, owner, moments.times[at[fresh]])
    asks = np.flatnonzero(np.diff(windows.indptr) > 0)
    if len(asks) > _MAX_VALIDATION:
        asks = asks[:: -(-len(asks) // _MAX_VALIDATION)]
    return windows.take(asks)


@dataclass(frozen=True)
class Split:
    """What training may see and what it is validated on."""

    store: SeriesStore
    held_out: SeriesStore | None
    windows: Windows | None


def make_split(store: SeriesStore, spec: TaskSpec, training: Training, val: SeriesStore | None) -> Split:
    """Split by time, or take the caller's validation data, or hold nothing out.

    Raises:
        ValueError: Nothing in the validation data follows the training data.
    """
    if val is not None:
        asked = windows_after(val, spec, np.arange(val.num_series), _ends_in(store, val))
        asks = np.flatnonzero(np.diff(asked.indptr) > 0)
        if not len(asks):
            raise ValueError(
                "`val` has no observation within the horizon after the end of its series in `df`, so there "
                "is nothing to stop on. Give observations that follow, or leave it out: fit(df) then holds "
                "out the end of each series."
            )
        return Split(store, val, asked.take(asks))
    if training.patience is None:
        return Split(store, None, None)
    split, can = split_by_time(store, spec, training.validation_share)
    windows = validation_windows(store, spec, split, can) if can.any() else None
    if windows is None or len(windows.times) < _MIN_HELD_OUT:
        return Split(store, None, None)
    earlier = store.until(split)
    if not TrainingWindows(earlier, spec).cutoffs().size:
        return Split(store, None, None)
    return Split(earlier, store, windows)


def _ends_in(store: SeriesStore, val: SeriesStore) -> Ticks:
    """Where each series of the validation data ends in the training data; its own start when it is new."""
    place = store.source.positions(val.source.ids)
    known = place >= 0
    ends = np.array(val.first)
    ends[known] = store.end[place[known]]
    return ends


def fit_network(
    network: torch.nn.Module,
    fitted: Fitted,
    store: SeriesStore,
    training: Training,
    *,
    seed: int,
    verbose: bool,
    val: SeriesStore | None = None,
    fresh: bool = True,
) -> Fitted:
    """Train the network of `fitted` on a store and learn the law of joint paths.

    Args:
        network: The network to train, in place.
        fitted: Schema, sizes and config.
        store: Observations.
        training: Options.
        seed: Of windows and of dropout.
        verbose: Whether to show a line of progress.
        val: History and later observations to stop on.
        fresh: Whether the network is new; then it may fit what has a solution of its own first.

    Returns:
        The state with the log, the law and the prior filled in.

    Raises:
        ValueError: Nothing can be trained on, or the very first loss is not finite.
    """
    fitted = replace(fitted, network=network, prior=prior_quantiles(store.sample()), store=store)
    split = make_split(store, fitted.spec, training, val)
    log = None
    if getattr(network, "trainable", True):
        _tell_of_short_series(split.store, fitted.spec)
        if fresh:
            _warm_up(network, fitted, split.store, training, seed)
        log = _train(network, fitted, split, training, seed, verbose)
        _tell_of_bad_loss(log, store)
    network.eval()
    fitted = replace(fitted, log=log)
    return replace(fitted, correlation=learn_correlation(fitted, split))


def _warm_up(
    network: torch.nn.Module, fitted: Fitted, store: SeriesStore, training: Training, seed: int
) -> None:
    """Let a network that can do so fit its closed-form part on a few windows."""
    warm_up: Any = getattr(network, "warm_up", None)
    windows = TrainingWindows(store, fitted.spec, impute=training.impute_share)
    if warm_up is None or not windows.cutoffs().size:
        return
    count = max(8, min(_WARM_UP_WINDOWS, _WARM_UP_TARGETS // fitted.spec.num_targets))
    rng = np.random.default_rng([seed, 1])
    drawn = [windows.draw(count, rng) for _ in range(-(-training.start_windows // _WARM_UP_WINDOWS))]
    with own_randomness(seed):
        warm_up([fitted.collator(store, some, truth=True) for some in drawn])


def _train(
    network: torch.nn.Module, fitted: Fitted, split: Split, training: Training, seed: int, verbose: bool
) -> TrainingLog:
    windows = TrainingWindows(split.store, fitted.spec, impute=training.impute_share)
    stream = WindowStream(windows, fitted.collator, training.batch_size, seed)
    held_out = None
    if split.held_out is not None and split.windows is not None:
        held_out = HeldOut(split.held_out, split.windows, fitted.collator, 2 * training.batch_size)
    progress = ProgressLine() if verbose else None
    name = ""
    if training.checkpoint_dir is not None:
        name = run_name(network, fitted, (split.store, split.held_out), training, seed)
    return train(network, stream, held_out, training, seed=seed, progress=progress, name=name)


def _tell_of_short_series(store: SeriesStore, spec: TaskSpec) -> None:
    windows = TrainingWindows(store, spec)
    trained = windows.counts > 0
    if trained.any() and not trained.all():
        ids = store.source.ids.take(np.flatnonzero(~trained))
        warnings.warn(
            f"{len(ids)} of {store.num_series} series take no part in training because no observation "
            f"follows another within the horizon, for example {examples(ids)}; they can be predicted all "
            f"the same.",
            DataWarning,
            stacklevel=4,
        )


def _tell_of_bad_loss(log: TrainingLog, store: SeriesStore) -> None:
    if not log.bad_series:
        return
    ids = store.source.ids.take(np.array(log.bad_series))
    text = (
        f"The training loss was not finite after {log.steps} good steps, in a batch of the series "
        f"{examples(ids, 10)}. Lower the learning rate, set_params(training__learning_rate=...), or look at "
        f"the values of these series."
    )
    if log.steps == 0:
        raise ValueError(text)
    warnings.warn(f"{text} The last good weights were restored.", TrainingWarning, stacklevel=4)


def prior_quantiles(store: SeriesStore) -> NDArray[np.float64]:
    """Quantiles `[targets, grid]` of all training values of each target, every series with equal weight."""
    _, levels = score_grid()
    channel = store.past.segment % store.num_channels
    weight = 1.0 / store.past.counts[store.past.segment]
    rows = []
    for target in range(store.num_targets):
        values, weights = store.past.values[channel == target], weight[channel == target]
        if not len(values):
            rows.append(np.zeros(len(levels)))
            continue
        order = np.argsort(values)
        share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
        rows.append(np.interp(levels, share, values[order]))
    return np.stack(rows)


def learn_correlation(fitted: Fitted, split: Split) -> PathCorrelation:
    """Learn how errors at different elapsed times hang together, on held-out windows where there are any."""
    spec = fitted.spec
    store, windows = split.held_out, split.windows
    default = PathCorrelation(decay=spec.horizon / 3)
    if store is None or windows is None:
        store, every = split.store, TrainingWindows(split.store, spec)
        windows = every.every(every.cutoffs()[_evenly(len(every.cutoffs()))])
    else:
        windows = windows.take(_evenly(len(windows)))
    if not len(windows):
        return default
    _, levels = score_grid()
    found = predict_quantiles(fitted, store, windows, levels, accelerator="cpu")
    truth = truths(store, windows)
    number = windows.queries.segment
    parts: list[Any] = [[], [], []]
    for target in range(spec.num_targets):
        there = np.isfinite(truth[:, target])
        parts[0].append(to_scores(truth[there, target], found.values[there, target]))
        parts[1].append(found.elapsed[there])
        parts[2].append(number[there] + target * len(windows))
    scores, times, which = (np.concatenate(part) for part in parts)
    return fit_correlation(scores, times, which, default.decay)


def _evenly(count: int) -> NDArray[np.int64]:
    """Some positions among `count`, the same distance apart."""
    some = np.linspace(0, count - 1, _MAX_CORRELATION).astype(np.int64)
    return np.unique(some) if count else np.zeros(0, np.int64)


def truths(store: SeriesStore, windows: Windows) -> NDArray[np.float64]:
    """True values `[queries, targets]` at the asked times, NaN where a target was not observed."""
    owner = windows.series[windows.queries.segment]
    segments = store.segments(owner)[:, : store.num_targets]
    place = store.past.search(segments, windows.times[:, None], after=False)
    at = np.minimum(place, max(len(store.past) - 1, 0))
    there = (place < store.past.indptr[segments + 1]) & (store.past.times[at] == windows.times[:, None])
    return np.where(there, store.past.values[at], np.nan)


def new_network(config: Any, schema: Schema, spec: TaskSpec, seed: int) -> Fitted:
    """Build a network with its own random start; the caller's generators stay as they were."""
    with own_randomness(seed):
        network = config.build(spec)
    return Fitted(config, schema, spec, network, prior=np.zeros((spec.num_targets, len(score_grid()[0]))))
