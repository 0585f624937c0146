"""Choose settings of a closed form by stretches of the training and validation rows, never by the test part.

    python -m experiments.benchmarks.blocked --jobs 24     # configs/blocked.toml
    python -m experiments.benchmarks.blocked --choose      # what the rule chooses, into the README

The origins of windows before the test part are cut into eight stretches of equal length. Each is forecast by
the model that was fitted to the others, but for the windows whose future meets that of the stretch, and
gives a row for each horizon; models are fitted to the longest, and the error at a shorter one is that of its
steps. So every season is forecast once, where the validation part alone is one season.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ctsattn.datasets.protocols import RowWindows
from ctsattn.forecasting.training import own_randomness
from experiments.benchmarks import rows
from experiments.benchmarks.plan import Run, read_plan
from experiments.benchmarks.report import write
from experiments.benchmarks.tasks import RowTask, row_task
from experiments.benchmarks.work import peak_mib

PLAN = Path(__file__).parent / "configs" / "blocked.toml"
RESULTS = rows.RESULTS / "search" / "blocked.csv"
BLOCKS = 8
HORIZONS = {60: (24, 36, 48, 60), 720: (96, 192, 336, 720)}
# rows between windows, else 1; coprime to the day, so that all of its times come
STRIDES = {"etth1": 5, "etth2": 5, "ettm1": 11, "ettm2": 11, "weather": 17, "exchange": 5}
LONGEST = {"ili": 208, "exchange": 336}  # rows before the first stretch; else 1440
_TOGETHER = 2**22  # values of windows that are taken at once
_ANCHORS = {"last": "the last value", "mean": "the mean", "seasonal_mean_0": "the mean by phase"}
_FIRST = 32  # windows from which mixture and spread are found


def stretches(task: RowTask, longest: int) -> list[tuple[int, int]]:
    """First and last-but-one origin of each stretch, the same for all look-backs up to the longest."""
    end = int(task.windows["val"].origins[-1]) + 1
    edges = np.linspace(longest, end, BLOCKS + 1).astype(int).tolist()
    return list(pairwise(edges))


def left_out(task: RowTask, stretch: tuple[int, int], stride: int) -> RowTask:
    """The task with a stretch as its validation part, and all that is apart from it as its training part."""
    cut = task.windows["val"]
    every = np.arange(cut.lookback, int(cut.origins[-1]) + 1, stride)
    first, end = stretch
    apart = (every <= first - cut.horizon) | (every >= end - 1 + cut.horizon)
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
    sums, place = torch.zeros(cut.horizon, dtype=torch.float64), _place()
    with torch.inference_mode():
        for chosen in task.chunks("val", size):
            batch = task.batch("val", chosen)
            said = network.head.mean(network(batch.to(place))).cpu().double()
            miss = said - batch.future_values.double()
            sums += (miss * batch.scale[..., None]).square().sum(dim=(0, 1))
    return sums.numpy() / (len(cut) * task.channels)


@cache
def windows_of(data: str, lookback: int, horizon: int) -> RowTask:
    """The windows of a set, for all settings that see the same."""
    return row_task(data, lookback, horizon, scaler="none", joint=True)


def do(run: Run, number: int) -> list[dict[str, Any]]:
    """Fit to all stretches but one and forecast it; a row for each horizon."""
    torch.set_num_threads(1)
    whole = replace(windows_of(run.data, run.lookback, run.horizon), scaler=run.config().scaler)
    chosen = stretches(whole, LONGEST.get(run.data, 1440))[number]
    task = left_out(whole, chosen, STRIDES.get(run.data, 1))
    with own_randomness(run.seed):
        network = run.config().build(task.spec)
    started = time.perf_counter()
    fit(network, task, run.seed)
    seconds = round(time.perf_counter() - started, 3)
    by_step = errors(network.eval(), task)
    values = {horizon: float(by_step[:horizon].mean()) for horizon in HORIZONS[run.horizon]}
    return [
        _stamp(run, number, seconds) | {"horizon": horizon, "value": repr(value)}
        for horizon, value in values.items()
    ]


def _stamp(run: Run, number: int, seconds: float) -> dict[str, Any]:
    """What rows of a run and stretch share."""
    return {
        **{key: getattr(run, key) for key in ("data", "model", "mixer", "lookback", "seed")},
        **{"condition": f"stretch {number + 1} of {BLOCKS}", "split": "stretch", "metric": "mse"},
        **{"fit_seconds": seconds, "peak_mib": round(peak_mib(), 1), "config_hash": run.hash},
        **{"commit": rows.commit(), "device": rows.device_name(), "config": run.as_json()},
        "versions": rows.versions("torch", "numpy", "pandas", "lightning"),
    }


def scores(table: pd.DataFrame) -> pd.DataFrame:
    """Logarithm of the mean over horizons of the MSE: rows are data sets and settings, columns stretches."""
    means = table.pivot_table("value", ["data", "config", "condition"], "horizon").mean(axis=1)
    return np.log(means).unstack("condition").dropna()


def choose(found: pd.DataFrame, weights: Sequence[float]) -> tuple[int, pd.DataFrame]:
    """The rule, for one data set: the fewest weights within a standard error of the least mean log error.

    Args:
        found: `[settings, stretches]` log errors.
        weights: How many weights each setting fits.

    Returns:
        Place of the chosen setting; and for each its mean log error less the least, the standard error of
        that difference over the stretches, and its weights.
    """
    best = found.iloc[int(found.mean(axis=1).to_numpy().argmin())]
    less = found - best
    table = pd.DataFrame({"more": less.mean(axis=1), "error": less.sem(axis=1), "weights": list(weights)})
    within = (table["more"] <= table["error"]).to_numpy() | (table["more"] == 0).to_numpy()
    order = np.lexsort((table["more"], table["weights"], ~within))
    return int(order[0]), table


def fitted_weights(run: Run) -> int:
    """Weights that the closed form of a `Linear` fits, for the longest horizon."""
    config, own = run.config(), min(run.lookback, 384)
    channels = {"exchange": 8, "weather": 21}.get(run.data, 7)
    more = own * (8 * config.by_phase + channels * config.by_target)
    return run.horizon * (run.lookback + more)


@dataclass(frozen=True)
class Found:
    """What the rows say of one data set.

    Attributes:
        data: Its name.
        runs: The settings.
        logs: `[settings, stretches]` logarithms of the MSE, its mean over the horizons.
        chosen: Place of the setting that the rule takes.
        table: As `choose` returns it.
    """

    data: str
    runs: list[Run]
    logs: np.ndarray
    chosen: int
    table: pd.DataFrame


def read(path: Path = RESULTS) -> list[Found]:
    """What the rows say of each data set, in the order of their names."""
    logs, found = scores(pd.read_csv(path)), []
    for data in logs.index.unique("data"):
        runs = [Run(**json.loads(config)) for config in logs.loc[data].index]
        chosen, table = choose(logs.loc[data], [fitted_weights(run) for run in runs])
        found.append(Found(data, runs, logs.loc[data].to_numpy(), chosen, table))
    return found


def report(found: Sequence[Found]) -> str:
    """Markdown: what is chosen for each data set, and what each change of the plain setting gives."""
    lines = ["| data | chosen | MSE | settings within its standard error |", "| --- | --- | ---: | ---: |"]
    for one in found:
        close = int((one.table["more"] <= one.table["error"]).sum())
        mse = np.exp(one.logs[one.chosen].mean())
        lines.append(
            f"| {one.data} | {words(one.runs[one.chosen])} | {mse:.3f} | {close} of {len(one.runs)} |"
        )
    changes = {one.data: _changes(one) for one in found}
    names = sorted({name for some in changes.values() for name in some}, key=_order)
    lines += ["", f"| change | {' | '.join(changes)} |", f"| --- |{' ---: |' * len(changes)}"]
    lines += [f"| {n} | {' | '.join(some.get(n, '') for some in changes.values())} |" for n in names]
    return "\n".join(lines)


def _changes(one: Found) -> dict[str, str]:
    """In per cent of the MSE, with its standard error, what one change of the plain setting gives.

    Plain is one kernel over the chosen look-back, from the mean of windows that are scaled.
    """
    plain = {"from": "the mean", "scaled": True, "averaged": False, "by phase": False, "by target": False}
    plain = {"look-back": one.runs[one.chosen].lookback, **plain}
    known = [_parts(run) for run in one.runs]
    base, cells = one.logs[known.index(plain)], {}
    for parts, logs in zip(known, one.logs, strict=True):
        differ = [key for key in plain if plain[key] != parts[key]]
        if len(differ) == 1 or differ == ["by phase", "by target"]:
            less = 100 * (logs - base)
            name = " and ".join(_named(key, parts[key]) for key in differ)
            cells[name] = f"{less.mean():+.1f} ± {less.std(ddof=1) / np.sqrt(len(less)):.1f}"
    return cells


def _parts(run: Run) -> dict[str, Any]:
    """What may differ between settings."""
    config = run.config()
    return {
        "look-back": run.lookback,
        "from": _ANCHORS.get(config.anchors[0], config.anchors[0]) if config.anchors else "all anchors",
        "scaled": config.scaler != "none",
        "averaged": config.average_lookbacks,
        "by phase": config.by_phase,
        "by target": config.by_target,
    }


def _named(key: str, value: Any) -> str:
    """A change in words."""
    if key in ("look-back", "from"):
        return f"{key} {value}"
    other = {"scaled": "windows in their own units", "averaged": "kernels averaged over look-backs"}
    return other.get(key, key)


def _order(name: str) -> tuple[bool, int, str]:
    """Look-backs last and by their length."""
    is_lookback = name.startswith("look-back")
    return is_lookback, int(name.split()[-1]) if is_lookback else 0, name


def words(run: Run) -> str:
    """A setting in a few words."""
    parts = _parts(run)
    named = [f"look-back {parts['look-back']}", f"from {parts['from']}"]
    named += [] if parts["scaled"] else ["in its own units"]
    named += ["averaged over look-backs"] * parts["averaged"]
    return ", ".join([*named, *(key for key in ("by phase", "by target") if parts[key])])


def _left(plan: Sequence[Run], path: Path) -> list[tuple[Run, int]]:
    """Runs and stretches that have no rows."""
    known = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(rows.COLUMNS))
    done = set(zip(known["config_hash"], known["condition"], strict=True))
    every = [(run, number) for run in plan for number in range(BLOCKS)]
    return [(run, n) for run, n in every if (run.hash, f"stretch {n + 1} of {BLOCKS}") not in done]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--data", nargs="+", help="only these sets")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--choose", action="store_true", help="write into the README what the rule chooses")
    options = parser.parse_args(arguments)
    if options.choose:
        write(Path(__file__).with_name("README.md"), report(read(options.results)), "stretches")
        return 0
    plan = [run for run in read_plan([options.plan]) if not options.data or run.data in options.data]
    _run_all(_left(plan, options.results), options)
    return 0


def _run_all(left: list[tuple[Run, int]], options: argparse.Namespace) -> None:
    """Do what is left, each run and stretch in a process of the pool, until the time is over."""
    pool = ProcessPoolExecutor(options.jobs, get_context("fork"))
    jobs = [pool.submit(do, *job) for job in left]
    try:
        for number, job in enumerate(as_completed(jobs, options.seconds)):
            rows.append(options.results, job.result())
            sys.stderr.write(f"{number + 1} of {len(left)}\n")
    except TimeoutError:
        sys.stderr.write("the time is over\n")
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    raise SystemExit(main())
