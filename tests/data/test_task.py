import numpy as np
import pandas as pd
import pytest

from ctsattn.data.calendar import CALENDAR, calendar_features
from ctsattn.data.clock import Clock
from ctsattn.data.periods import detected_periods, natural_periods
from ctsattn.data.schema import Columns
from ctsattn.data.task import infer_task, time_unit
from tests.data.frames import read, series

DAY = 86400.0


@pytest.mark.parametrize(
    ("gap", "unit"),
    [
        (1e-9, 1e-9),
        (0.4, 1.0),
        (5, 1.0),
        (10, 60.0),
        (300, 60.0),
        (900, 3600.0),
        (3600, 3600.0),
        (6 * 3600, DAY),
        (2 * DAY, DAY),
        (7 * DAY, 30.4375 * DAY),
        (30 * DAY, 30.4375 * DAY),
        (365 * DAY, 365.25 * DAY),
        (1e10, 365.25 * DAY),
    ],
)
def test_the_unit_of_time_is_the_natural_one_nearest_to_the_gap(gap, unit):
    assert time_unit(gap, physical=True) == unit


@pytest.mark.parametrize(("gap", "unit"), [(1.0, 1.0), (3.0, 1.0), (4.0, 10.0), (0.02, 0.01), (86400.0, 1e5)])
def test_numeric_clocks_have_powers_of_ten_as_units(gap, unit):
    assert time_unit(gap, physical=False) == pytest.approx(unit)


def test_natural_periods_are_those_that_the_data_resolve():
    assert natural_periods(3600.0, 15 * DAY) == (DAY, 7 * DAY)
    assert natural_periods(DAY, 15 * DAY) == (7 * DAY,)
    assert natural_periods(30 * DAY, 800 * DAY) == (365.2425 * DAY,)
    assert natural_periods(9 * 3600.0, 10 * DAY) == ()


def one(times, values):
    return read(pd.DataFrame({"ds": times, "y": values}))


@pytest.mark.parametrize("shift", [0.0, -1e6, 12345.0])
def test_a_period_is_found_at_irregular_times_wherever_they_begin(shift, rng):
    times = np.sort(rng.uniform(0, 400, 300))
    values = np.sin(2 * np.pi * times / 13 + 1) + 0.3 * rng.normal(size=300)
    (period,) = detected_periods(one(shift + times, values)[1], ())
    assert period == pytest.approx(13, rel=2e-3)


def test_two_periods_are_found_the_stronger_first(rng):
    times = np.sort(rng.uniform(0, 400, 300))
    values = np.sin(2 * np.pi * times / 31) + 2 * np.sin(2 * np.pi * times / 13) + 0.3 * rng.normal(size=300)
    assert detected_periods(one(times, values)[1], ()) == pytest.approx((13, 31), rel=5e-3)


def test_a_train_of_pulses_has_one_period(rng):
    times = np.sort(rng.uniform(0, 400, 400))
    assert detected_periods(one(times, (times % 17 < 3) * 1.0)[1], ()) == pytest.approx((17,), rel=5e-3)


def test_a_daily_rhythm_of_observing_is_not_taken_for_the_period(rng):
    nights = np.repeat(np.arange(60), 5) + rng.uniform(0, 0.2, 300)  # observed at night only
    values = np.sin(2 * np.pi * np.sort(nights) / 0.38) + 0.2 * rng.normal(size=300)
    found = detected_periods(one(np.sort(nights), values)[1], ())
    assert found[0] == pytest.approx(0.38, rel=2e-3)


def test_noise_and_random_walks_have_no_period():
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(40):
        noise = rng.normal(size=200)
        false += bool(detected_periods(one(np.arange(200), noise)[1], ()))
        false += bool(detected_periods(one(np.arange(200), noise.cumsum())[1], ()))
    assert false <= 2


def test_a_swing_of_which_three_cycles_are_seen_is_no_period(rng):
    times = np.sort(rng.uniform(0, 100, 200))
    assert detected_periods(one(times, np.sin(2 * np.pi * times / 33))[1], ()) == ()
    assert detected_periods(one(times, np.sin(2 * np.pi * times / 20))[1], ()) == pytest.approx(
        (20,), rel=2e-2
    )


def test_what_a_known_period_and_its_harmonics_explain_is_no_news(rng):
    times = np.sort(rng.uniform(0, 400, 400))
    values = (times % 20 < 5) + 0.1 * rng.normal(size=400)
    assert detected_periods(one(times, values)[1], (20.0,)) == ()


@pytest.mark.parametrize("values", [np.zeros(50), np.arange(50.0), np.full(50, 1e9)])
def test_constant_and_straight_series_have_no_period(values):
    assert detected_periods(one(np.arange(50), values)[1], ()) == ()


