"""Run cells of the study, each with all its seeds at once: `python -m experiments.hypotheses.run --help`.

A cell is a data set, an arm, a regime of training and a kind of positions. Finished cells are skipped, so
that the study can be run in pieces; a piece begins no cell after `--minutes`.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from ctsattn import __version__
from ctsattn.datasets.sampling import irregularity
from ctsattn.datasets.splits import FractionSplit
from experiments.hypotheses.backbone import Backbone
from experiments.hypotheses.plan import Plan, check_frozen
from experiments.hypotheses.tasks import DeviceTask, Task, Windows, build, condition_mask
from experiments.hypotheses.training import Fitted, predict, squared_error, train

RESULTS = Path(__file__).parent / "results"
COLUMNS = [
    *("experiment", "arm", "data", "model", "mixer", "lookback", "horizon", "condition", "seed", "split"),
    *("metric", "value", "step", "irregularity", "fit_seconds", "predict_seconds", "peak_mib", "params"),
    *("config_hash", "commit", "versions", "device"),
]
KEY = ["experiment", "arm", "data"]
BLOCKS = 12  # stretches of test windows whose errors are stored apart, for the bootstrap over time


@dataclass(frozen=True)
class Cell:
    """One training of all seeds.

    Attributes:
        data: Name of the data set; with the ending `-shuffled` its negative control.
        arm: Arm of the plan.
        regime: "regular" or "thinned".
        positions: "time" or "none".
    """

    data: str
    arm: str
    regime: str
    positions: str

    @property
    def experiment(self) -> str:
        """Name of the experiment in the rows."""
        return f"main-{self.regime}-{self.positions}"


def cells(plan: Plan, only: argparse.Namespace) -> Iterator[Cell]:
    """All cells of the plan, the primary ones first, as far as the command line wants them."""
    study = plan.tables["study"]
    for positions in study["positions"]:
        for data, facts in plan.sets.items():
            for regime in ["thinned"] if facts["native"] else study["regimes"]:
                for name in [data, f"{data}-shuffled"] if regime == "regular" else [data]:
                    for arm in plan.arms if name == data else ("A0", "A3", "A4"):
                        wanted = {"data": name, "arm": arm, "regime": regime, "positions": positions}
                        if all(
                            not getattr(only, key) or value in getattr(only, key)
                            for key, value in wanted.items()
                        ):
                            yield Cell(**wanted)


def wanted(cell: Cell, only: argparse.Namespace) -> bool:
    """Whether the command line asks for a cell; an empty list asks for all."""
    return all(
        not getattr(only, name) or value in getattr(only, name) for name, value in asdict(cell).items()
    )


def load_task(plan: Plan, name: str) -> Task:
    """The task of a data set, or of its shuffled control."""
    plain = name.removesuffix("-shuffled")
    split = FractionSplit() if plan.sets[plain].get("split") == "fractions" else None
    task = build(plain, plan.shape(plain), split)
    return task if plain == name else task.shuffle()


def fit(
    plan: Plan, cell: Cell, task: DeviceTask, learning_rate: float, seeds: list[int]
) -> tuple[nn.Module, Fitted]:
    """Train all seeds of a cell."""
    lookback, design = task.task.shape.lookback, plan.design(positions=cell.positions)
    validation = task.windows(torch.as_tensor(task.task.cuts["val"], device=task.device))
    schedule = plan.schedule(
        learning_rate, "regular" if plan.sets[cell.data.removesuffix("-shuffled")]["native"] else cell.regime
    )
    return train(lambda: Backbone(plan.arms[cell.arm], design, lookback), task, schedule, seeds, validation)


def choose_rate(plan: Plan, cell: Cell, task: DeviceTask, known: dict[tuple[str, str], float]) -> float:
    """Learning rate that softmax does best with on validation, for a data set and a regime; found once."""
    key = (cell.data.removesuffix("-shuffled"), cell.regime)
    if key not in known:
        baseline = Cell(key[0], "A0", cell.regime, "time")
        source = task if not task.task.shuffled else DeviceTask(load_task(plan, key[0]), task.device)
        losses = {}
        for rate in plan.tables["schedule"]["learning_rates"]:
            _, fitted = fit(plan, baseline, source, rate, plan.tables["study"]["seeds"][:2])
            losses[rate] = float(fitted.curve.min(dim=0).values.mean())
        known[key] = min(losses, key=lambda rate: losses[rate])
    return known[key]


def evaluate(
    plan: Plan, cell: Cell, task: DeviceTask, skeleton: nn.Module, fitted: Fitted, seeds: list[int]
) -> Iterator[dict[str, Any]]:
    """Errors of every seed under every condition, the whole and in `BLOCKS` stretches."""
    shown = task.windows(torch.as_tensor(task.task.cuts["test"], device=task.device))
    for condition in plan.conditions(cell.data.removesuffix("-shuffled")):
        thin = shown if condition == "all" else shown.thin(condition_mask(condition, shown, seed=0))
        begin = time.perf_counter()
        forecast = predict(skeleton, fitted.parameters, fitted.buffers, thin)
        mse = squared_error(forecast, shown).double()
        mae = ((forecast - shown.future_values).abs() * shown.future_mask).sum(-1) / shown.future_mask.sum(-1)
        facts = {
            "condition": condition,
            "predict_seconds": time.perf_counter() - begin,
            "irregularity": _irregular(thin),
        }
        for i, seed in enumerate(seeds):
            yield {**facts, "seed": seed, "metric": "mse", "value": float(mse[i].mean())}
            yield {**facts, "seed": seed, "metric": "mae", "value": float(mae[i].double().mean())}
            for b, stretch in enumerate(mse[i].tensor_split(min(BLOCKS, mse.shape[1]))):
                yield {**facts, "seed": seed, "metric": f"mse-block-{b:02d}", "value": float(stretch.mean())}


def curves(fitted: Fitted, seeds: list[int]) -> Iterator[dict[str, Any]]:
    """Validation losses of every seed at every check."""
    for step, losses in zip(fitted.steps, fitted.curve.tolist(), strict=True):
        for seed, loss in zip(seeds, losses, strict=True):
            yield {
                "condition": "all",
                "seed": seed,
                "split": "val",
                "metric": "mse",
                "value": loss,
                "step": step,
            }


def run_cell(plan: Plan, cell: Cell, task: DeviceTask, rate: float, seeds: list[int]) -> list[dict[str, Any]]:
    """Train and test a cell, and give its rows."""
    if task.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    skeleton, fitted = fit(plan, cell, task, rate, seeds)
    common = {
        "experiment": cell.experiment,
        "arm": cell.arm,
        "data": cell.data,
        "model": f"backbone lr={rate:g}",
        "mixer": plan.arms[cell.arm],
        "lookback": task.task.shape.lookback,
        "horizon": task.task.shape.horizon,
        "split": "test",
        "step": plan.tables["schedule"]["steps"],
        "fit_seconds": time.perf_counter() - begin,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if task.device.type == "cuda" else np.nan,
        "params": sum(p[0].numel() for p in fitted.parameters.values()),
        "config_hash": plan.sha256[:12],
        **stamp(task.device),
    }
    found = [*curves(fitted, seeds), *evaluate(plan, cell, task, skeleton, fitted, seeds)]
    return [{**common, **row} for row in found]


def stamp(device: torch.device) -> dict[str, str]:
    """Where and with what a row was made."""
    commit = (
        os.environ.get("CTSATTN_COMMIT")
        or subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu x{torch.get_num_threads()}"
    versions = {"python": sys.version.split()[0], "ctsattn": __version__, "torch": torch.__version__}
    return {"commit": commit, "versions": "; ".join(map(" ".join, versions.items())), "device": name}


def finished(path: Path) -> set[tuple[str, ...]]:
    """Keys of the cells whose rows stand in a file."""
    if not path.exists():
        return set()
    return set(pd.read_csv(path, usecols=KEY, dtype=str).drop_duplicates().itertuples(index=False, name=None))


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add the rows of a cell in one write, so that a killed run leaves all of them or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        text = StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.7g}" if isinstance(v, float) else v for k, v in row.items()})
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def _irregular(shown: Windows) -> float:
    """Mean coefficient of variation of the gaps that a window shows."""
    times, mask = shown.past_times[:256].cpu().double().numpy(), shown.past_mask[:256].cpu().numpy()
    values = [irregularity(t, m[:, None])[0] for t, m in zip(times, mask, strict=True)]
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "arm", "regime", "positions"):
        parser.add_argument(
            f"--{name}", nargs="*", default=[], help="only these; default: all that the plan has"
        )
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no cell after this time")
    parser.add_argument("--out", type=Path, default=RESULTS / "rows.csv", help="file that rows are added to")
    parser.add_argument(
        "--also-done", type=Path, nargs="*", default=[], help="files whose cells count as finished"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--smoke", action="store_true", help="two tiny cells on generated series, to try the pipeline"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing."""
    options = parse(arguments)
    plan = Plan.read()
    check_frozen(plan)
    begin, rates, tasks = time.perf_counter(), {}, {}
    done = set().union(*(finished(path) for path in [options.out, *options.also_done]))
    for cell in cells(plan, options):
        if (cell.experiment, cell.arm, cell.data) in done:
            continue
        if time.perf_counter() - begin > 60 * options.minutes:
            print("The time is up; run again for the rest.")
            return 0
        if cell.data not in tasks:
            tasks = {cell.data: DeviceTask(load_task(plan, cell.data), options.device)}
        rate = choose_rate(plan, cell, tasks[cell.data], rates)
        rows = run_cell(plan, cell, tasks[cell.data], rate, plan.tables["study"]["seeds"])
        append(options.out, rows)
        print(f"{time.perf_counter() - begin:6.0f} s  {cell}", flush=True)
    print("All cells are finished.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
