"""Protocols: windows, scaling, averages, and the published numbers of naive forecasts to four digits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ctsattn import metrics
from ctsattn.datasets import DATASETS, load_table, split
from ctsattn.datasets.long_horizon import Table
from ctsattn.datasets.protocols import (
    PROTOCOLS,
    Errors,
    RecordProtocol,
    naive2,
    record_windows,
    row_windows,
    standardise,
)
from ctsattn.datasets.splits import FractionSplit, RowSplit, SeriesSplit
from ctsattn.datasets.tables import categories


def _table(rows: int, channels: int = 2) -> Table:
    values = np.arange(rows)[:, None] * np.ones(channels) + np.random.default_rng(0).normal(
        size=(rows, channels)
    )
    times = np.datetime64("2030-01-01", "s") + np.arange(rows) * np.timedelta64(3600, "s")
    return Table(times, values, tuple(map(str, range(channels))))


def test_scales_come_from_the_training_rows_only():
    table = _table(100)
    scaled = standardise(table, (0, 60)).values
    np.testing.assert_allclose(scaled[:60].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled[:60].std(0), 1)
    changed = Table(table.times, np.concatenate([table.values[:60], 99 * table.values[60:]]), table.names)
    np.testing.assert_array_equal(standardise(changed, (0, 60)).values[:60], scaled[:60])


def test_a_constant_channel_is_centred_and_not_divided():
    table = Table(_table(10).times, np.full((10, 1), 7.0), ("a",))
    assert (standardise(table, (0, 5)).values == 0).all()


def test_windows_are_those_of_the_published_loaders():
    windows = row_windows(_table(17420), RowSplit(8640, 2880, 2880), 96, 96)
    assert {part: len(w) for part, w in windows.items()} == {"train": 8449, "val": 2785, "test": 2785}
    test = windows["test"]
    assert test.origins[0] == 8640 + 2880
    assert test.origins[-1] + test.horizon == 8640 + 2 * 2880
    np.testing.assert_array_equal(test.past([0])[0], test.table.values[11520 - 96 : 11520])
    np.testing.assert_array_equal(test.future([-1])[0], test.table.values[14400 - 96 : 14400])


@pytest.mark.parametrize(("rows", "counts"), [(7588, (5120, 665, 1422)), (52696, (36696, 5175, 10444))])
def test_windows_of_shares_count_as_published(rows, counts):
    windows = row_windows(_table(rows, 1), FractionSplit(), 96, 96)
    assert tuple(map(len, windows.values())) == counts


def test_a_part_too_short_for_a_window_is_named():
    with pytest.raises(ValueError, match="The val part"):
        row_windows(_table(100), FractionSplit(), 5, 15)


@pytest.mark.parametrize("size", [1, 7, 97, 10_000])
def test_errors_do_not_depend_on_the_batch_and_no_window_is_dropped(size):
    test = row_windows(_table(400), FractionSplit(), 8, 4)["test"]
    errors = Errors()
    for batch in test.batches(size):
        errors.add(test.past(batch)[:, -4:], test.future(batch))
    whole = test.past()[:, -4:] - test.future()
    assert errors.pooled()["mse"] == pytest.approx((whole**2).mean(), rel=1e-12)
    assert errors.pooled()["mae"] == pytest.approx(np.abs(whole).mean(), rel=1e-12)
    assert errors.count.sum() == len(test) * 4 * 2


def test_a_forecast_that_is_not_finite_is_refused_unless_it_does_not_count():
    truth = np.zeros((2, 3))
    forecast = np.array([[0.0, np.nan, 0.0], [0.0, 0.0, np.inf]])
    with pytest.raises(ValueError, match="2 of 6 forecasts are not finite"):
        Errors().add(forecast, truth)
    errors = Errors()
    errors.add(forecast, truth, np.isfinite(forecast))
    assert errors.count.tolist() == [2, 1, 1]


def test_the_mean_over_variables_weighs_each_variable_alike_and_leaves_out_the_unseen():
    errors = Errors()
    errors.add(np.array([[1.0, 2.0, 0.0]] * 3), np.zeros((3, 3)), np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]]))
    assert errors.by_variable() == {"mse": pytest.approx((1 + 4) / 2), "mae": pytest.approx((1 + 2) / 2)}
    assert errors.pooled()["mse"] == pytest.approx((3 * 1 + 4) / 4)


# published-results.md 1.3, MSE and MAE at 96, 192, 336, 720
_NAIVE = {
    ("etth1", "last"): ["1.2944/0.7132", "1.3249/0.7331", "1.3299/0.7460", "1.3351/0.7550"],
    ("etth1", "season"): ["0.5122/0.4333", "0.5808/0.4692", "0.6499/0.5008", "0.6554/0.5141"],
    ("etth1", "mean"): ["0.7008/0.5581", "0.7183/0.5705", "0.7229/0.5809", "0.7116/0.5953"],
    ("etth2", "last"): ["0.4317/0.4216", "0.5337/0.4725", "0.5973/0.5109", "0.5945/0.5190"],
    ("etth2", "season"): ["0.3905/0.3802", "0.4819/0.4285", "0.5324/0.4656", "0.5255/0.4739"],
    ("etth2", "mean"): ["0.3530/0.3872", "0.4275/0.4291", "0.4545/0.4546", "0.4510/0.4604"],
    ("exchange", "last"): ["0.0811/0.1964", "0.1671/0.2887", "0.3057/0.3978", "0.8101/0.6764"],
}


def _naive(kind: str, past: np.ndarray, horizon: int) -> np.ndarray:
    if kind == "last":
        return np.repeat(past[:, -1:], horizon, axis=1)
    if kind == "season":
        return past[:, -24:][:, np.arange(horizon) % 24]
    return np.repeat(past.mean(1, keepdims=True), horizon, axis=1)


@pytest.mark.parametrize(("name", "kind"), _NAIVE)
def test_naive_forecasts_reach_the_published_numbers_to_four_digits(name, kind, real_frame):
    real_frame(name)  # skips where the file is not here
    table = load_table(name)
    for horizon, published in zip((96, 192, 336, 720), _NAIVE[name, kind], strict=True):
        test = row_windows(table, DATASETS[name].split, 96, horizon)["test"]
        errors = Errors()
        for batch in test.batches(512):
            errors.add(_naive(kind, test.past(batch), horizon), test.future(batch))
        found = errors.pooled()
        assert f"{found['mse']:.4f}/{found['mae']:.4f}" == published, horizon


# published-results.md 3.2: sMAPE, MASE, OWA
_M4 = {
    "m4_hourly": {
        "Naive": (43.003, 11.608, 3.593),
        "sNaive": (13.912, 1.193, 0.627),
        "Naive2": (18.383, 2.395, 1.0),
    },
    "m4_weekly": {"Naive": (9.161, 2.777, 1.0), "sNaive": (9.161, 2.777, 1.0), "Naive2": (9.161, 2.777, 1.0)},
}


@pytest.mark.parametrize("name", _M4)
def test_m4_benchmarks_reach_the_published_smape_mase_and_owa(name, real_frame):
    frame, card = real_frame(name), DATASETS[name]
    (horizon,) = card.horizons
    test = split(frame, card.split)["test"]
    history = frame.drop(test.index)
    past = {key: y.to_numpy() for key, y in history.groupby("unique_id", observed=True, sort=False)["y"]}
    rules = {
        "Naive": lambda y: np.full(horizon, y[-1]),
        "sNaive": lambda y: y[-card.season :][np.arange(horizon) % card.season],
        "Naive2": lambda y: naive2(y, card.season, horizon),
    }
    scored = test.assign(**{n: np.concatenate([rule(y) for y in past.values()]) for n, rule in rules.items()})
    scores = metrics.evaluate(scored, ["smape", "mase"], by=(), train_df=history, seasonality=card.season)
    owa = metrics.owa(scores, "Naive2") | {"Naive2": 1.0}
    smape, mase = (scores.set_index("metric").loc[metric] for metric in ("smape", "mase"))
    for method, published in _M4[name].items():
        assert (round(100 * smape[method], 3), round(mase[method], 3)) == published[:2], method
        # the published OWA is a ratio of rounded numbers
        assert owa[method] == pytest.approx(published[2], abs=6e-4), method


def test_naive2_repeats_the_last_value_where_nothing_is_seasonal():
    noise = np.random.default_rng(0).normal(10, 1, 200)
    np.testing.assert_array_equal(naive2(noise, 12, 3), np.full(3, noise[-1]))
    np.testing.assert_array_equal(naive2(noise[:20], 12, 3), np.full(3, noise[19]))
    np.testing.assert_array_equal(naive2(np.full(50, 4.0), 12, 2), [4.0, 4.0])


@pytest.mark.parametrize("season", [4, 7])
def test_naive2_continues_a_multiplicative_season_from_any_phase(season):
    factor = np.linspace(0.5, 1.5, season)
    length = 12 * season + 3
    series = 20.0 * factor[np.arange(length) % season]
    expected = 20.0 * factor[(length + np.arange(9)) % season]
    np.testing.assert_allclose(naive2(series, season, 9), expected, rtol=1e-12)


def _records(times: list[float], records: int = 10, unit: np.timedelta64 | None = None) -> pd.DataFrame:
    count, length = records, len(times)
    ds = np.tile(np.array(times), count)
    return pd.DataFrame(
        {
            "unique_id": categories(np.repeat(np.arange(count), length), range(count)),
            "variable": categories(np.zeros(count * length, dtype=int), ["a", "b"]),
            "ds": ds if unit is None else (ds * 60).astype("timedelta64[m]"),
            "y": np.arange(count * length, dtype=float),
        }
    )


def test_one_window_of_a_record_sees_before_the_cutoff_and_asks_from_it_to_the_very_end():
    frame = _records([0.0, 23.99, 24.0, 47.0, 48.0])
    windows = record_windows(frame, RecordProtocol(1.0, 24.0, 24.0, length=48.0), SeriesSplit())
    assert {part: len(w) for part, w in windows.items()} == {"train": 6, "val": 2, "test": 2}
    window, place, asked = windows["test"].members()
    assert window.tolist() == [0] * 5 + [1] * 5
    assert asked.tolist() == [False, False, True, True, True] * 2
    assert windows["test"].records.record[place].tolist() == np.repeat(windows["test"].record, 5).tolist()


def test_times_that_are_timedeltas_are_counted_in_the_unit_of_the_protocol():
    frame = _records([0.0, 23.0, 24.0, 48.0], unit=np.timedelta64(60, "m"))
    windows = record_windows(frame, PROTOCOLS["physionet2012"], SeriesSplit())
    assert windows["train"].members()[2].sum() == 2 * 6


def test_strides_cut_windows_as_published():
    frame = _records([0.0, 500.0, 3999.0, 4000.0, 5000.0, 6500.0])
    protocol = RecordProtocol(1.0, 3000.0, 1000.0, stride=1000)
    test = record_windows(frame, protocol, SeriesSplit())["test"]
    # starts 0, 1000, 2000, 3000 of range(0, 6500 - 3000, 1000); the last end, 7000, lies beyond the record
    assert test.start[:4].tolist() == [0.0, 1000.0, 2000.0, 3000.0]
    assert test.closed[:4].tolist() == [False, False, False, True]
    window, place, asked = test.members()
    first = window == 0
    assert test.records.time[place[first]].tolist() == [0.0, 500.0, 3999.0]
    assert asked[first].tolist() == [False, False, True]


def test_months_of_a_station_give_twenty_four_windows_and_the_last_is_closed():
    frame = _records([float(t) for t in np.linspace(0, 200, 60)])
    test = record_windows(frame, PROTOCOLS["ushcn"], SeriesSplit())["test"]
    assert len(test) == 2 * 24
    assert test.start[:24].tolist() == list(range(24))
    assert test.closed[:24].tolist() == [False] * 23 + [True]


def test_values_are_brought_to_the_unit_interval_of_training_and_validation():
    frame = _records([0.0, 30.0])
    split_ = SeriesSplit()
    windows = record_windows(frame, RecordProtocol(1.0, 24.0, 24.0, length=48.0), split_)
    records = windows["train"].records
    seen = ~np.isin(records.record, split_.series(10)["test"])
    assert records.value[seen].min() == 0.0
    assert records.value[seen].max() == 1.0
    raw = record_windows(frame, RecordProtocol(1.0, 24.0, 24.0, length=48.0, scaled=False), split_)
    np.testing.assert_array_equal(raw["train"].records.value, frame["y"])


def test_the_real_icu_set_has_the_published_number_of_records(real_frame):
    card = DATASETS["physionet2012"]
    windows = record_windows(real_frame("physionet2012"), PROTOCOLS["physionet2012"], card.split)
    assert {part: len(w) for part, w in windows.items()} == {"train": 7200, "val": 2400, "test": 2400}
    window, place, asked = windows["test"].members()
    assert (asked == (windows["test"].records.time[place] >= 24.0)).all()
    assert len(np.unique(window)) == 2400
