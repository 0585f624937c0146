"""The scripts of experiments/scale, at their smallest."""

from __future__ import annotations

import argparse
import shutil
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from experiments.scale import figures, kills, long_context, speedup
from experiments.scale.several_devices import series
from experiments.scale.stamp import RESULTS


def test_a_fit_that_was_killed_ends_as_one_that_was_not():
    rows = kills.run(1, seed=1, tell=lambda _: None, phases=("fit",))
    assert [row["phase"] for row in rows] == ["fit"]
    assert all(row["same_result"] for row in rows)


def test_the_speed_of_training_counts_the_steps_after_the_warm_up_only(monkeypatch):
    now = iter([100.0, 101.0, 101.5, 103.0, 104.0, 104.0])
    monkeypatch.setattr(speedup.time, "perf_counter", lambda: next(now))
    pace = speedup.Pace(warm_up=2, steps=6)
    for step in range(1, 7):
        trainer = SimpleNamespace(global_step=step, strategy=SimpleNamespace(barrier=lambda: None))
        pace.on_train_batch_end(trainer, None, None, None, 0)
    assert pace.seconds == 4.0
    assert pace.ends == [101.0, 101.5, 103.0, 104.0]


def test_a_size_is_trained_and_told_in_windows_a_second():
    options = argparse.Namespace(
        steps=2, warm_up=1, precision="32-true", strategy="", wait=False, batches="ahead"
    )
    row = speedup.trained(series(4, 60), (8, 1, 8), options)
    assert (row["processes"], row["windows_of_a_step"], row["steps_timed"]) == (1, 8, 2)
    assert row["windows_per_second"] == pytest.approx(8 / row["seconds_of_a_step"], rel=0.01)


@pytest.mark.parametrize("what", sorted(long_context.MEASURED))
def test_a_long_context_is_measured_for_each_length(monkeypatch, what):
    written: dict[str, list[dict[str, Any]]] = {}
    monkeypatch.setattr(long_context, "write", written.__setitem__)
    options = argparse.Namespace(dtype="float32", what=[what], lengths=[64, 128], results="rows")
    long_context.one_device(options, "cpu")
    rows = written["rows"]
    assert [(row["what"], row["observations"]) for row in rows] == [(what, 64), (what, 128)]
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.parametrize("name", sorted(figures.FIGURES))
def test_each_figure_is_drawn_from_the_committed_rows(tmp_path, name):
    pattern, draw = figures.FIGURES[name]
    files = sorted(RESULTS.glob(pattern))
    assert files
    if (RESULTS / f"{name}.csv").exists():
        shutil.copy(RESULTS / f"{name}.csv", tmp_path)
    draw(pd.concat(map(pd.read_csv, files), ignore_index=True), tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
