import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ctsattn.data.collate import Collator
from ctsattn.data.scalers import ENOUGH, LOGS, OWN_FLOOR, SCALERS, ScaleLaw, safe_scale
from ctsattn.data.task import infer_task
from tests.data.frames import COMMON, read, series
from tests.data.test_windows import ask


def padded(rows):
    length = max(map(len, rows))
    values, mask = np.zeros((len(rows), length)), np.zeros((len(rows), length), bool)
    for number, row in enumerate(rows):
        values[number, : len(row)], mask[number, : len(row)] = row, True
    return values, mask


ORACLES = {
    "standard": lambda x: (np.mean(x), np.std(x)),
    "last": lambda x: (x[-1], np.std(x)),
    "mean_abs": lambda x: (0.0, np.mean(np.abs(x))),
    "none": lambda x: (0.0, 1.0),
    "channel": lambda x: (0.0, 1.0),
    "log": lambda x: (np.mean(x), np.std(x)),
    "soft_log": lambda x: (np.mean(x), np.std(x)),
    "robust": lambda x: (np.median(x), np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349 or np.std(x)),
}


@pytest.mark.parametrize("name", SCALERS)
@given(rows=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), min_size=1, max_size=4))
@COMMON
def test_each_scaler_is_its_definition_on_what_is_observed(name, rows):
    loc, scale = SCALERS[name](*padded(rows))
    expected = np.array([ORACLES[name](np.array(row)) for row in rows])
    size = 1e-9 * (1 + max(np.abs(row).max() for row in rows))
    np.testing.assert_allclose(loc, expected[:, 0], atol=size)
    np.testing.assert_allclose(scale, expected[:, 1], atol=size)


@pytest.mark.parametrize("name", SCALERS)
def test_scalers_give_zero_for_nothing(name):
    loc, scale = SCALERS[name](np.full((1, 3), np.nan), np.zeros((1, 3), bool))
    assert loc.tolist() == [0.0] and scale[0] in (0.0, 1.0)


def test_a_small_spread_on_a_high_level_is_exact():
    values = 1e9 + np.array([[0.0, 1.0, 2.0, 3.0]])
    _, scale = SCALERS["standard"](values, np.ones((1, 4), bool))
    assert scale[0] == np.std([0.0, 1.0, 2.0, 3.0])


AWKWARD = {
    "constant": [5.0] * 9,
    "zeros": [0.0] * 9,
    "constant 1e9": [1e9] * 9,
    "one": [3.0],
    "two": [3.0, 4.0],
    "huge": list(1e9 * (1 + np.arange(9.0))),
    "tiny": list(1e-9 * np.arange(9.0)),
    "near the limit": [1e99, -1e99, 3e99],
    "flat then a jump": [0.0] * 8 + [1e9],
    "rounding noise": list(1.0 + 1e-16 * np.arange(9)),
    "denormal": [5e-324, 0.0, 5e-324],
}


@pytest.mark.parametrize("name", SCALERS)
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_series_are_scaled_to_finite_numbers_and_come_back(name, alone, kind):
    frame = pd.DataFrame({"unique_id": "odd", "ds": np.arange(float(len(AWKWARD[kind]))), "y": AWKWARD[kind]})
    frame = frame if alone else pd.concat([frame, series()])
    schema, store = read(frame)
    batch = Collator(schema, infer_task(store, schema), name)(store, ask(store, store.end, [1.0]))
    assert (batch.scale > 0).all() and np.isfinite(batch.scale.numpy()).all()
    assert np.isfinite(batch.past_values.numpy()).all()
    if name == "none" and kind == "near the limit":
        return  # the caller chose units that float32 cannot hold
    back = batch.unscale(batch.past_values.numpy())[0, 0][batch.past_mask[0, 0].numpy()]
    # what has the units of a channel is exact to float32 in these units
    exact = frame["y"].abs().max() if name == "channel" else max(map(abs, AWKWARD[kind]))
    if name in LOGS:  # the logarithm is
        exact *= 1 + batch.loc.abs().max().item() + batch.scale.max().item()
    np.testing.assert_allclose(back, AWKWARD[kind], atol=1e-300 + 3e-7 * exact, rtol=0)


@given(
    arrays(np.float64, st.integers(ENOUGH, 20), elements=st.floats(-1e3, 1e3)),
    st.sampled_from([100.0, 1e6, 1e-3]),
)
@COMMON
def test_scaled_values_do_not_depend_on_the_units(values, factor):
    frame = pd.DataFrame(
        {"ds": np.arange(float(len(values))), "y": values + 2000 * (np.arange(len(values)) % 2)}
    )
    schema, store = read(frame)
    _, other = read(frame.assign(y=frame["y"] * factor))
    collate = Collator(schema, infer_task(store, schema))
    one, two = (collate(s, ask(s, s.end, [1.0])) for s in (store, other))
    np.testing.assert_allclose(two.past_values, one.past_values, atol=1e-6)
    np.testing.assert_allclose(two.scale, factor * one.scale, rtol=1e-9)


