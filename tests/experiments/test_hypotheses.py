"""The study's pipeline, from a tiny generated task to the verdict."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch

from ctsattn.nn import MIXERS
from experiments.hypotheses import run, verdict
from experiments.hypotheses.backbone import Backbone, Design
from experiments.hypotheses.cells import cells
from experiments.hypotheses.claims import CLAIMS
from experiments.hypotheses.decisions import decide
from experiments.hypotheses.imputation import imputed
from experiments.hypotheses.plan import Plan, check_frozen, freeze
from experiments.hypotheses.rows import read
from experiments.hypotheses.tasks import DeviceTask, Shape, Task, Windows, condition_mask, under
from experiments.hypotheses.training import Schedule, Training, check_steps, predict, squared_error, train
from experiments.hypotheses.verdict import report

TINY = Design(d_model=8, num_layers=1, num_heads=2, dropout=0.0)


def sine_task(name: str = "sines", clocks: int = 3, length: int = 200) -> Task:
    """Sines of known period on a slightly uneven clock, cut in time into train, validation and test."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.uniform(0.5, 1.5, size=(clocks, length)), axis=1)
    values = np.sin(2 * np.pi * times / 12 + np.arange(clocks)[:, None])
    place = np.tile(np.arange(length), clocks)
    flat = np.arange(clocks * length)
    borders = {"train": (24, 120), "val": (120, 150), "test": (150, length - 4)}
    cuts = {part: flat[(place >= a) & (place < b)] for part, (a, b) in borders.items()}
    ends = np.arange(clocks + 1) * length
    return Task(name, Shape(24, 4), times.ravel(), values.ravel(), ends, cuts)


@pytest.fixture(scope="module")
def task() -> DeviceTask:
    return DeviceTask(sine_task(), "cpu")


def fit(task: DeviceTask, seeds: list[int], mixer: str = "softmax", imputes: bool = False, **changes):
    schedule = Schedule(**{"steps": 12, "batch": 8, "checks": 3, "learning_rate": 3e-3, **changes})
    validation = task.windows(torch.as_tensor(task.task.cuts["val"], device=task.device))
    return train(lambda: Backbone(mixer, TINY, 24, imputes), task, schedule, seeds, validation)


def test_a_window_shows_the_past_up_to_its_cutoff_and_asks_for_what_follows(task):
    shown = task.windows(torch.tensor([5, 230]))
    values, times = torch.as_tensor(task.task.values).float(), torch.as_tensor(task.task.times)
    assert shown.past_mask.sum(-1).tolist() == [6, 24]
    torch.testing.assert_close(shown.past_values[0, :6], values[:6])
    torch.testing.assert_close(shown.past_values[1], values[207:231])
    torch.testing.assert_close(shown.future_values[1], values[231:235])
    torch.testing.assert_close(shown.future_times[1], (times[231:235] - times[230]).float())
    assert (shown.past_times <= 0).all() and (shown.future_times > 0).all()


def test_thinning_moves_what_is_kept_to_the_front_and_leaves_the_future(task):
    shown = task.windows(torch.tensor([230]))
    keep = torch.zeros(1, 24, dtype=torch.bool)
    keep[0, [3, 10, 23]] = True
    thin = shown.thin(keep)
    assert thin.past_mask.sum() == 3
    torch.testing.assert_close(thin.past_values[0, :3], shown.past_values[0, [3, 10, 23]])
    torch.testing.assert_close(thin.past_times[0, :3], shown.past_times[0, [3, 10, 23]])
    assert (thin.past_times.diff() >= 0).all()
    assert thin.future_values is shown.future_values


def test_conditions_keep_about_their_share(task):
    shown = task.windows(torch.as_tensor(task.task.cuts["test"]))
    share = condition_mask("random-50", shown, seed=0).float().mean()
    assert 0.42 < share < 0.58
    assert condition_mask("all", shown, seed=0).all()


