"""`describe` counts what is in a file, and says what the model will make of it."""

import json

import numpy as np
import pandas as pd
import pytest

from ctsattn.cli.describe import common_rates, in_words


def write(tmp_path, **columns):
    path = tmp_path / "d.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def report(ctsattn, path, *words):
    code, out, err = ctsattn("describe", path, "--json", *words)
    assert code == 0, err
    return json.loads(out)


def test_counts_series_observations_span_and_missing_values(ctsattn, wells, names):
    frame = pd.read_csv(wells)
    frame.loc[[3, 4, 120], "level"] = np.nan
    frame.to_csv(wells, index=False)
    found = report(ctsattn, wells, *names)
    assert found["series"] == 2
    assert found["observations"] == 177
    assert found["per_series"] == [88, 88.5, 89]
    assert found["first"].startswith("2024-03-20") and found["last"] == str(pd.Timestamp(frame["when"].max()))
    assert found["missing"] == {"level": pytest.approx(3 / 180)}
    assert found["duplicates"] == 0


def test_names_the_sampling_rates_with_their_shares(ctsattn, wells, names):
    found = report(ctsattn, wells, *names)
    gaps = pd.read_csv(wells, parse_dates=["when"]).groupby("well")["when"].diff().dt.total_seconds().dropna()
    shares = gaps.value_counts(normalize=True)
    assert {gap: share for gap, share in found["rates"]} == pytest.approx(shares.to_dict())
    assert not found["regular"]
    assert found["gaps"] == pytest.approx([3600, gaps.median(), gaps.quantile(0.9), 5 * 3600])


def test_a_regular_clock_is_called_regular(ctsattn, tmp_path):
    path = write(tmp_path, ds=pd.date_range("2024-01-01", periods=50, freq="D"), y=np.arange(50.0))
    assert report(ctsattn, path)["regular"]
    code, out, _ = ctsattn("describe", path)
    assert code == 0 and "regular; common gaps: 1 day (100%)" in out


def test_one_moment_in_each_series_has_no_gaps(ctsattn, tmp_path):
    path = write(
        tmp_path, unique_id=["a", "a", "b"], ds=["2024-01-01", "2024-01-01", "2024-02-01"], y=[1, 2, 3]
    )
    code, out, _ = ctsattn("describe", path)
    assert code == 0 and "none: no series was observed at two times" in out and "sampling" not in out


def test_duplicates_are_counted_and_the_first_is_named(ctsattn, tmp_path):
    days = pd.date_range("2024-01-01", periods=40, freq="D")
    path = write(tmp_path, unique_id="a", ds=days.append(days[[7, 7, 9]]), y=np.arange(43.0))
    found = report(ctsattn, path)
    assert found["duplicates"] == 3
    assert "'a'" in found["first_duplicate"] and "2024-01-08" in found["first_duplicate"]
    assert "fit needs --duplicates mean or last" in ctsattn("describe", path)[1]


def test_says_what_each_column_is_for_and_why(ctsattn, tmp_path):
    rng = np.random.default_rng(0)
    path = write(tmp_path, ds=np.arange(40), y=rng.normal(size=40), rain=rng.normal(size=40), site="north")
    code, out, _ = ctsattn("describe", path, "--past-col", "rain")
    assert code == 0
    assert "y: target" in out and "rain: past (named in past_cols)" in out
    assert "not used" in out and "'site'" in out


def test_says_what_the_model_will_look_at(ctsattn, tmp_path):
    path = write(tmp_path, ds=pd.date_range("2024-01-01", periods=400, freq="h"), y=np.arange(400.0))
    found = report(ctsattn, path, "--horizon", "12h")
    assert (found["time_unit"], found["step"], found["horizon"]) == (3600.0, 3600.0, 12 * 3600.0)
    assert 86400.0 in found["periods"]


def test_common_rates_ignore_gaps_that_only_drift(rng):
    assert common_rates(rng.uniform(1, 2, 1000)) == ()
    assert common_rates(np.array([])) == ()
    jittered = 60 * (1 + 0.001 * rng.normal(size=1000))
    ((rate, share),) = common_rates(jittered)
    assert rate == pytest.approx(60, rel=1e-3) and share == 1.0


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (1.0, "1 second"),
        (5400, "1.5 hours"),
        (86400, "1 day"),
        (3e-9, "3 nanoseconds"),
        (2 * 365.25 * 86400, "2 years"),
    ],
)
def test_spans_are_told_in_the_unit_that_fits(span, words):
    assert in_words(span) == words


def test_numbers_have_no_unit():
    assert in_words(0.25, is_physical=False) == "0.25"


def test_a_span_may_be_asked_on_a_numeric_clock(ctsattn, tmp_path):
    place = tmp_path / "numbers.csv"
    pd.DataFrame({"ds": range(0, 400, 2), "y": range(200)}).to_csv(place, index=False)
    assert "look ahead 30 " in ctsattn("describe", place, "--horizon", "30.0")[1]
    assert "look ahead 60 " in ctsattn("describe", place, "--horizon", "30")[1]  # steps
