"""Behaviours 16 to 23 of the forecaster: training."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ParameterGrid

from ctsattn import Forecaster, models
from ctsattn.data.schema import DataWarning
from ctsattn.forecasting import Training, TrainingWarning, fitting
from ctsattn.models.linear import LinearNetwork

from .conftest import QUICK, TINY, assert_same_forecast, irregular, tiny

AHEAD = pd.to_datetime(["2024-01-12 03:00", "2024-01-13 17:30"])


def weights(model: Forecaster) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.fitted_.network.parameters()])


# scikit-learn's object rules


def test_init_only_stores_and_clone_copies_the_parameters():
    odd = {"horizon": object(), "training": "nonsense", "quantiles": [7], "random_state": "x"}
    model = Forecaster(**odd)
    assert all(getattr(model, name) is value for name, value in odd.items())
    copy = clone(tiny(random_state=3))
    assert copy.get_params(deep=False) == tiny(random_state=3).get_params(deep=False)
    assert "random_state=3" in repr(copy)


def test_parameters_of_configs_are_read_and_set_by_nested_names(df):
    model = Forecaster()
    assert model.get_params()["training__max_steps"] == Training().max_steps
    assert model.get_params()["model__d_model"] == models.ContinuousTransformer().d_model
    shared = model.set_params(training__max_steps=3, training__accelerator="cpu", model__d_model=8).training
    assert (shared.max_steps, model.model.d_model) == (3, 8)
    model.set_params(training__max_steps=4)
    assert shared.max_steps == 3  # configs are replaced, never changed
    again = Forecaster().set_params(**model.get_params())
    assert again.get_params() == model.get_params()
    assert Forecaster().set_params(**Forecaster().get_params()).training is None
    with pytest.raises(ValueError, match="Training has no option 'steps'; it has max_steps"):
        model.set_params(training__steps=3)
    with pytest.raises(ValueError, match="Forecaster has no parameter 'depth'"):
        model.set_params(depth=3)


def test_a_loop_over_a_parameter_grid_scores_each_candidate(df):
    grid = ParameterGrid({"training__max_steps": [1, 5], "model__d_model": [8]})
    scores = [tiny().set_params(**candidate).fit(df).score(df) for candidate in grid]
    assert len(set(scores)) == 2
    assert max(scores) <= 0


@pytest.mark.parametrize("method", ["predict", "sample", "save", "score", "impute", "calibrate", "plot"])
def test_methods_that_need_a_model_say_so_before_fit(method, df, tmp_path):
    arguments = {
        "sample": (2,),
        "save": (tmp_path / "m",),
        "score": (df,),
        "impute": (AHEAD,),
        "calibrate": (df,),
    }
    with pytest.raises(NotFittedError, match=r"Call `fit\(df\)` first"):
        getattr(tiny(), method)(*arguments.get(method, ()))
    assert not list(tmp_path.iterdir())


def test_fit_refuses_options_out_of_range_by_name(df):
    with pytest.raises(ValueError, match=r"`quantiles` must lie between 0 and 1, both excluded, but 1\.5"):
        tiny(quantiles=[0.5, 1.5]).fit(df)
    with pytest.raises(ValueError, match=r"`Training\.max_steps` must be an integer"):
        tiny(training=replace(QUICK, max_steps=-1)).fit(df)


# 16


def test_16_fit_returns_self_and_a_second_fit_starts_afresh(df, fitted):
    model = tiny()
    assert model.fit(irregular(seed=9)) is model
    model.fit(df)
    assert_same_forecast(model.predict(times=AHEAD), fitted.predict(times=AHEAD), atol=1e-6)


def test_16_warm_start_goes_on_from_the_present_weights(df, fitted):
    frozen = replace(QUICK, learning_rate=1e-12, weight_decay=0.0)
    model = pickle.loads(pickle.dumps(fitted)).set_params(training=frozen)
    torch.testing.assert_close(weights(model.fit(df, warm_start=True)), weights(fitted))
    moved = pickle.loads(pickle.dumps(fitted)).fit(df, warm_start=True)
    assert (weights(moved) - weights(fitted)).abs().max() > 1e-3
    assert (weights(model.fit(df)) - weights(fitted)).abs().max() > 1e-3


def test_16_partial_fit_adds_rows_and_series_and_trains_on(df, fitted):
    model = tiny()
    early = df[df["ds"] < "2024-01-05"]
    model.partial_fit(early)
    before = weights(model)
    later = pd.concat([df[df["ds"] >= "2024-01-05"], irregular(("c",), seed=3)])
    assert model.partial_fit(later) is model
    assert (weights(model) - before).abs().max() > 1e-4
    answer = model.predict(h=1)
    assert answer["unique_id"].tolist() == ["b", "a", "c"]
    last = df.groupby("unique_id")["ds"].max()
    assert (answer["ds"].to_numpy()[:2] > last.loc[["b", "a"]].to_numpy()).all()


def test_16_a_fit_that_fails_leaves_the_fitted_model_as_it_was(df, fitted):
    model = pickle.loads(pickle.dumps(fitted))
    with pytest.raises(ValueError, match="must hold numbers"):
        model.fit(df.assign(y="north"))
    assert_same_forecast(model.predict(times=AHEAD), fitted.predict(times=AHEAD), atol=0)


# 17


def test_17_series_too_short_to_train_are_counted_in_one_message_and_stay_predictable(df):
    short = pd.DataFrame({"unique_id": ["x", "y"], "ds": pd.Timestamp("2024-01-05"), "y": [5.0, 7.0]})
    model = tiny()
    with pytest.warns(DataWarning, match="2 of 4 series take no part in training.*'x', 'y'") as caught:
        model.fit(pd.concat([df, short]))
    assert len(caught) == 1
    answer = model.predict(h=2)
    assert np.isfinite(answer["ctsattn"]).all()
    assert set(answer["unique_id"]) == {"a", "b", "x", "y"}


@pytest.mark.parametrize("name", ["last_value", "seasonal_naive", "window_mean"])
def test_17_a_naive_band_of_one_observation_is_as_wide_as_other_series_vary(df, name):
    single = pd.DataFrame({"unique_id": ["x"], "ds": df["ds"].max(), "y": [15.0]})
    answer = tiny(model=models.MODELS[name]()).fit(pd.concat([df, single])).predict(h=1, level=[80])
    band = answer.set_index("unique_id").eval("`ctsattn-hi-80` - `ctsattn-lo-80`")["x"]
    typical = 2 * 1.2816 * df.groupby("unique_id")["y"].std().median()
    assert band == pytest.approx(typical, rel=0.2)


def test_17_a_frame_with_nothing_to_train_on_says_so():
    single = pd.DataFrame({"unique_id": ["x", "y"], "ds": pd.Timestamp("2024-01-05"), "y": [5.0, 7.0]})
    with pytest.raises(ValueError, match="nothing to train on"):
        tiny().fit(single)


# 18


@pytest.mark.parametrize("value", [3.0, 0.0, 1e9, -1e-9])
def test_18_a_constant_series_comes_back_on_its_own_scale(df, value):
    frame = pd.concat([df, df[df["unique_id"] == "a"].assign(unique_id="c", y=value)])
    answer = tiny().fit(frame).predict(h=3).set_index("unique_id").loc["c", "ctsattn"]
    spread = df["y"].std()
    assert np.abs(answer - value).max() < max(spread, 0.5 * abs(value))


def test_18_scales_that_differ_by_ten_powers_train_together(df):
    frame = pd.concat([df, df.assign(unique_id=df["unique_id"] + "+", y=df["y"] * 1e9)])
    answer = tiny().fit(frame).predict(times=AHEAD).set_index("unique_id")["ctsattn"]
    ratio = answer.loc[["a+", "b+"]].to_numpy() / answer.loc[["a", "b"]].to_numpy()
    np.testing.assert_allclose(ratio, 1e9, rtol=1e-3)


# 19


def test_19_validation_is_split_by_time_and_the_best_weights_are_used(df, monkeypatch):
    seen = []
    make = fitting.make_split
    monkeypatch.setattr(fitting, "make_split", lambda *a: seen.append(make(*a)) or seen[-1])
    training = Training(
        max_steps=40, batch_size=8, learning_rate=0.03, patience=2, validate_every=2, accelerator="cpu"
    )
    model = tiny(training=training).fit(df)
    (split,) = seen
    last_trained = split.store.end[split.windows.series]
    owner = split.windows.queries.segment
    assert (split.windows.times > last_trained[owner]).all()  # truths come after all that was trained on
    assert (
        split.windows.cutoff
        >= split.store.moments.times[split.store.moments.indptr[1:] - 1][split.windows.series]
    ).all()
    log = model.training_log_
    assert log.best_step <= log.steps
    assert log.steps == min(40, log.best_step + 2 * 2)
    assert log.validation_loss is not None


def test_19_the_callers_own_validation_data_are_used(df):
    early, late = df[df["ds"] < "2024-01-06"], df[df["ds"] >= "2024-01-06"]
    training = replace(QUICK, patience=2, validate_every=2)
    model = tiny(training=training).fit(early, val=late)
    assert model.training_log_.validation_loss is not None
    assert (
        model.fitted_.store.end.max()
        < model.fitted_.store.source.clock.per_second * 0 + np.iinfo(np.int64).max
    )
    assert model.predict(h=1)["ds"].max() < late["ds"].max()


def test_19_series_too_short_to_hold_anything_out_train_without_validation():
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=5, freq="h"), "y": [1.0, 2, 1, 2, 1]})
    model = tiny(training=replace(QUICK, patience=3), horizon="2h").fit(frame)
    assert model.training_log_.validation_loss is None


# 20


@dataclass(frozen=True)
class Exploding(models.LastValue):
    """A trainable model whose loss is not finite from the third step on."""

    def build(self, spec):
        return ExplodingNetwork(TINY.build(spec))


class ExplodingNetwork(torch.nn.Module):
    trainable = True

    def __init__(self, network):
        super().__init__()
        self.network, self.head, self.calls = network, network.head, 0

    def forward(self, batch):
        self.calls += self.training
        return self.network(batch) * (float("nan") if self.calls > 2 and self.training else 1.0)


def test_20_a_loss_that_is_not_finite_stops_with_the_ids_and_keeps_the_last_good_weights(df):
    model = tiny(model=Exploding())
    with pytest.warns(
        TrainingWarning, match="not finite after 2 good steps.*'b', 'a'.*last good weights were restored"
    ):
        model.fit(df)
    assert model.training_log_.steps == 2
    assert np.isfinite(model.predict(h=2)["ctsattn"]).all()


def test_20_when_the_very_first_loss_is_not_finite_it_is_an_error(df, monkeypatch):
    monkeypatch.setattr(ExplodingNetwork, "forward", lambda self, batch: self.network(batch) * float("nan"))
    with pytest.raises(ValueError, match=r"not finite after 0 good steps.*training__learning_rate"):
        tiny(model=Exploding()).fit(df)


# 21


def test_21_fit_writes_no_file_and_at_most_one_line_and_none_when_told(df, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    tiny(verbose=True).fit(df)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("ctsattn: 6 steps in")
    assert err.count("\n") == 1
    tiny(verbose=False).fit(df).predict(h=1)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


# 22


def test_22_nothing_touches_the_global_random_states(df, global_rng_untouched):
    model = tiny(random_state=None).fit(df)
    model.predict(h=2)
    model.sample(3, h=2)
    model.score(df)


def test_22_the_seed_decides_the_forecast(df, fitted):
    again = tiny(random_state=0).fit(df).predict(times=AHEAD)
    assert_same_forecast(again, fitted.predict(times=AHEAD), atol=0)
    other = tiny(random_state=1).fit(df).predict(times=AHEAD)
    assert np.abs(other["ctsattn"] - again["ctsattn"]).max() > 1e-5
    one, two = (tiny(random_state=np.random.default_rng(5)).fit(df).predict(times=AHEAD) for _ in range(2))
    assert_same_forecast(one, two, atol=0)


# 23


def test_23_mixed_precision_never_narrows_times(df, monkeypatch):
    seen = set()
    forward = TINY.build(tiny().fit(df).fitted_.spec).__class__.forward

    def spy(self, batch):
        seen.update({batch.past_times.dtype, batch.future_times.dtype})
        return forward(self, batch)

    monkeypatch.setattr("ctsattn.models.continuous_transformer.ContinuousTransformerNetwork.forward", spy)
    model = tiny(training=replace(QUICK, precision="bf16-mixed")).fit(df)
    assert seen == {torch.float32}
    assert np.isfinite(model.predict(h=1)["ctsattn"]).all()


def test_23_times_that_float32_cannot_tell_apart_are_told_apart(df):
    # Nanoseconds since 1970 and decades of history: gaps of a microsecond are lost when narrowed too early.
    base = 1_700_000_000_000_000_000
    gaps = np.tile([1000, 3000], 20).cumsum()
    frame = pd.DataFrame({"ds": base + gaps, "y": np.arange(40) % 2.0})
    near = tiny(model=models.LastValue(), horizon=8000.0).fit(frame)
    assert near.predict(times=[base + int(gaps[10])])["ctsattn"].item() == pytest.approx(
        frame["y"][10], abs=1e-3
    )
    assert near.predict(times=[base + int(gaps[11])])["ctsattn"].item() == pytest.approx(
        frame["y"][11], abs=1e-3
    )


# A13


def test_fits_in_threads_share_a_folder_without_a_clash(df, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers: dict[int, pd.DataFrame] = {}

    def work(number: int) -> None:
        answers[number] = tiny().fit(df).predict(times=AHEAD)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    for answer in answers.values():
        assert_same_forecast(answer, fitted.predict(times=AHEAD), atol=0)
    assert list(tmp_path.iterdir()) == []


def test_the_closed_form_start_sees_as_many_windows_as_asked_for(df, monkeypatch):
    seen = []
    monkeypatch.setattr(
        LinearNetwork, "warm_up", lambda self, batches: seen.append(sum(len(batch) for batch in batches))
    )
    for wanted in (128, 1000):
        tiny(model=models.Linear(), training=replace(QUICK, start_windows=wanted)).fit(df)
    assert seen == [128, 1024]


def test_logarithms_keep_the_bands_of_positive_values_positive():
    rng = np.random.default_rng(0)
    days = np.arange(160.0)
    frame = pd.DataFrame({"ds": days, "y": np.exp(1.5 * rng.standard_normal(160))})

    def lowest(scaler: str) -> float:
        model = tiny(model=models.Linear(scaler=scaler), horizon=10.0, lookback=40.0).fit(frame)
        return float(model.predict(times=list(days[-1] + np.arange(1.0, 11)))["ctsattn-q0.1"].min())

    assert lowest("standard") < 0 < lowest("log")
