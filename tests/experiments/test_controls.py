"""The controls of the study: stacked networks, streams, switches, and the claims that read their rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.hypotheses import controls
from experiments.hypotheses.backbone import Backbone, Design, _counted
from experiments.hypotheses.claims import (
    h4_text,
    h6_switch,
    key_filter,
    positions,
    recall,
    sinks,
    smooth,
    text,
)
from experiments.hypotheses.control_figures import draw
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.run import COLUMNS, append
from experiments.hypotheses.stacked import Size, StackedNetwork
from experiments.hypotheses.stacked_training import Course, Trainer
from experiments.hypotheses.streams import Recall, Series, Text, rotary_ladder
from experiments.hypotheses.tasks import Shape, Task, Windows

SIZE = Size(d_model=16, num_layers=2, num_heads=2)
LINES = "to be, or not to be, that is the question: " * 80


def network(stream, seeds=(0, 1), mixer="softmax", size=SIZE) -> StackedNetwork:
    frequencies = rotary_ladder(size.head_dim)
    return StackedNetwork(seeds, size, stream.inputs, stream.outputs, frequencies, stream.tokens, mixer)


def trainer(stream, seeds=(0, 1), mixer="softmax", **changes) -> Trainer:
    course = Course(**{"steps": 12, "batch": 4, "learning_rate": 3e-3, "checks": 5, **changes})
    return Trainer(network(stream, seeds, mixer), stream, course, list(seeds))


def sines(clocks: int = 2, length: int = 120) -> Task:
    """Sines on an uneven clock, cut in time."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.5, 1.5, (clocks, length)), axis=1)
    flat, place = np.arange(clocks * length), np.tile(np.arange(length), clocks)
    borders = {"train": (10, 80), "val": (80, 95), "test": (95, length - 3)}
    cuts = {part: flat[(place >= a) & (place < b)] for part, (a, b) in borders.items()}
    return Task(
        "sines", Shape(8, 3), times.ravel(), np.sin(times).ravel(), np.arange(clocks + 1) * length, cuts
    )


@pytest.mark.parametrize("mixer", ["softmax", "continuous_unit", "trapezoid", "first_order", "key_filter"])
def test_a_stacked_network_is_causal(mixer):
    stream = Text(LINES, 12, "cpu")
    made, tokens = network(stream, mixer=mixer), torch.randint(stream.inputs, (2, 3, 12))
    times = torch.arange(12.0).expand(2, 3, 12)
    later = tokens.clone()
    later[..., 7:] = 0
    before, after = (made(x, times)[..., :7, :] for x in (tokens, later))
    torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(made(tokens, times)[..., 7:, :], made(later, times)[..., 7:, :])


def test_seeds_trained_together_are_the_seeds_trained_alone():
    stream = Text(LINES, 12, "cpu")
    together, alone = trainer(stream, (0, 1)), trainer(stream, (1,))
    for run in (together, alone):
        run.until(12)
    for both, one in zip(together.parameters, alone.parameters, strict=True):
        torch.testing.assert_close(both[1], one[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(together.parameters[0][0], together.parameters[0][1])


def test_arms_begin_with_the_same_weights_and_see_the_same_batches():
    stream = Text(LINES, 12, "cpu")
    first, second = trainer(stream, mixer="softmax"), trainer(stream, mixer="continuous_unit")
    assert torch.equal(first.picks, second.picks)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))
    assert not torch.allclose(first.loss("val"), second.loss("val"), rtol=1e-6)


def test_text_is_learned_and_its_parts_do_not_overlap():
    stream = Text(LINES, 12, "cpu", held=16)
    run = trainer(stream, steps=60, batch=16)
    begin, end = run.loss("val"), run.until(60)
    assert (end < 0.7 * begin).all()
    assert stream.borders["train"][1] == stream.borders["val"][0] < stream.borders["test"][0]
    assert stream.train_windows + 12 <= stream.borders["train"][1]


