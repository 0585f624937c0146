"""Grids of experiments over several workers: a worker that dies loses no row and doubles none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from experiments.benchmarks import rows, run

ROOT = Path(__file__).parents[2]
PLAN = """
[[runs]]
data = "sines"
model = "last_value"
seed = [0, 1]
load = { series = 4, observations = 40 }
"""


def machine(folder: Path) -> subprocess.Popen[bytes]:
    """A machine at work on the plan, one run at a time."""
    command = [
        "-m",
        "experiments.benchmarks.run",
        str(folder / "plan.toml"),
        "--results",
        str(folder / "r.csv"),
    ]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *command],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_two_machines_share_a_plan_and_when_one_is_killed_no_row_is_lost_or_doubled(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    machines = [machine(tmp_path), machine(tmp_path)]
    claims = tmp_path / "r.claims"
    while not (claims.exists() and any(claims.iterdir())):
        time.sleep(0.05)
    os.killpg(machines[0].pid, signal.SIGKILL)  # the machine, with the run that it is at
    for process in machines:
        process.wait(timeout=200)
    assert machine(tmp_path).wait(timeout=200) == 0  # what is left of the dead one
    table = pd.read_csv(tmp_path / "r.csv")
    assert len(table["config_hash"].unique()) == 2
    assert not table.duplicated(["config_hash", "split", "metric"]).any()
    assert table.groupby("config_hash").size().nunique() == 1
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".r.csv")]


def test_a_run_that_another_process_is_at_is_left_to_it_and_one_that_is_done_is_not_done_again(
    tmp_path, monkeypatch
):
    fields = {"data": "sines", "model": "last_value", "load": {"series": 4, "observations": 40}}
    name = run.Run(**fields).hash
    held = rows.claim(tmp_path / "r.csv", name)
    assert held is not None
    monkeypatch.setattr(run, "_do", lambda *_: pytest.fail("the run was done"))
    code = "import sys; from pathlib import Path; from experiments.benchmarks import rows; "
    code += "sys.exit(rows.claim(Path(sys.argv[1]), sys.argv[2]) is None)"
    command = [sys.executable, "-c", code, str(tmp_path / "r.csv"), name]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 1
    held.release()
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    monkeypatch.setattr(rows, "done", lambda _: {name})
    assert run._one(fields, tmp_path / "r.csv") == 0


def test_tasks_of_an_array_begin_at_different_runs(monkeypatch):
    runs = list("abcdef")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    for task, first in enumerate("ace"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        found = run._own_first(runs)  # pyright: ignore[reportArgumentType]
        assert found[0] == first and sorted(found) == runs
