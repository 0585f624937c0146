"""Result rows: one CSV, appended to by many processes, with all that it takes to repeat a run."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from filelock import FileLock

COLUMNS = (
    *("data", "model", "mixer", "lookback", "horizon", "condition", "seed", "split", "metric", "value"),
    *("fit_seconds", "predict_seconds", "peak_mib", "params", "steps", "config_hash", "commit", "versions"),
    *("device", "config"),
)
RESULTS = Path(__file__).parent / "results"


def append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV in one piece: all of a run, or none of it.

    Raises:
        ValueError: A row has a column that the table lacks.
    """
    from filelock import FileLock

    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        old = path.read_text() if path.exists() else ""
        if not old:
            writer.writeheader()
        writer.writerows(rows)
        # What a killed process left of a line is dropped. The new table replaces the old one as a whole: a
        # process that is killed here leaves one or the other.
        kept = old[: old.rfind("\n") + 1]
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(kept + text.getvalue())
        os.replace(temporary, path)


def claim(path: Path, run: str) -> FileLock | None:
    """A lock that one process holds on a run of a table, None where another holds it.

    The system lets go of it when the process ends, however it ends, so a run of a process that died is free.
    It holds between machines that share the folder, if that knows locks.
    """
    from filelock import FileLock, Timeout

    folder = path.with_suffix(".claims")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{run}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def read(*paths: Path) -> pd.DataFrame:
    """Rows of some CSVs; a line that was cut off is left out, a run that was done twice counts once."""
    frames = [
        pd.read_csv(path, dtype={"config_hash": str, "commit": str, "mixer": str}, on_bad_lines="skip")
        for path in paths
        if path.exists()
    ]
    if not frames:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = pd.concat(frames, ignore_index=True)
    whole = rows[rows["config"].notna() & rows["value"].notna()]
    return whole.drop_duplicates(["config_hash", "split", "metric"], keep="last", ignore_index=True)


def done(path: Path) -> set[str]:
    """Hashes of the runs that a CSV holds."""
    return set(read(path)["config_hash"])


def ledger(path: Path, entry: Mapping[str, Any]) -> None:
    """Note a run before its test part is touched, so that its choices can be seen to precede its numbers."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), path.open("a") as file:
        file.write(json.dumps(entry, sort_keys=True) + "\n")


def commit() -> str:
    """Commit of this checkout, with a plus sign where the package or the benchmarks were changed since.

    Where there is no checkout but files of one, `CTSATTN_COMMIT` says of which.
    """
    here = Path(__file__).parent
    if stated := os.environ.get("CTSATTN_COMMIT"):
        return stated
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", "../../ctsattn", ".")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    code = [line for line in changed.splitlines() if line.endswith((".py", ".toml"))]
    return head + ("+" if code else "")


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def versions(*packages: str) -> str:
    """Versions of Python and of some packages, in one word each."""
    found = [f"{package}={version(package)}" for package in packages]
    return " ".join([f"python={platform.python_version()}", *found])


def device_name() -> str:
    """The GPU if torch sees one, else the processor and the threads it may use."""
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return sys.modules["torch"].cuda.get_device_name()
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {threads} threads"
    return platform.processor() or "CPU"