def test_a_task_is_inferred_in_its_own_units():
    hours = pd.date_range("2024-01-01", periods=24 * 30, freq="h")
    schema, store = one(hours, np.sin(np.arange(720) * 2 * np.pi / 24))
    spec = infer_task(store, schema)
    assert (spec.time_unit, spec.median_gap) == (3600.0, 1.0)
    assert spec.periods == (24.0, 168.0)
    assert spec.horizon == 48.0
    assert spec.lookback == 336.0


@pytest.mark.parametrize(("horizon", "units"), [(12, 12.0), ("36h", 36.0), (pd.Timedelta("90min"), 1.5)])
def test_a_horizon_is_taken_as_given(horizon, units):
    schema, store = one(pd.date_range("2024-01-01", periods=100, freq="h"), np.arange(100.0))
    assert infer_task(store, schema, horizon=horizon).horizon == units
    assert infer_task(store, schema, lookback=horizon).lookback == units


@pytest.mark.parametrize("horizon", [0, -3, "-3h", 1.5])
def test_a_horizon_that_is_no_span_is_refused(horizon):
    schema, store = one(pd.date_range("2024-01-01", periods=100, freq="h"), np.arange(100.0))
    with pytest.raises(ValueError, match=r"at least 1|positive|span of time"):
        infer_task(store, schema, horizon=horizon)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tiny_data_give_a_task_with_positive_spans(count):
    schema, store = one(pd.date_range("2024-01-01", periods=count, freq="h"), np.arange(float(count)))
    spec = infer_task(store, schema)
    assert min(spec.time_unit, spec.median_gap, spec.lookback, spec.horizon) > 0


def test_the_task_counts_channels_and_codes():
    frame = series().assign(
        x=1.0,
        c=lambda d: np.where(d.index % 2, "u", "v"),
        k=lambda d: d["ds"],
        e=lambda d: np.where(d.index % 3, "u", "v"),
        size=lambda d: d["y"].groupby(d["unique_id"]).transform("max"),
        kind=lambda d: d["unique_id"],
    )
    columns = Columns.of(past_cols=["x", "c"], future_cols=["k", "e"], static_cols=["size", "kind"])
    schema, store = read(frame, columns)
    spec = infer_task(store, schema)
    assert (spec.num_targets, spec.num_channels, spec.channel_codes) == (1, 3, (0, 0, 4))
    assert (spec.num_known, spec.known_codes) == (1, (4,))
    assert (spec.num_static, spec.static_codes) == (1, (5,))


# Calendar


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("second", [0.5, 0.0]),
        ("minute", [30.5 / 60, 0.5]),
        ("hour", [12.508333 / 24, 0.0208333]),
        ("weekday", [(2 + 12.508333 / 24) / 7, (6 + 0.5 / 24) / 7]),
        ("day", [(30 + 12.508333 / 24) / 31, 0.5 / 24 / 30]),
        ("month", [(30 + 12.508333 / 24) / 366, (151 + 0.5 / 24) / 365]),
    ],
)
def test_calendar_features_are_sine_and_cosine_of_the_phase_on_the_wall_clock(name, phases):
    zoned = (
        pd.DatetimeIndex(["2024-01-31 12:30:30", "2025-06-01 00:30:00"])
        .tz_localize("Asia/Kolkata")
        .as_unit("us")
    )
    clock = Clock("datetime", 10**6, "us", "Asia/Kolkata")
    angle = 2 * np.pi * np.array(phases)
    if name == "weekday":  # 2025-06-01 is a Sunday, 2024-01-31 a Wednesday
        assert zoned.day_of_week.tolist() == [2, 6]
    expected = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    np.testing.assert_allclose(calendar_features(zoned.asi8, clock, (name,)), expected, atol=2e-6)


def test_calendar_features_are_off_unless_named_and_then_known_everywhere():
    frame = series().assign(ds=lambda d: pd.Timestamp("2024") + pd.to_timedelta(d["ds"], unit="h"))
    schema, store = read(frame)
    assert infer_task(store, schema).num_known == 0
    schema, store = read(frame, calendar=["hour", "weekday"])
    assert infer_task(store, schema).num_known == 4


def test_unknown_calendar_names_and_clocks_without_calendar_are_refused():
    with pytest.raises(
        ValueError, match=rf"Unknown calendar feature\(s\) \['moon'\]. Known are {', '.join(CALENDAR)}"
    ):
        read(pd.DataFrame({"ds": pd.date_range("2024", periods=3), "y": 1.0}), calendar=["moon"])
    with pytest.raises(ValueError, match="need datetimes, but the clock is float"):
        read(series(), calendar=["hour"])
