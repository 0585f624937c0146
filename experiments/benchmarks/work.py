"""Doing one run: build, train, evaluate, and return its rows."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from ctsattn import datasets
from ctsattn.data.batch import Batch
from ctsattn.datasets.protocols import Errors
from ctsattn.forecasting.training import Training, TrainingLog, own_randomness, train
from ctsattn.models.joining import only_observed
from experiments.benchmarks import rows
from experiments.benchmarks.order import EVALUATED
from experiments.benchmarks.plan import Run
from experiments.benchmarks.records import record_task
from experiments.benchmarks.scores import competition_scores
from experiments.benchmarks.tasks import Rounds, Task, row_task

_WARM_UP_VALUES = 2**27  # of windows from which the closed-form part is learned, each window once
_WARM_UP_WINDOWS = 1024  # channels' windows in each batch of them
_WARM_UP_RECORDS = (14, 512)  # batches, and records in each; of most channels a record says little
_WARM_UP_SEED = 2**16  # apart from the seeds of training
_ON_GPU = 4  # times as many rows evaluated at once
_MEMBER_SEED = 1000  # from one member of a run to the next
_QUANTILES = tuple(np.round(np.arange(0.1, 0.91, 0.1), 1))


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        scores: Part and metric to value.
        fit_seconds: Training, validation rounds included.
        predict_seconds: Forecasts of the test part.
        params: Trained parameters.
        steps: Optimiser steps taken.
    """

    scores: dict[tuple[str, str], float]
    fit_seconds: float
    predict_seconds: float
    params: int
    steps: int