def test_the_scale_of_a_quiet_window_is_at_least_a_tenth_of_the_series_own():
    y = np.concatenate([np.sin(np.arange(100.0)), np.zeros(60)])
    schema, store = read(pd.DataFrame({"ds": np.arange(160.0), "y": y}))
    spec = dataclasses.replace(infer_task(store, schema), lookback=40.0, time_unit=1.0)
    batch = Collator(schema, spec)(store, ask(store, store.end, [1.0]))
    assert batch.scale[0, 0].item() == pytest.approx(OWN_FLOOR * np.std(y), rel=1e-9)


def test_the_spread_of_few_observations_is_not_believed_alone():
    frame = pd.concat(
        [series(), pd.DataFrame({"unique_id": "new", "ds": [1.0, 2.0], "y": [1.0, 1.0 + 1e-6]})]
    )
    schema, store = read(frame)
    batch = Collator(schema, infer_task(store, schema))(store, ask(store, store.end, [1.0]))
    (law,) = schema.laws
    assert batch.scale[3, 0].item() == law(np.array([1.0 + 5e-7]))[0] > 0.1


@pytest.mark.parametrize(
    ("name", "centres"), [("standard", True), ("robust", True), ("last", True), ("mean_abs", False)]
)
def test_a_window_that_shows_nothing_is_scaled_by_the_usual_level_and_spread(name, centres):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "unique_id": np.repeat(["a", "b", "c"], 40),
            "ds": np.tile(np.arange(40.0), 3),
            "y": rng.normal(size=120),
        }
    )
    frame["y"] += frame["unique_id"].map({"a": 49.0, "b": 50.0, "c": 51.0})
    cold = pd.DataFrame({"unique_id": ["cold"], "ds": [5.0], "y": [np.nan]})
    schema, store = read(pd.concat([frame, cold]))
    batch = Collator(schema, infer_task(store, schema), name)(store, ask(store, store.end, [1.0]))
    level = frame.groupby("unique_id")["y"].mean().median()
    assert batch.loc[3, 0].item() == pytest.approx(level if centres else 0.0)
    if name != "mean_abs":
        assert batch.scale[3, 0].item() == pytest.approx(1.0, abs=0.2)
    assert not batch.past_mask[3].any() and not batch.past_values[3].any()


def test_the_more_observations_the_more_their_spread_is_believed():
    count = np.array([1, 3, 6, 15, 16, 50])
    nothing, tiny = np.zeros(6), np.full(6, 1e-6)
    scale = safe_scale(tiny, nothing, count, nothing, np.ones(6))
    np.testing.assert_allclose(scale, [1.0, 1.0, 0.25, 0.04, 1e-6, 1e-6])


def test_a_scale_is_one_when_nothing_tells_another():
    nothing = np.zeros(1)
    assert safe_scale(nothing, nothing, np.zeros(1, int), nothing, nothing).tolist() == [1.0]


def test_the_running_scale_is_the_spread_up_to_each_observation_and_blind_to_other_series():
    frame = series(lengths=(30, 20))
    frame.loc[frame["unique_id"] == "s0", "y"] *= 1e12
    frame.loc[frame["unique_id"] == "s1", "y"] += 1e9
    _, store = read(frame)
    values = np.split(store.past.values, store.past.indptr[1:-1])
    expected = [np.std(v[: i + 1]) for v in values for i in range(len(v))]
    np.testing.assert_allclose(store.running_scale, expected, rtol=1e-6, atol=1e-12)


def test_the_law_of_scales_follows_levels_that_differ_by_factors():
    level = np.array([1.0, 10.0, 100.0, 1e4, 1e6])
    law = ScaleLaw.learn(level, 0.2 * level)
    np.testing.assert_allclose(law(np.array([50.0, 1e5])), [10.0, 2e4], rtol=0.2)


def test_the_law_of_scales_ignores_levels_that_are_alike():
    rng = np.random.default_rng(0)
    law = ScaleLaw.learn(rng.normal(size=30), 1 + 0.1 * rng.normal(size=30))
    np.testing.assert_allclose(law(np.array([0.001, 0.5, 3.0])), 1.0, rtol=0.2)


