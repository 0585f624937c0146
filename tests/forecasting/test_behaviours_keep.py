"""Behaviours 38 to 40 of the forecaster: saving, loading, copying."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from sklearn.base import clone

import ctsattn
from ctsattn import Forecaster, models
from ctsattn.forecasting import Training, checkpoint

from .conftest import assert_same_forecast, irregular, tiny

AHEAD = pd.to_datetime(["2024-01-12 03:00", "2024-01-13 17:30"])
GOLDEN = Path(__file__).parent / "golden"

PREDICT = """
import sys
import pandas as pd
from ctsattn import Forecaster
assert not {"lightning", "matplotlib"} & set(sys.modules)
moved, bare, history, out = sys.argv[1:]
times = ["2024-01-12 03:00", "2024-01-13 17:30"]
Forecaster.load(moved).predict(times=times, level=[80]).to_csv(out + "/moved.csv", index=False)
history = pd.read_csv(history, parse_dates=["ds"])
Forecaster.load(bare).predict(df=history, times=times, level=[80]).to_csv(out + "/bare.csv", index=False)
"""


# 38 and A10


def test_38_with_and_without_its_data_a_model_forecasts_the_same_in_a_new_process(df, fitted, tmp_path):
    moved, bare = tmp_path / "elsewhere" / "renamed", tmp_path / "bare"
    moved.parent.mkdir()
    fitted.save(tmp_path / "model.ctsattn")
    (tmp_path / "model.ctsattn").rename(moved)
    fitted.save(bare, data=False)
    with safe_open(bare, framework="np") as file:
        assert not [name for name in file.keys() if name.startswith("data/")]  # noqa: SIM118
    df.to_csv(tmp_path / "history.csv", index=False)
    command = [sys.executable, "-W", "error", "-c", PREDICT, moved, bare, tmp_path / "history.csv", tmp_path]
    run = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    for name in ("moved", "bare"):
        answer = pd.read_csv(tmp_path / f"{name}.csv", parse_dates=["ds"])
        assert_same_forecast(answer, fitted.predict(times=AHEAD, level=[80]), atol=1e-6)


def test_38_a_model_without_its_data_says_that_it_needs_a_history(fitted, tmp_path):
    fitted.save(tmp_path / "m", data=False)
    with pytest.raises(ValueError, match=r"saved without its data.*predict\(df=history"):
        Forecaster.load(tmp_path / "m").predict(h=1)


def test_38_everything_that_a_forecast_needs_survives(df, tmp_path):
    rng = np.random.default_rng(0)
    frame = df.assign(
        z=rng.random(len(df)),
        region=df["unique_id"].map({"a": "north", "b": "söuth"}),
        wind=rng.random(len(df)),
        price=rng.choice(["low", "high"], len(df)),
    )
    zoned = frame.assign(ds=frame["ds"].dt.tz_localize("Europe/Berlin"))
    model = tiny(
        target_col=["y", "z"],
        past_cols=["wind"],
        future_cols=["price"],
        horizon=pd.Timedelta("2D"),
        lookback=40,
    ).fit(zoned)
    later = pd.concat([zoned, zoned.tail(3).assign(ds=lambda x: x["ds"] + pd.Timedelta("3D"), y=5.0, z=0.5)])
    model.calibrate(later)
    model.save(tmp_path / "m")
    loaded = Forecaster.load(tmp_path / "m")
    asked = AHEAD.tz_localize("Europe/Berlin")
    future = pd.DataFrame({"ds": asked, "price": "low"})
    first, second = (m.predict(times=asked, future_df=future, level=[80, 99]) for m in (model, loaded))
    pd.testing.assert_frame_equal(first, second)
    pd.testing.assert_frame_equal(
        model.sample(3, times=asked, future_df=future), loaded.sample(3, times=asked, future_df=future)
    )
    pd.testing.assert_frame_equal(model.features_, loaded.features_)
    assert loaded.get_params()["horizon"] == pd.Timedelta("2D")
    assert list(loaded.target_col) == ["y", "z"]
    assert loaded.training == model.training
    assert loaded.model == model.model
    assert loaded.score(zoned) == model.score(zoned)
    with pytest.warns(UserWarning, match="frame"):
        loaded.predict(df=zoned.drop(columns="wind"), times=asked, future_df=future)


@pytest.mark.parametrize("ids", [("x", "y"), (3, 1), (2.5, 1.5), (True, False)])
def test_38_ids_come_back_in_their_own_dtype(ids, tmp_path):
    model = tiny(model=models.LastValue()).fit(irregular(ids))
    model.save(tmp_path / "m")
    answer = Forecaster.load(tmp_path / "m").predict(h=1)
    pd.testing.assert_frame_equal(answer, model.predict(h=1))


def test_38_saving_again_replaces_the_file_and_a_wrong_path_creates_nothing(df, fitted, tmp_path):
    fitted.save(tmp_path / "m")
    other = tiny(random_state=1).fit(df)
    other.save(str(tmp_path / "m"))
    assert_same_forecast(
        Forecaster.load(tmp_path / "m").predict(times=AHEAD), other.predict(times=AHEAD), atol=0
    )
    for load in (lambda: Forecaster.load(tmp_path / "no" / "m"), lambda: fitted.save(tmp_path / "no" / "m")):
        with pytest.raises(ValueError, match=r"No model at|does not exist, so nothing was saved"):
            load()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_38_what_json_cannot_hold_is_left_out_with_a_warning(df, tmp_path):
    training = Training(max_steps=2, accelerator="cpu", trainer={"max_time": None, "callbacks": [object]})
    model = tiny(model=models.LastValue(), training=training, random_state=np.random.default_rng(0)).fit(df)
    with pytest.warns(UserWarning, match="a model file cannot hold; it is left out") as caught:
        model.save(tmp_path / "m")
    assert len(caught) == 2
    assert Forecaster.load(tmp_path / "m").predict(h=1).equals(model.predict(h=1))


# 39 and A11


@pytest.mark.parametrize("way", ["pickle", "joblib", "deepcopy"])
def test_39_fitted_models_are_copied_whole(fitted, tmp_path, way):
    if way == "pickle":
        twin = pickle.loads(pickle.dumps(fitted))
    elif way == "joblib":
        joblib.dump(fitted, tmp_path / "m")
        twin = joblib.load(tmp_path / "m")
    else:
        twin = copy.deepcopy(fitted)
    assert_same_forecast(twin.predict(times=AHEAD), fitted.predict(times=AHEAD), atol=0)
    assert twin.get_params().keys() == fitted.get_params().keys()


@pytest.mark.parametrize("name", models.MODELS)
def test_39_every_model_can_be_pickled_and_copied_once_fitted(df, name):
    model = tiny(model=models.MODELS[name]()).fit(df)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_same_forecast(twin.predict(times=AHEAD), model.predict(times=AHEAD), atol=0)


def test_39_unfitted_models_are_copied_and_cloned(fitted):
    for twin in (pickle.loads(pickle.dumps(tiny())), copy.deepcopy(tiny()), clone(fitted)):
        assert twin.get_params(deep=False) == tiny().get_params(deep=False)
        assert not hasattr(twin, "fitted_")


# 40


def golden_answers(model: Forecaster) -> pd.DataFrame:
    return model.predict(times=AHEAD, level=[80, 95])


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.ctsattn")), ids=lambda p: p.stem)
def test_40_files_of_earlier_versions_load_and_forecast_as_they_did(path):
    answer = golden_answers(Forecaster.load(path))
    expected = pd.read_csv(path.with_suffix(".csv"), parse_dates=["ds"])
    assert_same_forecast(answer, expected, atol=1e-5)
    assert answer["unique_id"].tolist() == expected["unique_id"].tolist()


def test_40_every_schema_that_is_read_has_a_golden_file_and_this_version_one_of_the_schema_it_writes():
    found = {(checkpoint.read(path)[0]["schema_version"], path.stem) for path in GOLDEN.glob("*.ctsattn")}
    assert {schema for schema, _ in found} == set(checkpoint.READABLE)
    newest = checkpoint.SCHEMA_VERSION
    assert (newest, f"{ctsattn.__version__}-schema-{newest}") in found


def test_40_the_golden_file_has_every_part_that_a_file_can_hold():
    model = Forecaster.load(GOLDEN / f"{ctsattn.__version__}-schema-{checkpoint.SCHEMA_VERSION}.ctsattn")
    assert set(model.features_["role"]) == {"target", "static", "past", "future"}
    assert model.fitted_.calibration is not None and model.calendar and model.fitted_.store.source.clock.zone
