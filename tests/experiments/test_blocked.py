"""The choice of settings by stretches of the rows before the test part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ctsattn.data.batch import TaskSpec
from ctsattn.data.scalers import LOGS
from ctsattn.datasets.long_horizon import Table
from ctsattn.datasets.protocols import row_windows
from ctsattn.datasets.splits import RowSplit
from ctsattn.models import Linear
from experiments.benchmarks import blocked, choice
from experiments.benchmarks.plan import Run, read_plan
from experiments.benchmarks.tasks import RowTask, in_logarithms

LOOKBACK, HORIZON = 12, 5
SPLIT = RowSplit(300, 100, 100)


@pytest.fixture(scope="module")
def task() -> RowTask:
    """A joint task of two channels of noise and a season."""
    rng, at = np.random.default_rng(0), np.arange(500)
    values = np.sin(2 * np.pi * at / 6)[:, None] + 0.1 * rng.standard_normal((500, 2))
    table = Table(np.datetime64("2020-01-01", "s") + at * np.timedelta64(3600, "s"), values, ("a", "b"))
    spec = TaskSpec(
        num_targets=2, num_channels=2, channel_codes=(0, 0), time_unit=3600.0, lookback=12.0, horizon=5.0
    )
    windows = row_windows(table, SPLIT, LOOKBACK, HORIZON)
    return RowTask(windows, spec, "standard", None, None, 0, True, at * 3600.0)


def test_stretches_cover_what_precedes_the_test_part_once(task):
    found = blocked.stretches(task, 20)
    assert len(found) == blocked.BLOCKS
    origins = [o for first, end in found for o in range(first, end)]
    assert origins == list(range(20, 400 - HORIZON + 1))


@pytest.mark.parametrize("number", [0, 3, 7])
def test_what_is_learned_from_shares_no_answer_with_the_stretch(task, number):
    first, end = blocked.stretches(task, 20)[number]
    parts = blocked.left_out(task, (first, end), 1).windows
    asked = {o + k for o in parts["val"].origins for k in range(HORIZON)}
    learned = {o + k for o in parts["train"].origins for k in range(HORIZON)}
    assert not asked & learned
    assert parts["val"].origins.tolist() == list(range(first, end))
    assert max(asked | learned) < 400
    assert len(learned) >= 400 - LOOKBACK - len(asked) - 2 * HORIZON


def test_going_forward_nothing_after_the_stretch_is_learned_from(task):
    first, end = blocked.stretches(task, 20)[4]
    parts = blocked.left_out(task, (first, end), 1, before=True).windows
    assert parts["train"].origins.max() == first - HORIZON
    assert parts["val"].origins.tolist() == list(range(first, end))


@pytest.mark.parametrize("scaler", LOGS)
def test_errors_on_logarithms_are_those_of_standardised_values(task, scaler):
    training = np.exp(task.windows["train"].table.values[:300])
    whole = row_windows(
        replace(task.windows["train"].table, values=np.exp(task.windows["train"].table.values)),
        SPLIT,
        LOOKBACK,
        HORIZON,
    )
    logs = in_logarithms(replace(task, windows=whole, scaler=scaler), training)
    assert logs.logs is not None
    network = Linear(head="squared_error", anchors=("last",)).build(task.spec).eval()
    part = blocked.left_out(logs, blocked.stretches(logs, 20)[2], 3)
    cut = part.windows["val"]
    origins = cut.origins
    values = whole["train"].table.values
    miss = values[origins[:, None] + np.arange(HORIZON)] - values[origins - 1][:, None]
    np.testing.assert_allclose(blocked.errors(network, part), (miss**2).mean(axis=(0, 2)), rtol=1e-4)


def test_errors_are_those_of_the_protocol_step_by_step(task):
    network = Linear(head="squared_error", anchors=("last",)).build(task.spec).eval()
    part = blocked.left_out(task, blocked.stretches(task, 20)[2], 3)
    cut = part.windows["val"]
    miss = cut.future() - cut.past()[:, -1:]
    np.testing.assert_allclose(blocked.errors(network, part), (miss**2).mean(axis=(0, 2)), rtol=1e-5)


def test_the_rule_takes_the_fewest_weights_within_a_standard_error():
    noise = np.array([0.1, -0.1, 0.1, -0.1])
    found = pd.DataFrame([[0.0] * 4, 0.01 + noise, [0.2] * 4, 0.02 + noise])
    place, table = choice.choose(found, [9, 5, 1, 4])
    assert place == 3
    assert table["more"].tolist() == pytest.approx([0.0, 0.01, 0.2, 0.02])
    assert choice.choose(found, [9, 10, 1, 11])[0] == 0


def test_a_level_must_hold_going_forward():
    runs = [Run("etth1", "linear", lookback=96, horizon=720, options=o) for o in ({}, {"by_level": "shared"})]
    found = pd.DataFrame([[0.2, 0.3], [0.0, 0.1]], index=["plain", "level"])
    better = pd.DataFrame([[0.5], [0.4]], index=found.index)
    assert choice.confirmed(1, found, runs, better) == 1
    assert choice.confirmed(1, found, runs, -better) == 0
    assert choice.confirmed(1, found, runs, better[:1]) == 0
    assert choice.confirmed(0, found, runs, -better) == 0


def test_where_the_rule_takes_a_level_what_is_taken_has_none(tmp_path):
    options = {"anchors": ["mean"], "average_lookbacks": False}
    plain = Run("etth1", "linear", lookback=96, horizon=720, options=options)
    level = replace(plain, options=options | {"by_level": "shared", "scaler": "none"})
    errors = [(plain, False, 1.0), (level, False, 0.5), (plain, True, 1.0), (level, True, 0.5)]
    rows = [
        {"data": "etth1", "config": run.as_json(), "condition": blocked.condition(n, before), "horizon": 96}
        | {"value": error + 0.01 * n}
        for run, before, error in errors
        for n in range(3 * before, blocked.BLOCKS)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    (found,) = choice.read(tmp_path / "rows.csv")
    assert (found.runs[found.chosen], found.runs[found.taken]) == (level, plain)
    assert "one level" in choice.report([found]).split("\n")[2]


def test_rows_going_forward_are_not_taken_for_those_of_the_rule():
    row = {"data": "ili", "config": "a", "horizon": 24, "value": 1.0}
    names = [blocked.condition(n, before) for n, before in ((0, False), (3, False), (3, True))]
    table = pd.DataFrame([{**row, "condition": name} for name in names])
    assert choice.scores(table).shape == (1, 2)
    assert choice.scores(table, before=True).shape == (1, 1)


def test_a_setting_without_all_stretches_is_not_compared():
    row = {"data": "ili", "horizon": 24, "value": 1.0}
    names = ("stretch 1 of 8", "stretch 2 of 8")
    table = pd.DataFrame([{**row, "config": c, "condition": n} for c in "ab" for n in names][:-1])
    assert choice.scores(table).index.tolist() == [("ili", "a")]


def test_the_plan_leaves_the_test_part_alone():
    second = blocked.PLAN.with_name("levels.toml")
    assert not any(run.test for run in read_plan([blocked.PLAN, second]))
