"""Choose settings of a closed form by stretches of the training and validation rows, never by the test part.

    python -m experiments.benchmarks.blocked --jobs 24     # configs/blocked.toml
    python -m experiments.benchmarks.blocked --before      # the same, from the windows before a stretch alone
    python -m experiments.benchmarks.blocked --choose      # what the rule of choice.py takes, into the README

The origins of windows before the test part are cut into eight stretches of equal length. Each is forecast by
the model that was fitted to the others, but for the windows whose future meets that of the stretch, and
gives a row for each horizon; models are fitted to the longest, and the error at a shorter one is that of its
steps. So every season is forecast once, where the validation part alone is one season.

A setting that knows where values usually are is told that from both sides of a stretch, which the test part
is not. With `--before` the later stretches are also forecast by what was fitted to those before alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from itertools import pairwise
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ctsattn.datasets.protocols import RowWindows
from ctsattn.forecasting.training import Training, own_randomness, train
from experiments.benchmarks import rows
from experiments.benchmarks.choice import read, report, rivals
from experiments.benchmarks.plan import Run, read_plan
from experiments.benchmarks.report import write
from experiments.benchmarks.tasks import RowTask, row_task
from experiments.benchmarks.work import Stream, peak_mib

PLAN = Path(__file__).parent / "configs" / "blocked.toml"
RESULTS = rows.RESULTS / "search" / "blocked.csv"
BLOCKS = 8
FIRST_BEFORE = 3  # the first stretch, counted from 0, that has enough before it
HORIZONS = {60: (24, 36, 48, 60), 720: (96, 192, 336, 720)}
# rows between windows, else 1; coprime to the day, so that all of its times come
STRIDES = {"etth1": 5, "etth2": 5, "ettm1": 11, "ettm2": 11, "weather": 17, "exchange": 5}
LONGEST = {"ili": 208, "exchange": 336}  # rows before the first stretch; else 1440
_TOGETHER = 2**22  # values of windows that are taken at once
_NO_ROWS = pd.DataFrame(columns=list(rows.COLUMNS))
_FIRST = 32  # windows from which mixture and spread are found


def stretches(task: RowTask, longest: int) -> list[tuple[int, int]]:
    """First and last-but-one origin of each stretch, the same for all look-backs up to the longest."""
    end = int(task.windows["val"].origins[-1]) + 1
    edges = np.linspace(longest, end, BLOCKS + 1).astype(int).tolist()
    return list(pairwise(edges))


def left_out(task: RowTask, stretch: tuple[int, int], stride: int, *, before: bool = False) -> RowTask:
    """The task with a stretch as its validation part, and all that is apart from it as its training part.

    With `before` the training part is what precedes the stretch.
    """
    cut = task.windows["val"]
    every = np.arange(cut.lookback, int(cut.origins[-1]) + 1, stride)
    first, end = stretch
    apart = every <= first - cut.horizon
    if not before:
        apart |= every >= end - 1 + cut.horizon
    inside = (every >= first) & (every < end)
    parts = {
        name: RowWindows(cut.table, every[chosen], cut.lookback, cut.horizon)
        for name, chosen in (("train", apart), ("val", inside))
    }
    return replace(task, windows=parts)


def _place() -> torch.device:
    """Where networks are fitted and asked."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fit(network: Any, task: RowTask, seed: int) -> None:
    """The closed-form start of a network from all training windows, in random order.

    Mixture and spread are read off the first batch, which is small: here only the point forecast counts.
    """
    cut = task.windows["train"]
    order = np.random.default_rng(seed).permutation(len(cut))
    size = max(1, _TOGETHER // (task.channels * (cut.lookback + cut.horizon)))
    cuts = [_FIRST, *range(_FIRST + size, len(order), size)]
    place = _place()
    with own_randomness(seed):
        parts = (task.batch("train", part) for part in np.split(order, cuts) if len(part))
        network.to(place).warm_up(part.to(place) for part in parts)


def errors(network: Any, task: RowTask) -> np.ndarray:
    """Mean squared error `[steps]` over the windows and channels of the validation part."""
    cut = task.windows["val"]
    size = max(1, _TOGETHER // (task.channels * (cut.lookback + cut.horizon)))
    sums, place = np.zeros(cut.horizon), _place()
    with torch.inference_mode():
        for chosen in task.chunks("val", size):
            batch = task.batch("val", chosen)
            said = network.head.mean(network(batch.to(place))).cpu()
            miss = batch.unscale(said.numpy()) - batch.unscale(batch.future_values.numpy())
            sums += np.square(miss).sum(axis=(0, 1))
    return sums / (len(cut) * task.channels)


@cache
def windows_of(data: str, lookback: int, horizon: int, scaler: str) -> RowTask:
    """The windows of a set, for all settings that see the same."""
    return row_task(data, lookback, horizon, scaler=scaler, joint=True)


def do(run: Run, number: int, *, before: bool = False) -> list[dict[str, Any]]:
    """Fit to all stretches but one, or to those before, and forecast it; a row for each horizon."""
    torch.set_num_threads(1)
    whole = windows_of(run.data, run.lookback, run.horizon, run.config().scaler)
    chosen = stretches(whole, LONGEST.get(run.data, 1440))[number]
    task = left_out(whole, chosen, STRIDES.get(run.data, 1), before=before)
    with own_randomness(run.seed):
        network = run.config().build(task.spec)
    started = time.perf_counter()
    fit(network, task, run.seed)
    training = Training(**run.training)
    if run.model != "linear":
        train(network, Stream(task, training.batch_size, run.seed), None, training, seed=run.seed)
        network.to(_place())
    seconds = round(time.perf_counter() - started, 3)
    by_step = errors(network.eval(), task)
    values = {horizon: float(by_step[:horizon].mean()) for horizon in HORIZONS[run.horizon]}
    return [
        _stamp(run, condition(number, before), seconds) | {"horizon": horizon, "value": repr(value)}
        for horizon, value in values.items()
    ]


def condition(number: int, before: bool) -> str:
    """How rows name a stretch, and what it was forecast from."""
    return f"stretch {number + 1} of {BLOCKS}" + (", from before" if before else "")


def _stamp(run: Run, stretch: str, seconds: float) -> dict[str, Any]:
    """What rows of a run and stretch share."""
    return {
        **{key: getattr(run, key) for key in ("data", "model", "mixer", "lookback", "seed")},
        **{"condition": stretch, "split": "stretch", "metric": "mse"},
        **{"fit_seconds": seconds, "peak_mib": round(peak_mib(), 1), "config_hash": run.hash},
        **{"commit": rows.commit(), "device": rows.device_name(), "config": run.as_json()},
        "versions": rows.versions("torch", "numpy", "pandas", "lightning"),
    }


def left(plan: Sequence[Run], *paths: Path, before: bool = False) -> list[tuple[Run, int]]:
    """Runs and stretches that have no rows; with `before` of the later stretches alone."""
    known = pd.concat([pd.read_csv(path) for path in paths if path.exists()] or [_NO_ROWS])
    done = set(zip(known["config_hash"], known["condition"], strict=True))
    every = [(run, number) for run in plan for number in range(FIRST_BEFORE if before else 0, BLOCKS)]
    return [(run, number) for run, number in every if (run.hash, condition(number, before)) not in done]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--data", nargs="+", help="only these sets")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--before", action="store_true", help="fit to the windows before a stretch alone")
    parser.add_argument("--choose", action="store_true", help="write into the README what the rule chooses")
    options = parser.parse_args(arguments)
    if options.choose:
        write(Path(__file__).with_name("README.md"), report(read(options.results)), "stretches")
        return 0
    plan = [run for run in read_plan([options.plan]) if not options.data or run.data in options.data]
    if options.before:
        others = rivals(options.results)
        plan = [run for run in plan if run.config().by_level or run in others]
    _run_all(left(plan, options.results, before=options.before), options)
    return 0


def _run_all(jobs: list[tuple[Run, int]], options: argparse.Namespace) -> None:
    """Do what is left, each run and stretch in a process of the pool, until the time is over."""
    pool = ProcessPoolExecutor(options.jobs, get_context("fork"))
    waiting = [pool.submit(do, *job, before=options.before) for job in jobs]
    try:
        for number, job in enumerate(as_completed(waiting, options.seconds)):
            rows.append(options.results, job.result())
            sys.stderr.write(f"{number + 1} of {len(jobs)}\n")
    except TimeoutError:
        sys.stderr.write("the time is over\n")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.terminate()


if __name__ == "__main__":
    raise SystemExit(main())