@pytest.mark.parametrize("arm", Plan.read().arms)
def test_eight_seeds_trained_together_are_eight_trainings(task, arm):
    plan = Plan.read()
    options = {"mixer": plan.arms[arm], "imputes": plan.imputes(arm), "thinned": True, "steps": 4}
    _, together = fit(task, list(range(8)), **options)
    for seed in (0, 7):
        _, alone = fit(task, [seed], **options)
        torch.testing.assert_close(together.curve[:, seed], alone.curve[:, 0], rtol=1e-4, atol=1e-6)
        for name, value in alone.parameters.items():
            torch.testing.assert_close(together.parameters[name][seed], value[0], rtol=1e-3, atol=1e-5)
    weights = together.parameters["embed.weight"]
    assert not torch.equal(weights[0], weights[1])


def test_each_seed_may_have_a_learning_rate_of_its_own(task):
    _, both = fit(task, [0, 0], learning_rate=(1e-3, 1e-2))
    for place, rate in enumerate((1e-3, 1e-2)):
        _, alone = fit(task, [0], learning_rate=rate)
        torch.testing.assert_close(both.curve[:, place], alone.curve[:, 0], rtol=1e-4, atol=1e-6)


def test_a_step_is_one_of_adamw(task):
    schedule = Schedule(steps=5, batch=8, checks=2, learning_rate=3e-3, clip=torch.inf)
    validation = task.windows(torch.as_tensor(task.task.cuts["val"]))
    run = Training(lambda: Backbone("softmax", TINY, 24), task, schedule, [0], validation)
    weight = torch.nn.Parameter(run.flat.detach().clone())
    optimizer = torch.optim.AdamW([weight], lr=1.0, weight_decay=schedule.weight_decay)
    for step in range(schedule.steps):
        weight.grad = torch.sin(weight.detach() * 50 + step)
        optimizer.param_groups[0]["lr"] = float(run.rates[step, 0])
        optimizer.step()
        run._descend(torch.sin(run.flat.detach() * 50 + step))
        run.now += 1
    torch.testing.assert_close(run.flat.detach(), weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("arm", Plan.read().arms)
def test_a_recorded_training_is_the_one_that_is_not_recorded(arm, monkeypatch):
    plan, on_gpu = Plan.read(), DeviceTask(sine_task(), "cuda")
    options = {"mixer": plan.arms[arm], "imputes": plan.imputes(arm), "thinned": True, "steps": 8}
    _, recorded = fit(on_gpu, [0, 1, 2], **options)
    monkeypatch.setattr("experiments.hypotheses.recording._captured", lambda work, state: Eager(work))
    _, eager = fit(on_gpu, [0, 1, 2], **options)
    _, on_cpu = fit(DeviceTask(sine_task(), "cpu"), [0, 1, 2], **options)
    torch.testing.assert_close(recorded.curve, eager.curve, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(recorded.curve, on_cpu.curve, rtol=2e-3, atol=1e-5)


class Eager:
    """Stands in for a captured graph: does the work at every replay."""

    def __init__(self, work):
        self.replay = work


def test_a_causal_encoder_needs_no_mask_for_padding_on_the_right(task):
    shown = under("random-50", task.windows(torch.as_tensor(task.task.cuts["test"])))
    for arm, mixer in Plan.read().arms.items():
        torch.manual_seed(0)
        network = Backbone(mixer, TINY, 24).eval()
        without = network(shown)
        network.is_causal = False  # only says that the mask is handed on
        torch.testing.assert_close(without, network(shown), msg=f"arm {arm}", rtol=1e-4, atol=1e-5)


def test_imputation_puts_values_on_straight_lines_and_holds_the_last():
    times = torch.tensor([[-8.0, -6.0, -2.0, -2.0, -2.0]])
    values = torch.tensor([[0.0, 2.0, -2.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False, False]])
    nothing = torch.zeros(1, 1)
    grid = imputed(Windows(times, values, mask, nothing, nothing, nothing.bool()))
    torch.testing.assert_close(grid.past_times, torch.tensor([[-8.0, -6.0, -4.0, -2.0, 0.0]]))
    torch.testing.assert_close(grid.past_values, torch.tensor([[0.0, 2.0, 0.0, -2.0, -2.0]]))
    assert grid.past_mask.all()


def test_misrecorded_clocks_change_times_alone_and_keep_their_order(task):
    shown = task.windows(torch.as_tensor(task.task.cuts["test"]))
    wrong = under("clock-30", shown)
    torch.testing.assert_close(wrong.past_values, shown.past_values)
    assert not torch.allclose(wrong.past_times, shown.past_times)
    assert (wrong.past_times.diff() >= 0).all() and (wrong.past_times <= 0).all()


def test_training_learns_and_keeps_the_best_step(task):
    skeleton, fitted = fit(task, [0, 1], steps=80, batch=32)
    assert (fitted.curve[-1] < 0.7 * fitted.curve[0]).all()
    shown = task.windows(torch.as_tensor(task.task.cuts["val"]))
    error = squared_error(predict(skeleton, fitted.parameters, fitted.buffers, shown), shown).mean(-1)
    torch.testing.assert_close(error, fitted.curve.min(0).values, rtol=1e-4, atol=1e-6)


def test_the_shuffled_control_shows_the_same_values_in_one_wrong_order(task):
    control = DeviceTask(task.task.shuffle(), "cpu")
    plain, wrong = (t.windows(torch.tensor([230, 240])) for t in (task, control))
    torch.testing.assert_close(wrong.past_values.sort(-1).values, plain.past_values.sort(-1).values)
    assert not torch.allclose(wrong.past_values, plain.past_values)
    torch.testing.assert_close(wrong.past_times, plain.past_times)
    torch.testing.assert_close(wrong.future_values, plain.future_values)


def test_every_arm_of_the_plan_is_a_mixer_and_every_contrast_names_arms():
    plan = Plan.read()
    assert set(plan.arms.values()) <= set(MIXERS)
    for contrast in plan.tables["contrasts"]:
        assert {contrast["arm"], contrast["baseline"]} <= set(plan.arms)
    assert len(plan.tables["data"]) >= 12
    assert len(plan.tables["study"]["seeds"]) >= 8


def test_all_arms_train_on_the_same_batches_and_have_about_as_many_parameters():
    plan = Plan.read()
    sizes = {
        arm: sum(p.numel() for p in Backbone(mixer, plan.design(), 96).parameters())
        for arm, mixer in plan.arms.items()
    }
    attention = [sizes[arm] for arm in ("A0", "A1", "A2", "A3", "A4")]
    assert len(set(attention)) == 1
    assert sizes["A5"] - sizes["A0"] < 0.02 * sizes["A0"]


def test_a_frozen_plan_cannot_be_changed_in_silence(tmp_path):
    plan, record = tmp_path / "plan.toml", tmp_path / "frozen.json"
    plan.write_text("a = 1\n")
    with pytest.raises(ValueError, match="not frozen yet"):
        check_frozen(Plan.read(plan), record)
    entry = freeze(plan, record)
    assert freeze(plan, record) == entry
    check_frozen(Plan.read(plan), record)
    plan.write_text("a = 2\n")
    with pytest.raises(ValueError, match="stay closed"):
        check_frozen(Plan.read(plan), record)
    with pytest.raises(ValueError, match="does not change"):
        freeze(plan, record)


def test_without_rows_the_verdict_says_in_one_line_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("experiments.hypotheses.verdict.check_frozen", lambda plan: None)
    monkeypatch.setattr("experiments.hypotheses.verdict.committed.read", lambda: read(tmp_path))
    assert verdict.main() == 2
    assert "no verdict yet: No rows in" in capsys.readouterr().err


@pytest.fixture(scope="module")
def smoke_rows(tmp_path_factory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("smoke")
    arguments = ["--smoke", "--device", "cpu", "--out", str(folder), "--done", str(folder)]
    assert run.main([*arguments, "--regime", "regular"]) == 0
    assert run.main(arguments) == 0  # goes on with what is missing
    assert run.main([*arguments, "--minutes", "0"]) == 0  # and finds nothing
    return read(folder)


def test_the_smoke_run_has_every_cell_condition_and_seed(smoke_rows):
    plan = Plan.read(run.SMOKE)
    keys = {cell.key for cell in cells(plan)}
    test = smoke_rows[smoke_rows["split"].eq("test")]
    assert set(test[run.KEY].itertuples(index=False, name=None)) == keys
    assert np.isfinite(test["value"]).all()
    native = len(plan.conditions("damped_oscillators"))
    regular = len(plan.conditions("sines"))
    count = sum(native if cell.data in plan.tables["native"] else regular for cell in cells(plan))
    assert len(test) == 2 * 2 * count  # two seeds, two measures
    assert len(smoke_rows[smoke_rows["split"].eq("val")]) == 2 * len(keys) * len(
        check_steps(plan.schedule("sines", "regular", 1e-3))
    )


def test_the_pipeline_runs_from_rows_to_a_verdict(smoke_rows, monkeypatch):
    plan = Plan.read(run.SMOKE)
    monkeypatch.setattr("experiments.hypotheses.verdict.committed.read", lambda: smoke_rows)
    assert all(f"## {name}" in report(plan) for name in CLAIMS)


def test_arms_that_are_the_same_are_equivalent(smoke_rows, monkeypatch):
    plan, names = Plan.read(run.SMOKE), ("A0", "A1", "A2", "A3", "A4", "A5", "A6")
    one = smoke_rows[smoke_rows["arm"].eq("A0")]
    copies = pd.concat([one.assign(arm=name) for name in names], ignore_index=True)
    monkeypatch.setattr("experiments.hypotheses.verdict.committed.read", lambda: copies)
    first, second, third, *_ = (x for x in report(plan).splitlines() if x.startswith("- "))
    assert "refuted" in first and "equivalent" in second and "equivalent" in third


def test_every_cell_of_the_plan_has_a_learning_rate_and_a_name_of_its_own():
    plan = Plan.read()
    everything = list(cells(plan))
    assert len({cell.key for cell in everything}) == len(everything)
    assert all(plan.rate(cell.plain, cell.regime) > 0 for cell in everything)


def test_the_verdict_follows_the_decision_table(rng):
    plan = Plan.read()
    names = {"C1": 0.0, "C2": -0.05, "C3": 0.0}
    findings = {name: finding_of(effect, rng) for name, effect in names.items()}
    first, second, third = decide(findings, plan)
    assert "refuted" in first and "better than softmax" in second and "measure is what counts" in third


def finding_of(effect: float, rng):
    from experiments.hypotheses.claims.finding import Finding

    index = pd.MultiIndex.from_product([[f"d{i}" for i in range(13)], ["c"], [24], range(8)])
    ratios = pd.DataFrame(index=index.set_names(["data", "condition", "horizon", "seed"])).reset_index()
    return Finding.of("C", ratios.assign(r=effect + 0.01 * rng.normal(size=len(ratios))))


def test_every_number_of_the_readme_stands_in_the_verdict():
    folder = run.RESULTS.parent
    number = re.compile(r"[+-]\d+\.\d\d(?= %| to|,|\.)")
    readme = (folder / "README.md").read_text(encoding="utf-8").split("## What is here")[0]
    known = set(number.findall((folder / "verdict.md").read_text(encoding="utf-8")))
    assert set(number.findall(readme)) <= known


def test_the_committed_verdict_is_that_of_the_committed_rows():
    plan = Plan.read()
    check_frozen(plan)
    committed = (run.RESULTS.parent / "verdict.md").read_text(encoding="utf-8")
    assert report(plan) == committed
