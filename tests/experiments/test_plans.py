"""Plans of benchmark runs: what TOML cannot say."""

from experiments.benchmarks.plan import expand


def test_none_in_a_plan_is_none_and_names_the_run_that_the_command_line_names():
    table = {"data": "m4_hourly", "model": "linear", "seed": [0, 1]}
    plan = expand({**table, "training": {"patience": "none", "max_steps": 3}})
    line = expand({**table, "training": {"patience": None, "max_steps": 3}})
    assert [run.training["patience"] for run in plan] == [None, None]
    assert [run.hash for run in plan] == [run.hash for run in line]
