"""The pilot, on validation windows alone: `python -m experiments.hypotheses.pilot --help`.

It times every arm, chooses the learning rates by softmax, and measures how far paired seeds differ. No test
window is cut here.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.hypotheses.cells import Cell
from experiments.hypotheses.plan import PLAN, Plan
from experiments.hypotheses.pool import share_out
from experiments.hypotheses.run import RESULTS, Bench, append, stamp, start

COLUMNS = [
    *("kind", "data", "arm", "regime", "positions", "rate", "seed", "loss", "last", "best_step"),
    *("together", "seconds", "peak_mib", "commit", "versions", "device"),
]


@dataclass(frozen=True)
class Trial:
    """One training of the pilot.

    Attributes:
        kind: "rates" trains two seeds at every learning rate, "arms" all seeds at the rate chosen.
        cells: What to train side by side: arms of one data set and regime.
        rates: Learning rate of each seed.
        seeds: The seeds.
    """

    kind: str
    cells: tuple[Cell, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]


def rate_trials(plan: Plan) -> list[Trial]:
    """Softmax on every data set in every regime, two seeds at each learning rate, all in one training."""
    rates = plan.tables["schedule"]["learning_rates"]
    pairs = [(rate, seed) for rate in rates for seed in plan.tables["study"]["seeds"][:2]]
    regimes = plan.tables["study"]["regimes"]
    found = []
    for name, facts in plan.sets.items():
        for regime in ["thinned"] if facts["native"] else regimes:
            cell = Cell(name, "A0", regime, "time")
            found.append(Trial("rates", (cell,), *(tuple(x) for x in zip(*pairs, strict=True))))
    return found


def arm_trials(plan: Plan, data: list[str], arms: list[str], rate: float) -> list[Trial]:
    """All seeds of some arms, to time them and to see how far seeds differ."""
    seeds = tuple(plan.tables["study"]["seeds"])
    groups = [tuple(Cell(name, arm, "thinned", "time") for arm in arms) for name in data]
    return [Trial("arms", group, (rate,) * len(seeds), seeds) for group in groups]


def run_trial(bench: Bench, trial: Trial) -> list[dict[str, Any]]:
    """Train, and give one row for each cell and seed."""
    on_cuda = bench.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    trained = bench.fit(trial.cells, trial.rates, list(trial.seeds))
    common = {
        "kind": trial.kind,
        "together": len(trial.cells),
        "seconds": time.perf_counter() - begin,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if on_cuda else "",
        **stamp(bench.device),
    }
    rows = []
    for cell, (_, fitted) in zip(trial.cells, trained, strict=True):
        names = {name: getattr(cell, name) for name in ("data", "arm", "regime", "positions")}
        best = fitted.curve.nan_to_num(torch.inf).min(dim=0).values.tolist()
        for i, (rate, seed) in enumerate(zip(trial.rates, trial.seeds, strict=True)):
            losses = {"loss": best[i], "last": float(fitted.curve[-1, i]), "best_step": int(fitted.best[i])}
            rows.append({**common, **names, "rate": rate, "seed": seed, **losses})
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the pilot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["rates", "arms"], required=True)
    parser.add_argument("--data", nargs="*", default=[], help="only these; for `arms` at least one")
    parser.add_argument("--arm", nargs="*", default=["A0"], help="for `arms`")
    parser.add_argument("--rate", type=float, default=1e-3, help="for `arms`")
    parser.add_argument("--out", type=Path, default=RESULTS / "pilot.csv")
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    plan = Plan.read(PLAN)
    trials = (
        [t for t in rate_trials(plan) if not options.data or t.cells[0].data in options.data]
        if options.kind == "rates"
        else arm_trials(plan, options.data, options.arm, options.rate)
    )
    begin, clock = partial(start, options.device, options.tasks, PLAN), time.perf_counter()
    for trial, rows, trouble in share_out(trials, begin, run_trial, options.workers, 60 * options.minutes):
        arms = " ".join(cell.arm for cell in trial.cells)
        print(f"{time.perf_counter() - clock:6.1f} s  {arms}  {trial.cells[0]}  {trouble}", flush=True)
        if not trouble:
            append(options.out, rows, COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
