"""Run cells of the study, each with all its seeds at once: `python -m experiments.hypotheses.run --help`.

Finished cells are skipped, so that the study can be run in pieces; a piece begins no cell after `--minutes`.
Several worker processes share the device. A piece adds to three files: `main.csv` has a row for each cell,
condition and seed, `curves.csv` one for each cell and seed, `cells.csv` one for each cell.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from ctsattn import __version__
from experiments.hypotheses.backbone import Backbone
from experiments.hypotheses.cells import Cell, cells
from experiments.hypotheses.evaluation import Shown, evaluate, shown_under
from experiments.hypotheses.plan import PLAN, Plan, check_frozen
from experiments.hypotheses.pool import share_out
from experiments.hypotheses.prepared import load_task
from experiments.hypotheses.tasks import DeviceTask, Windows
from experiments.hypotheses.training import Fitted, train_together

RESULTS = Path(__file__).parent / "results"
SMOKE = Path(__file__).parent / "smoke.toml"  # a plan over small generated sets, to try the pipeline
COLUMNS = [  # of rows in long form, which the smaller experiments write
    *("experiment", "arm", "data", "model", "mixer", "lookback", "horizon", "condition", "seed", "split"),
    *("metric", "value", "step", "irregularity", "fit_seconds", "predict_seconds", "peak_mib", "params"),
    *("config_hash", "commit", "versions", "device"),
]
KEY = ["experiment", "arm", "data"]
Rows = dict[str, list[dict[str, Any]]]


class Bench:
    """What a worker keeps between cells: the plan, and the data on the device.

    Args:
        plan: The plan.
        device: Where to run.
        tasks: Folder of prepared tasks; None: they are cut from the data sets.
    """

    def __init__(self, plan: Plan, device: str, tasks: Path | None = None) -> None:
        self.plan, self.device, self._folder = plan, torch.device(device), tasks
        self._tasks: dict[str, DeviceTask] = {}
        self._shown: dict[str, dict[str, Shown]] = {}

    def task(self, name: str) -> DeviceTask:
        """The task of a data set or of its control."""
        if name not in self._tasks:
            self._tasks[name] = DeviceTask(load_task(self.plan, name, self._folder), self.device)
        return self._tasks[name]

    def validation(self, name: str) -> Windows:
        """The windows that training chooses by."""
        task = self.task(name)
        return task.windows(torch.as_tensor(task.task.cuts["val"], device=self.device))

    def shown(self, cell: Cell) -> dict[str, Shown]:
        """The test windows under each condition of the plan."""
        if cell.data not in self._shown:
            self._shown[cell.data] = shown_under(self.task(cell.data), self.plan.conditions(cell.plain))
        return self._shown[cell.data]

    def fit(
        self, cells: Sequence[Cell], rate: float | tuple[float, ...], seeds: list[int]
    ) -> list[tuple[nn.Module, Fitted]]:
        """Train all seeds of some cells of one data set and regime, side by side."""
        task = self.task(cells[0].data)
        schedule = self.plan.schedule(cells[0].plain, cells[0].regime, rate)
        makes = [partial(self._network, cell, task.task.shape.lookback) for cell in cells]
        return train_together(makes, task, schedule, seeds, self.validation(cells[0].data))

    def _network(self, cell: Cell, lookback: int) -> Backbone:
        """An untrained network of a cell."""
        design = self.plan.design(cell.variant, positions=cell.positions)
        return Backbone(self.plan.arms[cell.arm], design, lookback, self.plan.imputes(cell.arm))


def run_group(bench: Bench, group: Sequence[Cell]) -> list[Rows]:
    """Train and test cells of one data set and regime; the rows of each by the name of their file."""
    plan, on_cuda = bench.plan, bench.device.type == "cuda"
    seeds, rate = plan.tables["study"]["seeds"], plan.rate(group[0].plain, group[0].regime)
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    trained = bench.fit(group, rate, seeds)
    common = {
        "rate": rate,
        "steps": plan.tables["schedule"]["steps"],
        "together": len(group),
        "group_seconds": time.perf_counter() - begin,
        "group_mib": torch.cuda.max_memory_allocated() / 2**20 if on_cuda else np.nan,
        "config_hash": plan.sha256[:12],
        **stamp(bench.device),
    }
    return [_rows(bench, cell, *one, common) for cell, one in zip(group, trained, strict=True)]


def _rows(bench: Bench, cell: Cell, skeleton: nn.Module, fitted: Fitted, common: dict[str, Any]) -> Rows:
    """Test a trained cell, and make its rows."""
    errors = evaluate(skeleton, fitted, bench.shown(cell))
    shape, names = bench.task(cell.data).task.shape, dict(zip(KEY, cell.key, strict=True))
    facts = {
        **names,
        "mixer": bench.plan.arms[cell.arm],
        "lookback": shape.lookback,
        "horizon": shape.horizon,
        "params": sum(p[0].numel() for p in fitted.parameters.values()),
        **common,
    }
    seeds = bench.plan.tables["study"]["seeds"]
    return {
        "main": _main_rows(names, errors, seeds),
        "curves": _curves(names, fitted, seeds),
        "cells": [facts],
    }


def _main_rows(names: dict[str, str], errors: Iterable[Any], seeds: list[int]) -> list[dict[str, Any]]:
    """A row for each condition and seed."""
    return [
        {
            **names,
            "condition": found.condition,
            "seed": seed,
            "irregularity": float(found.irregularity),
            "mse": float(found.mse[i]),
            "mae": float(found.mae[i]),
            "blocks": " ".join(f"{x:.4g}" for x in found.blocks[i]),
        }
        for found in errors
        for i, seed in enumerate(seeds)
    ]


def _curves(names: dict[str, str], fitted: Fitted, seeds: list[int]) -> list[dict[str, Any]]:
    """A row for each seed: steps, validation losses there, and the step of the best."""
    steps, losses = " ".join(map(str, fitted.steps)), fitted.curve.T.tolist()
    return [
        {
            **names,
            "seed": seed,
            "steps": steps,
            "losses": " ".join(f"{x:.5g}" for x in loss),
            "best": int(best),
        }
        for seed, loss, best in zip(seeds, losses, fitted.best, strict=True)
    ]


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


def append(path: Path, rows: list[dict[str, Any]], columns: list[str] | None = None) -> None:
    """Add rows in one write, so that a killed run leaves all of them or none.

    Args:
        path: The file; it gets a header if it is new.
        rows: The rows.
        columns: Columns of the file; None: `COLUMNS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        text = StringIO()
        writer = csv.DictWriter(text, columns or COLUMNS, restval="")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.7g}" if isinstance(v, float) else v for k, v in row.items()})
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def keep(folder: Path, rows: Rows) -> None:
    """Add the rows of a cell to the files of a folder; `cells.csv` last, since it says what is finished."""
    for name in ("main", "curves", "cells"):
        append(folder / f"{name}.csv", rows[name], list(rows[name][0]))


def start(device: str, tasks: Path | None, plan: Path) -> Bench:
    """What a worker begins with."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # tf32 in all products of matrices, the same for all arms
    return Bench(Plan.read(plan), device, tasks)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "arm", "regime", "positions", "variant"):
        parser.add_argument(
            f"--{name}", nargs="*", default=[], help="only these; default: all that the plan has"
        )
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no cell after this time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder whose files rows are added to")
    parser.add_argument("--done", type=Path, default=RESULTS, help="folder whose cells count as finished")
    parser.add_argument("--tasks", type=Path, help="folder of prepared tasks; default: cut them anew")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: run in this one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--smoke", action="store_true", help="the whole pipeline on two small generated data sets"
    )
    return parser.parse_args(arguments)


def wanted(cell: Cell, only: argparse.Namespace) -> bool:
    """Whether the command line asks for a cell; an empty list asks for all."""
    return all(
        not getattr(only, name) or value in getattr(only, name) for name, value in asdict(cell).items()
    )


def grouped(todo: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Neighbouring cells of one data set and regime, which see the same batches and run side by side."""
    return [tuple(group) for _, group in groupby(todo, key=lambda cell: (cell.data, cell.regime))]


def run_cells(
    todo: list[Cell], begin: Callable[[], Bench], out: Path, workers: int, seconds: float
) -> list[Cell]:
    """Run cells and keep their rows; returns those that failed."""
    failed, clock = [], time.perf_counter()
    for group, found, trouble in share_out(grouped(todo), begin, run_group, workers, seconds):
        if trouble:
            failed.extend(group)
            print(trouble, file=sys.stderr, flush=True)
        else:
            for rows in found:
                keep(out, rows)
        print(f"{time.perf_counter() - clock:6.0f} s  {[cell.key for cell in group]}", flush=True)
    return failed


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing."""
    options = parse(arguments)
    path = SMOKE if options.smoke else PLAN
    plan = Plan.read(path)
    if not options.smoke:
        check_frozen(plan)
    done = finished(options.out / "cells.csv") | finished(options.done / "cells.csv")
    todo = [cell for cell in cells(plan) if cell.key not in done and wanted(cell, options)]
    begin = partial(start, options.device, options.tasks, path)
    failed = run_cells(todo, begin, options.out, options.workers, 60 * options.minutes)
    left = len([cell for cell in todo if cell.key not in finished(options.out / "cells.csv")])
    print(f"{len(todo) - left} cells run, {left} left, {len(failed)} failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
