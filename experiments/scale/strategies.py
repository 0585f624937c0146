"""DDP and FSDP on two devices: equal weights, the rows of one device, and a run that is killed and goes on.

    python -m experiments.scale.strategies --results strategies

Runs `several_devices` under torchrun for each strategy: once as a whole, once with every process killed
between two checkpoints, and then again, which goes on from the checkpoint.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctsattn import Forecaster
from experiments.scale.stamp import stamp, write

ROOT = Path(__file__).parents[2]
STEPS, EVERY, KILL_AT = 40, 10, 25


def launch(out: Path, options: argparse.Namespace, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the script of several devices under torchrun."""
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.processes)]
    sizes = ["--width", str(options.width), "--steps", str(STEPS), "--checkpoint-every", str(EVERY)]
    script = ["-m", "experiments.scale.several_devices", "--out", str(out), "--series", str(options.series)]
    command = [sys.executable, *starter, *script, *sizes, *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def trial(strategy: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The runs of one strategy, compared."""
    kept = ["--strategy", strategy, "--checkpoint-dir", str(folder / "runs")]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(launch, folder / "whole", options, "--strategy", strategy)
        broken = threads.submit(launch, folder / "broken", options, *kept, "--kill-at", str(KILL_AT))
    runs = {"whole": first.result(), "broken": broken.result()}
    runs["resumed"] = launch(folder / "resumed", options, *kept)
    for name, run in runs.items():
        if (run.returncode == 0) != (name != "broken"):
            raise RuntimeError(f"{strategy}, {name}: {run.stderr[-3000:]}")
    return {"strategy": strategy, "processes": options.processes, **compared(folder, options)}


def compared(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What the runs say, against each other and against one device."""
    told = pd.read_json(folder / "resumed" / "run.json", typ="series")
    whole, resumed = (
        Forecaster.load(folder / name / "model.ctsattn").fitted_.network.state_dict()
        for name in ("whole", "resumed")
    )
    answer = pd.read_parquet(folder / "whole" / "forecast.parquet")
    alone = Forecaster.load(folder / "whole" / "model.ctsattn").predict(horizon="12h", level=[80])
    numbers = [column for column in alone if str(column).startswith("ctsattn")]
    return {
        "series": options.series,
        "steps": int(told["steps"]),
        "same_weights_in_each_process": int(told["same_weights"]),
        "killed_at": KILL_AT,
        "resumed_at": int(told["resumed_at"]),
        "largest_difference_of_weights": max(
            (whole[k] - resumed[k]).abs().max().item() for k in whole if whole[k].is_floating_point()
        ),
        "rows": len(alone),
        "same_rows_in_order": int(answer[["unique_id", "ds"]].equals(alone[["unique_id", "ds"]])),
        "largest_difference_of_forecasts": float(np.abs(answer[numbers] - alone[numbers]).to_numpy().max()),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--series", type=int, default=65)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--results", default="strategies")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor() as threads:
        folders = {strategy: Path(place, strategy) for strategy in options.strategies}
        found = [threads.submit(trial, name, folder, options) for name, folder in folders.items()]
        for one in found:
            rows.append({**one.result(), **stamp()})
            print(rows[-1], flush=True)
            write(options.results, rows)


if __name__ == "__main__":
    main()