def test_a_switch_to_an_operator_with_parameters_of_its_own_is_refused():
    with pytest.raises(ValueError, match="Build the network with it"):
        network(Text(LINES, 12, "cpu")).switch("key_filter")


def test_every_seed_learns_a_key_filter_of_its_own():
    stream = Text(LINES, 12, "cpu")
    run = trainer(stream, mixer="key_filter")
    softmax = trainer(stream)
    torch.testing.assert_close(run.loss("val"), softmax.loss("val"))
    run.until(12)
    taps = run.network.layers[0].own["mixer_taps"]
    assert taps.shape == (2, 2, 8, 3)
    assert (taps - torch.tensor([0.0, 1.0, 0.0])).abs().amax(dim=(1, 2, 3)).min() > 1e-4
    assert not torch.allclose(taps[0], taps[1])


def test_recall_asks_for_each_key_again_and_the_value_that_came_with_it():
    stream = Recall(4, 16, 32, "cpu", held=8)
    codes = stream.codes["train"].numpy()
    assert codes.shape == (32, 16)
    for row in codes:
        told = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        assert len(told) == 4 and max(told) < 16 <= min(told.values())
        assert {key: told[key] for key in row[8::2]} == dict(zip(row[8::2], row[9::2], strict=True))
    assert not np.array_equal(codes[:8], stream.codes["val"].numpy())


def test_a_series_asks_for_what_follows_each_observation():
    task = sines()
    stream = Series(task, "cpu", held=5)
    seen = {}

    def read(features: torch.Tensor, clock: torch.Tensor) -> torch.Tensor:
        seen.update(features=features, clock=clock)
        return torch.zeros(*features.shape[:-1], 3)

    cut = 50
    errors = stream._errors(read, torch.tensor([[cut]]))[0, 0]
    values, times = task.values.astype(np.float32), task.times
    place = np.arange(cut - 7, cut + 1)
    np.testing.assert_allclose(seen["features"][0, 0, :, 0], values[place])
    np.testing.assert_allclose(
        seen["features"][0, 0, :, 1], np.log1p(times[place] - times[place - 1]), rtol=1e-5
    )
    np.testing.assert_allclose(
        seen["features"][0, 0, :, 4], np.log1p(times[place + 3] - times[place]), rtol=1e-5
    )
    np.testing.assert_allclose(seen["clock"][0, 0], times[place] - times[cut], atol=1e-5)
    np.testing.assert_allclose(errors[:, 1], (values[place] - values[place + 2]) ** 2, rtol=1e-4, atol=1e-6)
    assert all(len(stream.cuts[part]) <= most for part, most in (("val", 5), ("test", 20)))


def test_a_switch_to_the_same_operator_changes_nothing():
    run = trainer(Text(LINES, 12, "cpu"))
    run.until(6)
    saved = run.snapshot()
    stayed = run.until(12)
    run.restore(saved, 6)
    run.network.switch("softmax")
    torch.testing.assert_close(run.until(12), stayed)
    run.restore(saved, 6)
    run.reset_optimizer()
    assert not torch.allclose(run.until(12), stayed, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("mixer", ["softmax", "continuous_unit", "trapezoid", "first_order", "key_filter"])
def test_a_recorded_training_on_a_gpu_is_the_one_on_the_cpu(mixer):
    losses = []
    for device in ("cpu", "cuda"):
        stream = Text(LINES, 16, device, held=8)
        made = network(stream, mixer=mixer).to(device)
        run = Trainer(made, stream, Course(steps=12, batch=4, learning_rate=3e-3), [0, 1])
        losses.append([run.until(step) for step in (0, 6, 12)])
        if mixer == "softmax":
            run.network.switch("continuous_unit")
            run.restore(run.snapshot(), 6)
            losses[-1].append(run.until(12))
    for cpu, gpu in zip(*losses, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=5e-3, atol=1e-3)


def test_validation_steps_are_log_spaced_from_the_start_to_the_end():
    due = Course(steps=1000, batch=1, checks=40).due()
    assert due[:3] == [0, 1, 2] and due[-1] == 1000
    assert 30 <= len(due) <= 40
    assert max(np.diff(np.log(due[8:]))) < 0.35


def tiny_plan() -> Plan:
    """The plan with controls that take no time, on text and recall alone."""
    plan = Plan.read()
    table = plan.tables["controls"]
    kept = {
        "text": {**table["text"], "switches": [["A0", "A3"], ["A3", "A0"]]},
        "recall": {**table["recall"], "data": ["mqar-16"]},
    }
    return Plan({**plan.tables, "controls": kept}, "0" * 64)


def test_rows_of_the_controls_reach_their_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "read_text", lambda: LINES)
    plan, path = tiny_plan(), tmp_path / "rows.csv"
    for control in controls.controls(plan, smoke=True):
        for data in control.data:
            stream = controls.open_stream(plan, control, data, "cpu")
            for arm in control.arms:
                append(path, controls.rows_of(plan, control, stream, arm))
    rows = pd.read_csv(path)
    assert list(rows.columns) == COLUMNS
    taps = rows[rows["split"].eq("fitted")]
    assert set(taps["metric"]) == {"tap-before", "tap-own", "tap-after"} and set(taps["arm"]) == {"A5"}
    share, *_ = key_filter.test(rows, plan)
    assert abs(share.interval.percent()[0]) < 5  # 20 steps move the filter little
    assert len(text.test(rows, plan)) == 7 and "Bits per character" in text.notes(rows, plan)[0]
    assert len(recall.test(rows, plan)) == 3
    switches = h6_switch.losses(rows)
    assert set(switches["arm"]) == {"A0>A3", "A3>A0"}
    assert set(switches["condition"]) == {f"{p}-{s}" for p in (25, 50, 75) for s in ("kept", "reset")}
    assert switches["end"].notna().sum() == 2 * 2  # two switches, two seeds, at 50 % with the state kept
    drawn = draw(rows, tmp_path / "figures")
    assert [path.name for path in drawn] == ["loss_curves.png", "switches.png"]
    assert all(path.stat().st_size > 10_000 for path in drawn)
    assert smooth.test(rows, plan) == [] and h4_text.test(rows, plan) == []


def rows_of(experiment: str, losses: dict[str, float], data: str = "one", rng=None) -> pd.DataFrame:
    """Test rows and a curve of a control whose arms have given losses."""
    found = []
    for seed in range(5):
        noise = 1 + 0.001 * (rng.normal() if rng else 0.0)
        for arm, loss in losses.items():
            cell = {"experiment": experiment, "arm": arm, "data": data, "condition": "all", "horizon": 1}
            run = {**cell, "seed": seed, "metric": "nats"}
            found.append({**run, "split": "test", "step": 1200, "value": loss * noise})
            found += [
                {**run, "split": "val", "step": step, "value": loss * (1 + early) * noise}
                for step, early in ((0, 2.0), (10, 1.0), (100, 0.5), (1200, 0.0))
            ]
    return pd.DataFrame(found)


def test_claims_about_controls_find_the_effects_that_rows_have(rng):
    plan = Plan.read()
    losses = {"A0": 1.0, "A3": 0.9, "A0-none": 1.2, "A3-none": 1.0, "A2": 0.9}
    rows = pd.concat([rows_of("text", losses, rng=rng), rows_of("series", {**losses, "A3": 0.5}, rng=rng)])
    found = {finding.name: finding.interval.percent() for finding in text.test(rows, plan)}
    assert found["A0 without / with positions"] == pytest.approx((20, 20, 20), abs=1e-6)
    assert found["A3 / A0, test"][0] == pytest.approx(-10)
    assert found["A3 / A0, validation in the first 20 %"][0] == pytest.approx(-10)
    difference = h4_text.test(rows, plan)[-1].interval.percent()
    assert difference[0] == pytest.approx(100 * (0.5 / 0.9 - 1))


def test_the_jump_of_a_switch_is_the_share_of_the_gap_closed():
    moments = {"first": 4.0, "before": 2.0, "after": 2.1, "after-1": 2.05, "after-10": 1.9, "end": 1.5}
    moments |= {"stayed-1": 2.0, "stayed-10": 1.9, "stayed-end": 1.5}
    rows = pd.DataFrame(
        {
            "experiment": "switch",
            "arm": "A0>A3",
            "data": data,
            "condition": "50-kept",
            "horizon": 1,
            "seed": seed,
            "metric": name,
            "value": value,
        }
        for data in ("one", "two")
        for seed in range(5)
        for name, value in moments.items()
    )
    jump, recovery, against, end, *_ = h6_switch.test(rows, Plan.read())
    assert jump.interval.percent() == pytest.approx((5, 5, 5))
    assert recovery.interval.percent()[0] == pytest.approx(-5)
    assert against.interval.percent()[0] == end.interval.percent()[0] == pytest.approx(0)


def shown_windows() -> Windows:
    """Three windows, of which two are not full."""
    times = torch.tensor([[-9.0, -4.0, -1.0, 0.0]]).expand(3, 4).clone()
    mask = torch.tensor([[True] * 4, [True, True, True, False], [True, True, False, False]])
    future = torch.tensor([[1.0, 4.0]]).expand(3, 2)
    return Windows(times, torch.randn(3, 4) * mask, mask, future, torch.randn(3, 2), future > 0)


def test_counted_observations_are_read_as_if_they_were_one_apart():
    shown = shown_windows()
    place, ahead = _counted(shown.past_mask, shown.future_times)
    assert place.tolist() == [[-3, -2, -1, 0], [-2, -1, 0, 0], [-1, 0, 0, 0]]
    assert ahead.tolist() == [[1, 2]] * 3
    later = replace(shown, past_times=shown.past_times - 5.0 * (shown.past_times < -2))
    for kind, same in (("index", True), ("time", False)):
        torch.manual_seed(0)
        network = Backbone("continuous_unit", Design(16, 1, 2, 0.0, positions=kind), 4).eval()
        torch.nn.init.zeros_(network.embed.weight)  # tokens carry nothing, so that only positions are left
        torch.nn.init.normal_(network.encoder.layers[0].mixer.projections.to_key_value.weight)
        assert torch.allclose(network(shown), network(later), atol=1e-6) == same


def test_every_variant_of_the_plan_changes_the_network():
    plan, shown = Plan.read(), shown_windows()
    outputs = {}
    for variant in ["", *plan.tables["variants"]]:
        torch.manual_seed(0)
        design = replace(plan.design(variant), d_model=16, num_layers=1, num_heads=2, dropout=0.0)
        network = Backbone("continuous", design, 4).eval()
        torch.manual_seed(1)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        outputs[variant] = network(shown)
    changed = [name for name in outputs if name and not torch.allclose(outputs[name], outputs[""])]
    assert changed == list(plan.tables["variants"])


def test_axes_compare_an_arm_in_a_variant_with_itself(rng):
    plan, found = Plan.read(), []
    effects = {("sink-none", "A0"): 1.1, ("sink-none", "A4"): 1.0, ("main", "A0"): 1.0, ("main", "A4"): 1.0}
    for (variant, arm), loss in effects.items():
        for data in ("etth1", "asas"):
            for seed in range(4):
                cell = {"experiment": f"{variant}-thinned-time", "arm": arm, "data": data, "seed": seed}
                facts = {
                    "condition": "all",
                    "horizon": 1,
                    "metric": "mse",
                    "split": "test",
                    "irregularity": 0.0,
                }
                found.append({**cell, **facts, "value": loss})
    rows = pd.DataFrame(found)
    named = {finding.name: finding.interval.percent()[0] for finding in sinks.test(rows, plan)}
    assert named["sink-none / plan, A0"] == pytest.approx(10)
    assert named["sink-none / plan, A4"] == pytest.approx(0)
    assert named["A4 / A0, sink-none"] == pytest.approx(100 / 1.1 - 100)
    assert len(named) == 3
    assert not any("index" in finding.name for finding in positions.test(rows, plan))
