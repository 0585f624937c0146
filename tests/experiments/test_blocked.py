"""The choice of settings by stretches of the rows before the test part."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ctsattn.data.batch import TaskSpec
from ctsattn.datasets.long_horizon import Table
from ctsattn.datasets.protocols import row_windows
from ctsattn.datasets.splits import RowSplit
from ctsattn.models import Linear
from experiments.benchmarks import blocked, choice
from experiments.benchmarks.plan import read_plan
from experiments.benchmarks.tasks import RowTask

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


def test_a_setting_without_all_stretches_is_not_compared():
    row = {"data": "ili", "horizon": 24, "value": 1.0}
    names = ("stretch 1 of 8", "stretch 2 of 8")
    table = pd.DataFrame([{**row, "config": c, "condition": n} for c in "ab" for n in names][:-1])
    assert choice.scores(table).index.tolist() == [("ili", "a")]


def test_the_plan_leaves_the_test_part_alone():
    assert not any(run.test for run in read_plan([blocked.PLAN]))