@pytest.mark.parametrize(("mean", "scale"), [([0.0, 0.0], 1.0), ([7.0, 7.0, 9.0], 7.0), ([], 1.0)])
def test_the_law_of_constant_series_is_their_level_or_one(mean, scale):
    law = ScaleLaw.learn(np.array(mean), np.zeros(len(mean)))
    assert law(np.array([123.0]))[0] == pytest.approx(scale)


def test_an_unknown_scaler_is_refused():
    schema, store = read(series())
    with pytest.raises(ValueError, match=r"Unknown scaler 'standart'\. Known are standard, last, robust"):
        Collator(schema, infer_task(store, schema), "standart")


def test_the_channel_scaler_is_the_mean_and_deviation_of_all_training_values():
    y = np.array([1.0, 2, 3, 10, 10, 40, 10, 10])
    schema, store = read(
        pd.DataFrame({"unique_id": list("aaabbbbb"), "ds": [0.0, 1, 2, 0, 1, 2, 3, 4], "y": y})
    )
    batch = Collator(schema, infer_task(store, schema), "channel")(store, ask(store, store.end, [1.0]))
    np.testing.assert_allclose(batch.loc.numpy(), np.full((2, 1), y.mean()))
    np.testing.assert_allclose(batch.scale.numpy(), np.full((2, 1), y.std()))
    np.testing.assert_allclose(batch.past_values[0, 0, :3].numpy(), (y[:3] - y.mean()) / y.std(), rtol=1e-6)


def test_the_channel_scaler_only_centres_a_constant():
    schema, _ = read(pd.DataFrame({"ds": np.arange(6.0), "y": 7.0}))
    (law,) = schema.laws
    assert (law.centre, law.spread) == (7.0, 1.0)


def test_the_log_scaler_sees_logarithms_and_gives_values_back():
    y = 1000.0 * np.exp(np.sin(np.arange(40.0)))
    schema, store = read(pd.DataFrame({"ds": np.arange(40.0), "y": y}))
    spec = dataclasses.replace(infer_task(store, schema), lookback=30.0, time_unit=1.0)
    collate = Collator(schema, spec, "log")
    batch = collate(store, ask(store, store.end - 2.0, [1.0, 2.0]), truth=True)
    seen = y[:38][-batch.past_values.shape[-1] :]
    logs = np.arcsinh(seen / batch.unit.numpy()[0, 0])
    np.testing.assert_allclose(batch.past_values[0, 0].numpy(), (logs - logs.mean()) / logs.std(), atol=1e-5)
    np.testing.assert_allclose(batch.unscale(batch.future_values.numpy())[0, 0], y[38:], rtol=1e-5)
    # a scaled unit in the caller's, to first order
    ends = batch.unscale(np.array([[[-0.005, 0.005]]]))[0, 0]
    assert batch.spread[0, 0] == pytest.approx((ends[1] - ends[0]) / 0.01, rel=1e-3)


def test_the_soft_logarithm_bends_at_the_median_size():
    y = np.concatenate([np.arange(1.0, 10.0), [0.0, 0.0, -500.0, 9000.0]])
    schema, store = read(pd.DataFrame({"ds": np.arange(13.0), "y": y}))
    batch = Collator(schema, infer_task(store, schema), "soft_log")(store, ask(store, store.end, [1.0]))
    assert batch.unit.numpy().item() == schema.laws[0].middle == np.median(np.abs(y[y != 0]))
    back = batch.unscale(batch.past_values.numpy())[0, 0]
    np.testing.assert_allclose(back, y[-len(back) :], rtol=1e-5, atol=1e-5)


def test_a_law_that_was_saved_before_there_was_a_median_is_read():
    assert ScaleLaw(**{"log_factor": 1.0, "unit": 2.0}).middle == 1.0


def test_logarithms_bend_to_a_line_far_below_the_usual_sizes():
    schema, store = read(series())
    batch = Collator(schema, infer_task(store, schema), "log")(store, ask(store, store.end, [1.0]))
    (law,) = schema.laws
    assert law.unit < np.abs(series()["y"]).max()
    zero = dataclasses.replace(batch, loc=batch.loc * 0, scale=batch.scale * 0 + 1)
    np.testing.assert_allclose(
        zero.unscale(np.array([[[-1e-4, 0.0, 1e-4]]]))[0, 0],
        [-1e-4 * law.unit, 0, 1e-4 * law.unit],
        rtol=1e-6,
    )


def test_a_value_far_beyond_the_scale_of_logarithms_stays_finite():
    schema, store = read(series())
    batch = Collator(schema, infer_task(store, schema), "log")(store, ask(store, store.end, [1.0]))
    assert np.isfinite(batch.unscale(np.array([[[1e6, -1e6]]] * len(batch)))).all()
