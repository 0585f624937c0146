"""What every row of these experiments carries: how it came about, so that it can be made again."""

from __future__ import annotations

import csv
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def stamp(seed: int) -> dict[str, str | int]:
    """Command, seed, commit, versions and hardware of this run."""
    return {
        "seed": seed,
        "command": " ".join([f"python -m experiments.operator.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "dirty": int(bool(_git("status", "--porcelain", "ctsattn/ops", "ctsattn/phi.py"))),
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}",
        "device": _processor(),
    }


def write(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows to `results/<name>.csv`, in place of what was there."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(name: str, as_text: bool = False) -> list[dict[str, object]]:
    """Rows of `results/<name>.csv`, as numbers where all of a column are numbers, or as they are written."""
    import pandas as pd

    kind = str if as_text else None
    return pd.read_csv(RESULTS / f"{name}.csv", dtype=kind, keep_default_na=False).to_dict("records")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=HERE.parents[1], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _processor() -> str:
    """Name of the processor and number of its cores that this process may use."""
    names = [line.split(":", 1)[1] for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    name = names[0].strip() if names else platform.processor()
    return f"{name}, {torch.get_num_threads()} thread"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []
