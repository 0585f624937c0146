"""What users ran into who tried the library on frames of their own: each is answered, or refused in words."""

from __future__ import annotations

import pandas as pd
import pytest

from ctsattn import Forecaster
from tests.forecasting.conftest import QUICK, assert_same_forecast, irregular, tiny


def empty_of_truths(df: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {
        "the training data again": df,
        "only what is earlier": df[df["ds"] < df["ds"].quantile(0.3)],
        "beyond the horizon": df.assign(ds=df["ds"] + pd.Timedelta("900D")),
        "not observed": df.assign(ds=df["ds"] + pd.Timedelta("1h"), y=float("nan")),
    }


@pytest.mark.parametrize("kind", empty_of_truths(irregular()))
def test_validation_data_that_validate_nothing_are_refused(df, kind):
    with pytest.raises(ValueError, match="`val` has no observation within the horizon after the end of its"):
        tiny().fit(df, val=empty_of_truths(df)[kind])


def test_validation_data_of_which_a_part_follows_are_taken(df):
    early = df[df["ds"] < df["ds"].quantile(0.6)]
    assert tiny().fit(early, val=df).training_log_.validation_loss > 0


@pytest.mark.parametrize(
    ("texts", "fix"),
    [
        (["1,5", "2,5", "3"], "df['y'] = pd.to_numeric(df['y'].str.replace(',', '.'), errors='coerce')"),
        (["1.5", "2.5", "high"], "df['y'] = pd.to_numeric(df['y'], errors='coerce')"),
    ],
)
def test_what_mends_a_target_of_text_keeps_its_numbers(texts, fix):
    df = pd.DataFrame({"ds": [0, 1, 2], "y": texts})
    with pytest.raises(ValueError, match="must hold numbers") as caught:
        tiny().fit(df)
    assert fix in str(caught.value)
    exec(fix, {"df": df, "pd": pd})
    assert df["y"].iloc[:2].tolist() == [1.5, 2.5]


def test_ids_that_cannot_be_told_apart_are_refused_by_name():
    df = irregular()
    with pytest.raises(
        TypeError, match=r"Id column 'unique_id' holds what no series can be told by .*astype"
    ):
        tiny().fit(df.assign(unique_id=[[1]] * len(df)))


def test_one_calendar_feature_needs_no_tuple(df):
    assert_same_forecast(
        tiny(calendar="hour").fit(df).predict(), tiny(calendar=("hour",)).fit(df).predict(), atol=0
    )


def test_a_file_that_is_no_parquet_is_refused_in_one_line(df, tmp_path):
    df.to_csv(tmp_path / "wells.csv")
    with pytest.raises(
        ValueError, match=r"wells.csv' cannot be read as Parquet .* fit\(pd.read_csv"
    ) as caught:
        tiny().fit(tmp_path / "wells.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True])
def test_a_seed_that_is_none_is_refused(fitted, seed):
    with pytest.raises(ValueError, match=r"`seed` must be an integer of at least 0, a generator or None"):
        fitted.sample(2, h=1, seed=seed)


@pytest.mark.parametrize("method", ["fit", "partial_fit", "cross_validation"])
def test_a_word_for_verbose_is_refused(df, method):
    model = Forecaster(training=QUICK, verbose="no")
    with pytest.raises(ValueError, match=r"`verbose` must be True or False or an integer, but it is 'no'"):
        getattr(model, method)(df)


@pytest.mark.parametrize(("trained", "given"), [("y", "target"), ("target", "y")])
def test_a_history_in_another_dialect_names_the_target_that_is_missed(df, trained, given):
    model = tiny().fit(df.rename(columns={"y": trained}))
    history = df.rename(columns={"y": given})
    with pytest.raises(ValueError, match=f"forecasts '{trained}', and the frame has '{given}' in its place"):
        model.predict(df=history)
    mended = history.rename(columns={given: trained})
    assert_same_forecast(model.predict(df=mended), model.predict(), atol=0)


@pytest.mark.parametrize("name", ["forecast.csv", "forecast.CSV.gz"])
def test_a_folder_is_not_named_as_a_file(fitted, tmp_path, name):
    with pytest.raises(ValueError, match="names a file, but a forecast is written to a folder of Parquet"):
        fitted.predict(h=1, out=tmp_path / name)
    assert not list(tmp_path.iterdir())
