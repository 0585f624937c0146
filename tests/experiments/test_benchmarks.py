"""The benchmark harness: plans, rows, tasks, evaluation and the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from ctsattn.data.batch import TaskSpec
from ctsattn.datasets.long_horizon import Table
from ctsattn.datasets.protocols import Errors, row_windows
from ctsattn.datasets.sampling import Condition
from ctsattn.datasets.splits import FractionSplit
from ctsattn.models import ContinuousTransformer, LastValue, SeasonalNaive
from experiments.benchmarks import report, rows
from experiments.benchmarks.plan import Run, expand, read_plan
from experiments.benchmarks.records import record_task
from experiments.benchmarks.run import main
from experiments.benchmarks.tasks import RowTask, row_task
from experiments.benchmarks.work import Members, do, evaluate

CONFIGS = Path(report.__file__).parent / "configs"


def _task(joint: bool = False, condition: str = "all", lookback: int = 16, horizon: int = 4) -> RowTask:
    rng = np.random.default_rng(0)
    hours = np.arange(300)
    values = np.sin(hours[:, None] * [0.3, 0.5, 0.7]) + 0.1 * rng.standard_normal((300, 3))
    table = Table(
        np.datetime64("2030-01-01", "s") + hours * np.timedelta64(3600, "s"), values, ("a", "b", "c")
    )
    windows = row_windows(table, FractionSplit(), lookback, horizon)
    width = 3 if joint else 1
    spec = TaskSpec(
        num_targets=width,
        num_channels=width,
        channel_codes=(0,) * width,
        time_unit=3600.0,
        lookback=float(lookback),
        horizon=float(horizon),
    )
    keep = None if condition == "all" else Condition(condition).keep(windows["train"].table.values, 0)
    return RowTask(windows, spec, "standard", keep, None, 0, joint, hours * 3600.0)


def test_lists_are_combined_and_tables_joined_with_the_defaults():
    defaults = {"model": "continuous_transformer", "options": {"d_model": 8}, "training": {"max_steps": 3}}
    table = {"data": ["etth1", "etth2"], "horizon": [24, 48], "lookback": 96, "options": {"num_layers": 1}}
    runs = expand(table, defaults)
    assert [(run.data, run.horizon) for run in runs] == [
        ("etth1", 24),
        ("etth1", 48),
        ("etth2", 24),
        ("etth2", 48),
    ]
    assert runs[0].options == {"d_model": 8, "num_layers": 1}
    assert len({run.hash for run in runs}) == 4


def test_a_run_survives_its_line_of_json_and_keeps_its_hash():
    (run,) = expand({"data": "sines", "model": "continuous_transformer", "seed": 3, "load": {"series": 2}})
    again = Run(**json.loads(run.as_json()))
    assert again == run
    assert again.hash == run.hash
    assert replace(run, seed=4).hash != run.hash


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_committed_plan_can_be_read(path):
    assert read_plan([path])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "etth9", "model": "last_value"}, "No data set is called"),
        ({"data": "sines", "model": "crystal_ball"}, "No model is called"),
        ({"data": "etth1", "model": "last_value"}, "needs a lookback and a horizon"),
    ],
)
def test_a_run_that_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Run(**fields).check()


def test_a_batch_holds_the_windows_of_the_protocol():
    task = _task()
    cut = task.windows["test"]
    (chosen, *_) = task.chunks("test", 7)
    batch = task.batch("test", chosen)
    window, channel = np.divmod(chosen, 3)
    past, future = cut.past(window), cut.future(window)
    expected = np.stack([past[i, :, c] for i, c in enumerate(channel)])
    np.testing.assert_allclose(batch.unscale(batch.past_values.numpy())[:, 0], expected, atol=1e-5)
    expected = np.stack([future[i, :, c] for i, c in enumerate(channel)])
    np.testing.assert_allclose(batch.unscale(batch.future_values.numpy())[:, 0], expected, atol=1e-5)
    assert batch.past_times[0, 0].tolist() == list(range(-15, 1))
    assert batch.future_times[0].tolist() == [1, 2, 3, 4]


def test_every_window_and_channel_is_evaluated_once():
    for joint in (False, True):
        task = _task(joint)
        chosen = np.concatenate(list(task.chunks("test", 13)))
        assert chosen.tolist() == list(range(len(task.windows["test"]) * (1 if joint else 3)))


def test_training_draws_every_window_before_any_twice():
    task = _task()
    count = len(task.windows["train"]) * 3
    stream = task.training(50, seed=1)
    seen = [next(stream) for _ in range(count // 50)]
    keys = {(int(s), float(c)) for batch in seen for s, c in zip(batch.series, batch.cutoff, strict=True)}
    assert len(keys) == len(seen) * 50


def test_thinned_windows_show_only_what_is_kept_and_ask_for_everything():
    task = _task(condition="random-50")
    chosen = np.arange(30)
    batch, whole = task.batch("test", chosen), _task().batch("test", chosen)
    assert batch.future_observed.all()
    np.testing.assert_array_equal(batch.future_times, whole.future_times)
    origin = task.windows["test"].origins[chosen // 3]
    for row in range(30):
        kept = task.keep[origin[row] - 16 : origin[row], chosen[row] % 3]
        if kept.sum() < 2:
            continue
        mask = batch.past_mask[row, 0].numpy()
        assert mask.sum() == kept.sum()
        assert not mask[kept.sum() :].any(), "padding stands on the right"
        expected = whole.past_times[row, 0].numpy()[kept]
        np.testing.assert_array_equal(batch.past_times[row, 0].numpy()[mask], expected)
        assert (batch.past_times[row, 0].numpy()[~mask] == expected[-1]).all()
        values = batch.unscale(batch.past_values.numpy())[row, 0][mask]
        truth = whole.unscale(whole.past_values.numpy())[row, 0][kept]
        np.testing.assert_allclose(values, truth, atol=1e-5)


@pytest.mark.parametrize("joint", [False, True])
def test_errors_do_not_depend_on_the_batch(joint, monkeypatch):
    task = _task(joint, "random_cells-50")
    torch.manual_seed(0)
    network = ContinuousTransformer(d_model=16, num_layers=1, num_heads=2).build(task.spec)
    found = []
    for size in (1000, 31):
        monkeypatch.setattr("experiments.benchmarks.work.EVALUATED", size)
        found.append(evaluate(network, task, "test").pooled()["mse"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_last_value_through_the_harness_is_last_value_on_arrays():
    task = _task()
    cut, errors = task.windows["test"], Errors()
    errors.add(np.repeat(cut.past()[:, -1:], 4, axis=1), cut.future())
    for joint in (False, True):
        found = evaluate(LastValue().build(_task(joint).spec), _task(joint), "test")
        assert found.pooled()["mse"] == pytest.approx(errors.pooled()["mse"], rel=1e-6)


def test_anchors_as_models_reach_the_published_numbers_through_the_harness(shared_data):
    published = {"last": ("1.2944", "0.7132"), "season": ("0.5122", "0.4333")}
    for name, config in (("last", LastValue()), ("season", SeasonalNaive(period=24.0))):
        task = row_task("etth1", 96, 96, scaler=config.scaler)
        found = evaluate(config.build(task.spec), task, "test").pooled()
        assert tuple(f"{found[m]:.4f}" for m in ("mse", "mae")) == published[name]


def test_records_are_asked_at_the_times_of_the_protocol():
    task = record_task("physiome_epidemic", scaler="standard", series=8, observations=30)
    assert {part: len(asked) for part, asked in task.asked.items()} == {"train": 4, "val": 2, "test": 2}
    batch = task.batch("test", np.arange(2))
    assert (batch.past_times[batch.past_mask] <= 0).all()
    assert (batch.future_times[batch.future_mask] > 0).all()
    assert batch.past_values.shape[1] == 3
    observed = batch.future_observed & batch.future_mask[:, None]
    assert observed.any(1)[batch.future_mask].all(), "every asked time was observed in some variable"


def test_members_are_averaged_and_the_first_is_the_run_of_one():
    task = _task(joint=True)
    models = [LastValue().build(task.spec), SeasonalNaive(period=24.0).build(task.spec)]
    batch = task.batch("test", np.arange(3))
    apart = [model.head.mean(model(batch)) for model in models]
    assert torch.allclose(Members(models)(batch), (apart[0] + apart[1]) / 2)
    load = {"series": 8, "observations": 30}
    run = Run("physiome_epidemic", "linear", load=load, training={"max_steps": 2, "accelerator": "cpu"})
    one, two = (do(replace(run, members=count)) for count in (1, 2))
    assert one[0]["value"] != two[0]["value"] and one[0]["params"] * 2 == two[0]["params"]
    assert run.hash == replace(run, members=1).hash != replace(run, members=2).hash
    with pytest.raises(ValueError, match="averaged for the means"):
        replace(run, members=2, point="median").check()


@pytest.mark.parametrize("moved", [-0.1, 1.0, 2, "a", float("nan")])
def test_a_share_of_moved_windows_that_is_none_is_refused_before_anything_is_loaded(moved):
    with pytest.raises(ValueError, match=r"`load.moved` must be a number of at least 0 and below 1"):
        record_task("ushcn", scaler="standard", moved=moved)


def test_moved_windows_stand_beside_the_protocols_in_training_alone():
    plain, mixed = (
        record_task("physiome_epidemic", scaler="standard", series=8, observations=30, moved=moved)
        for moved in (0.0, 0.5)
    )
    assert mixed.moved is not None and plain.moved is None
    hours = mixed.stores["train"].source.clock.seconds(mixed.moved.cutoff)
    assert len(np.unique(hours.round(3))) == 10 and not np.isclose(hours, 100.0).any()
    batch, own = next(mixed.training(4, 0)), next(plain.training(2, 0))
    assert torch.equal(batch.cutoff[:2], own.cutoff) and torch.equal(batch.series[:2], own.series)
    assert (batch.past_times[batch.past_mask] <= 0).all()
    asked = batch.future_times[batch.future_mask]
    assert (asked > 0).all() and (asked <= 100.0 + 1e-4).all()
    for part in ("val", "test"):
        assert np.array_equal(mixed.asked[part].cutoff, plain.asked[part].cutoff)
        assert np.array_equal(mixed.asked[part].times, plain.asked[part].times)


def _row(**changes: object) -> dict[str, object]:
    run = Run("etth1", "last_value", lookback=96, horizon=96, seed=int(str(changes.pop("seed", 0))))
    row = dict.fromkeys(rows.COLUMNS, "")
    row |= {
        "data": "etth1",
        "model": "last_value",
        "lookback": 96,
        "horizon": 96,
        "condition": "all",
        "seed": run.seed,
    }
    row |= {
        "split": "test",
        "metric": "mse",
        "value": "1.0",
        "config_hash": run.hash,
        "config": run.as_json(),
    }
    row |= dict.fromkeys(("fit_seconds", "predict_seconds", "peak_mib", "params"), 1.0)
    return row | changes


def test_rows_are_read_back_and_a_line_that_was_cut_off_is_done_again(tmp_path):
    path = tmp_path / "runs.csv"
    rows.append(path, [_row(seed=0), _row(seed=0, metric="mae")])
    with path.open("a") as file:
        file.write("etth1,last_value,,96,96,al")
    assert len(rows.read(path)) == 2
    rows.append(path, [_row(seed=1)])
    assert len(rows.read(path)) == 3
    assert rows.done(path) == {_row(seed=0)["config_hash"], _row(seed=1)["config_hash"]}


def test_a_row_with_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(ValueError, match="surprise"):
        rows.append(tmp_path / "runs.csv", [_row(surprise=1)])
    assert not (tmp_path / "runs.csv").exists()


def test_columns_hold_those_that_outside_checks_read():
    promised = (
        "data, model, mixer, lookback, horizon, condition, seed, split, metric, value, fit_seconds, "
        "predict_seconds, peak_mib, params, config_hash, commit, versions, device"
    )
    assert set(promised.split(", ")) <= set(rows.COLUMNS)


def test_a_run_goes_to_the_results_and_the_ledger_once_and_is_not_done_again(tmp_path, capfd):
    results = tmp_path / "runs.csv"
    command = ["--data", "sines", "--model", "last_value", "--load", "series=3", "observations=30"]
    command += ["--results", str(results)]
    assert main(command) == 0
    table = rows.read(results)
    assert set(table["metric"]) >= {"mae", "smape", "mase"}
    assert (table["split"] == "test").all()
    assert np.isfinite(table["value"]).all()
    entry = json.loads(results.with_suffix(".ledger.jsonl").read_text())
    assert entry["config_hash"] == table["config_hash"].iloc[0]
    before = results.read_bytes()
    assert main(command) == 0
    assert "1 of them done before" in capfd.readouterr().err
    assert results.read_bytes() == before


def test_a_wrong_command_says_what_is_wrong_and_exits_with_two(capsys):
    assert main(["--data", "etth1"]) == 2
    assert main(["--data", "etth1", "--model", "last_value"]) == 2
    assert main(["--data", "sines", "--model", "last_value", "--set", "d_model"]) == 2
    assert "FIELD=VALUE" in capsys.readouterr().err


def _results(validation: tuple[float, float], test: tuple[float, float]) -> pd.DataFrame:
    """Two look-backs, two seeds, validation and test."""
    made = []
    for lookback, val, tested in zip((96, 336), validation, test, strict=True):
        for seed in (0, 1):
            run = Run("etth1", "last_value", lookback=lookback, horizon=96, seed=seed)
            for split, value in (("val", val), ("test", tested)):
                made.append(_row(seed=seed, split=split, value=value + seed / 100, lookback=lookback))
                made[-1] |= {"config": run.as_json(), "config_hash": run.hash}
    return pd.DataFrame(made)


def test_the_setting_shown_is_the_best_on_validation_and_not_on_test():
    lines = report.settings(_results(validation=(0.5, 0.4), test=(0.3, 0.7)))
    (best,) = report.chosen(lines).to_dict("records")
    assert json.loads(best["setting"])["lookback"] == 336
    assert best["test mse/mean"] == pytest.approx(0.705)
    assert best["test mse/count"] == 2


def test_forecasts_averaged_over_networks_have_a_line_of_their_own_that_says_so():
    made = []
    for members, value in ((1, 0.5), (3, 0.4)):
        run = Run("physionet2012", "linear", members=members)
        for split in ("val", "test"):
            made.append(_row(split=split, value=value) | {"data": "physionet2012", "model": "linear"})
            made[-1] |= {"config": run.as_json(), "config_hash": run.hash, "horizon": 0, "lookback": 0}
    (text,) = report._records(report.chosen(report.settings(pd.DataFrame(made))), {"source": ""})
    assert "| linear | 0.50000 |" in text
    assert "| linear, mean of 3 networks | 0.40000 |" in text


def test_the_chosen_settings_are_a_plan_that_asks_for_the_test_part(tmp_path):
    lines = report.settings(_results(validation=(0.5, 0.4), test=(0.3, 0.7)))
    path = tmp_path / "plan.toml"
    path.write_text(report.as_plan(lines, [0, 1, 2]))
    runs = read_plan([path])
    assert [(run.lookback, run.seed, run.test) for run in runs] == [
        (336, 0, True),
        (336, 1, True),
        (336, 2, True),
    ]


def test_tables_go_between_the_markers_and_leave_the_rest_as_it_was(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "runs.csv"
    readme.write_text("before\n<!-- tables begin -->\nold\n<!-- tables end -->\nafter\n")
    _results((0.5, 0.4), (0.3, 0.7)).to_csv(results, index=False)
    assert report.main([str(results), "--readme", str(readme), "--figures", str(tmp_path / "figures")]) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text
    assert "| last_value | 0.705 ± 0.007 | 0.705 |" in text
    assert "| *PatchTST* | 0.377 | 0.377 |" in text


def test_a_readme_without_markers_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="has no lines"):
        report.write(tmp_path / "README.md", "x")


def test_peers_see_the_windows_that_our_models_see():
    from experiments.benchmarks.peers.windows import Shown

    for joint in (False, True):
        task = _task(joint)
        data = Shown(task.windows, None, joint)
        chosen = np.arange(40)
        past, future = data.batch("test", chosen)
        batch = task.batch("test", chosen)
        np.testing.assert_allclose(batch.unscale(batch.past_values.numpy()).swapaxes(1, 2), past, atol=1e-5)
        np.testing.assert_allclose(
            batch.unscale(batch.future_values.numpy()).swapaxes(1, 2), future, atol=1e-5
        )
        assert data.count("test") == len(task.windows["test"]) * task.per_window


def test_thinned_windows_come_back_to_the_grid_by_straight_lines():
    from experiments.benchmarks.peers.windows import Shown, interpolate

    values = np.array([[5.0, 1.0, 9.0, 9.0, 4.0, 7.0]])
    keep = np.array([[False, True, False, False, True, False]])
    np.testing.assert_allclose(interpolate(values, keep), [[1.0, 1.0, 2.0, 3.0, 4.0, 4.0]])
    task = _task(condition="random-50")
    chosen = np.arange(60)
    past, _ = Shown(task.windows, task.keep, False).batch("test", chosen)
    batch = task.batch("test", chosen)
    for row in range(60):
        mask = batch.past_mask[row, 0].numpy()
        seen = batch.unscale(batch.past_values.numpy())[row, 0][mask]
        times = batch.past_times[row, 0].numpy()[mask]
        np.testing.assert_allclose(past[row, :, 0], np.interp(np.arange(-15, 1), times, seen), atol=1e-5)


def test_every_peer_has_a_list_of_what_it_needs():
    from experiments.benchmarks.peers.make import HERE, peers

    assert peers() == ["neuralforecast", "prophet", "torchcde"]
    assert all((HERE / f"{name}.txt").read_text().count("==") == 1 for name in peers())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes in /proc")
def test_a_runner_that_is_ended_ends_what_it_started_and_goes_on_later(tmp_path):
    import signal
    import subprocess
    import sys
    import time

    results = tmp_path / "runs.csv"
    command = [
        sys.executable,
        "-m",
        "experiments.benchmarks.run",
        "--data",
        "sines",
        "--results",
        str(results),
    ]
    command += ["--model", "last_value", "--load", "series=3", "observations=30", "--seed", "0", "1"]
    root = Path(report.__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) as runner:
        assert runner.stderr is not None
        runner.stderr.readline()  # the plan is read, the first run is started
        time.sleep(1.0)
        children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(20) == 143
    time.sleep(0.5)
    assert children
    assert not any(_alive(int(child)) for child in children)
    assert len(rows.done(results)) < 2


def _alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
