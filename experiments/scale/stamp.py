"""What every result of these experiments carries, and how its rows are written."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.rows import commit, device_name, versions

RESULTS = Path(__file__).parent / "results"


def stamp(seed: int = 0) -> dict[str, str | int]:
    """Command, seed, commit, versions and hardware of this run."""
    script = Path(sys.argv[0]).stem
    return {
        "seed": seed,
        "command": shlex.join(["python", "-m", f"experiments.scale.{script}", *sys.argv[1:]]),
        "commit": os.environ.get("CTSATTN_COMMIT") or commit(),  # a copy without its history is told
        "versions": versions("torch", "numpy", "lightning"),
        "device": device_name(),
    }


def write(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows to `results/<name>.csv`, in place of what was there."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