def do(run: Run, ledger: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Do a run.

    Args:
        run: What to do.
        ledger: Path of the ledger as `path`, to note the run in before its test part is touched.

    Returns:
        Its rows, one for each part and metric.
    """
    commit = rows.commit()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if ledger is not None:
        entry = {"config_hash": run.hash, "config": run.as_json(), "commit": commit, "time": time.time()}
        rows.ledger(ledger["path"], entry)
    outcome = {"rows": _tabular, "records": _tabular, "series": _series}[run.kind](run)
    common = {
        **{key: getattr(run, key) for key in ("data", "model", "mixer", "lookback", "horizon")},
        **{"condition": run.condition, "seed": run.seed},
        "fit_seconds": round(outcome.fit_seconds, 3),
        "predict_seconds": round(outcome.predict_seconds, 3),
        "peak_mib": round(peak_mib(), 1),
        "params": outcome.params,
        "steps": outcome.steps,
        "config_hash": run.hash,
        "commit": commit,
        "versions": rows.versions("torch", "numpy", "pandas", "lightning"),
        "device": rows.device_name(),
        "config": run.as_json(),
    }
    return [
        {**common, "split": part, "metric": metric, "value": repr(float(value))}
        for (part, metric), value in outcome.scores.items()
    ]


def peak_mib() -> float:
    """Largest memory of this process: of the GPU where there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_task(run: Run) -> Task:
    """The task of a run."""
    scaler = run.config().scaler
    if run.kind == "records":
        return record_task(run.data, scaler=scaler, **run.load)
    return row_task(
        run.data,
        run.lookback,
        run.horizon,
        scaler=scaler,
        condition=run.condition,
        seed=run.seed,
        joint=run.joint,
        most=run.windows,
    )


def _tabular(run: Run) -> Outcome:
    """Train on a task's windows and evaluate each window of validation and test once."""
    task = make_task(run)
    started = time.perf_counter()
    trained = [_trained(replace(run, seed=member_seed(run.seed, i)), task) for i in range(run.members)]
    log = trained[0][1]
    network = trained[0][0] if run.members == 1 else Members([network for network, _ in trained])
    fitted = time.perf_counter()
    scores = _scores("val", evaluate(network, task, "val", run.point), run)
    validated = time.perf_counter()
    if run.test:
        scores |= _scores("test", evaluate(network, task, "test", run.point), run)
    predicted = time.perf_counter() - validated
    params = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return Outcome(scores, fitted - started if log else 0.0, predicted, params, log.steps if log else 0)


def member_seed(seed: int, member: int) -> int:
    """The seed of a member of a run; the first has the run's own."""
    return seed + _MEMBER_SEED * member


def _trained(run: Run, task: Task) -> tuple[nn.Module, TrainingLog | None]:
    """A network for a task, trained where it can be."""
    training = Training(**run.training)
    training.check()
    with own_randomness(run.seed):
        network = run.config().build(task.spec)
    if not getattr(network, "trainable", True):
        return network, None
    fit_closed_form(network, task, run)
    held = Rounds(task, EVALUATED) if training.patience is not None else None
    batches = Stream(task, training.batch_size, run.seed)
    return network, train(network, batches, held, training, seed=run.seed)


class Members(nn.Module):
    """Networks whose mean forecasts are averaged; it returns the forecasts and is its own head."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    @property
    def head(self) -> Members:
        """Reads what `forward` returns."""
        return self

    def forward(self, batch: Batch) -> torch.Tensor:
        """Mean forecast `[batch, targets, queries]`."""
        said = [_mean_of(network, batch) for network in self.networks]
        return torch.stack(said).mean(dim=0)

    def mean(self, params: torch.Tensor) -> torch.Tensor:
        """The forecast itself."""
        return params


def _mean_of(network: Any, batch: Batch) -> torch.Tensor:
    """Mean forecast `[batch, targets, queries]` of a network, in scaled units."""
    return network.head.mean(network(batch))


def _device() -> torch.device:
    """Where networks are fitted and asked."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fit_closed_form(network: nn.Module, task: Task, run: Run) -> None:
    """The closed-form start of a network that has one, from a random draw of the training windows."""
    shape = _WARM_UP_RECORDS if run.kind == "records" else _warm_up_shape(task, run)
    _warm_up(network, task, run.seed, *shape)


def _warm_up_shape(task: Task, run: Run) -> tuple[int, int]:
    """Batches and windows in each of a start from all training windows, or as many as memory has room for."""
    targets = task.spec.num_targets
    size = max(8, _WARM_UP_WINDOWS // targets)
    most = _WARM_UP_VALUES // (size * targets * (run.lookback + 2 * run.horizon))
    epoch = sum(1 for _ in task.chunks("train", size))
    return max(1, min(epoch, most, run.start or epoch)), size


def _warm_up(network: nn.Module, task: Task, seed: int, count: int, size: int) -> None:
    """The closed-form start that `Forecaster.fit` gives a network which has one."""
    warm_up: Any = getattr(network, "warm_up", None)
    if warm_up is not None:
        drawn = islice(task.training(size, seed + _WARM_UP_SEED), count)
        device = _device()
        network.to(device)
        with own_randomness(seed):
            warm_up(batch.to(device) for batch in drawn)


@dataclass(frozen=True)
class Stream:
    """Training batches of a task, to be iterated anew."""

    task: Task
    batch_size: int
    seed: int

    def __iter__(self) -> Any:
        return self.task.training(self.batch_size, self.seed)


def _scores(part: str, errors: Errors, run: Run) -> dict[tuple[str, str], float]:
    """MSE and MAE as the protocol of the set averages them."""
    found = errors.by_variable() if run.kind == "records" else errors.pooled()
    return {(part, metric): value for metric, value in found.items()}


def evaluate(network: nn.Module, task: Task, part: str, point: str = "mean") -> Errors:
    """Errors of a network over all windows of a part; they do not depend on how windows are batched."""
    device = _device()
    network = network.to(device).eval()
    size = max(1, EVALUATED * (_ON_GPU if device.type == "cuda" else 1) // task.spec.num_targets)
    errors = Errors()
    with torch.inference_mode(), only_observed(network):
        for chosen in task.chunks(part, size):
            batch = task.batch(part, chosen)
            forecast = batch.unscale(_point(network, batch.to(device), point))
            truth = batch.unscale(batch.future_values.numpy())
            seen = (batch.future_observed & batch.future_mask[:, None]).numpy()
            errors.add(*(array.swapaxes(1, 2) for array in (forecast, truth, seen)))
    network.to("cpu")
    return errors


def _point(network: Any, batch: Batch, point: str) -> np.ndarray:
    """Point forecasts `[batch, targets, queries]` in scaled units."""
    params = network(batch)
    if point == "mean":
        return network.head.mean(params).float().cpu().numpy()
    levels = torch.full((1,), 0.5, device=params.device)
    return network.head.quantiles(params, levels)[..., 0].float().cpu().numpy()


def _series(run: Run) -> Outcome:
    """Fit on frames and forecast the end of every series, as a user would."""
    from ctsattn import Forecaster

    card = datasets.card(run.data)
    frame = datasets.load(run.data, **run.load)
    labels = card.split.labels(frame)
    part = "test" if run.test else "val"
    history = frame[np.isin(labels, ("train", "val") if run.test else ("train",))]
    truth = frame[labels == part]
    horizon = run.horizon or _span(truth)
    forecaster = Forecaster(
        horizon=horizon,
        lookback=run.lookback or None,
        model=run.config(),
        training=Training(**run.training),
        quantiles=_QUANTILES,
        target_col="y",
        random_state=run.seed,
        verbose=False,
    )
    keys = ["unique_id", "ds"]
    started = time.perf_counter()
    forecaster.fit(history[[*keys, "y"]])
    fitted = time.perf_counter()
    answer = forecaster.predict(future_df=truth[keys].reset_index(drop=True))
    predicted = time.perf_counter()
    scored = truth[[*keys, "y"]].merge(answer, on=keys, how="left", validate="one_to_one")
    log = forecaster.training_log_
    network = forecaster.fitted_.network
    return Outcome(
        {(part, name): value for name, value in competition_scores(scored, history, card, "ctsattn").items()},
        fitted - started,
        predicted - fitted,
        sum(p.numel() for p in network.parameters() if p.requires_grad),
        log.steps if log is not None else 0,
    )


def _span(truth: pd.DataFrame) -> Any:
    """Longest time that a series is asked for."""
    by_series = truth.groupby("unique_id", observed=True)["ds"]
    longest = (by_series.max() - by_series.min()).max()
    return longest if isinstance(longest, pd.Timedelta) else float(longest)
