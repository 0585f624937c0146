import numpy as np
import pandas as pd
import pytest

from ctsattn.data.clock import Clock
from ctsattn.data.schema import Step
from ctsattn.data.steps import future_ticks, lower_median, parse_duration, series_steps, typical_step
from tests.data.frames import read


def continued(times, h=4, drop=()):
    """The next times of a series whose last `h` times are cut off, and what these were."""
    kept = times[:-h].delete(list(drop)) if isinstance(times, pd.Index) else times[:-h]
    schema, store = read(pd.DataFrame({"ds": kept, "y": 1.0}))
    ticks = future_ticks(store, series_steps(store, schema.step), h)
    return store.source.clock.restore(ticks[0]).tolist(), list(times[-h:])


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(
    "freq", ["min", "h", "6h", "D", "2D", "W", "MS", "ME", "QS", "QE", "YS", "YE", "2MS", "B"]
)
def test_the_next_steps_are_those_of_the_calendar(freq, zone):
    times = pd.date_range("2023-09-01", periods=40, freq=freq, tz=zone)
    actual, expected = continued(times)
    assert actual == expected


@pytest.mark.parametrize("freq", ["h", "D", "MS", "ME", "B"])
def test_gaps_do_not_change_the_step(freq):
    times = pd.date_range("2023-09-01", periods=40, freq=freq)
    actual, expected = continued(times, drop=(3, 4, 11, 20))
    assert actual == expected


@pytest.mark.parametrize("rows", [3, 15, 27, 38])
@pytest.mark.parametrize("day", [29, 30])
def test_a_date_that_short_months_lack_comes_back_in_the_long_ones(day, rows):
    start = pd.Timestamp(f"2020-12-{day} 08:30", tz="Europe/Berlin")
    times = pd.DatetimeIndex([start + pd.DateOffset(months=i) for i in range(rows + 6)])
    actual, expected = continued(times, h=6)  # with 3, 15 and 27 rows the last one seen is in February
    assert actual == expected


def test_a_date_of_the_month_stays_where_the_month_has_it():
    times = pd.DatetimeIndex([f"2024-{month:02d}-15 08:30" for month in range(1, 13)])
    actual, expected = continued(times)
    assert actual == expected


@pytest.mark.parametrize("start", ["2024-10-21", "2024-03-25"])
def test_days_keep_their_hour_over_clock_changes_and_hours_their_length(start):
    days = pd.date_range(f"{start} 12:00", periods=10, freq="D", tz="Europe/Berlin")
    actual, expected = continued(days)
    assert actual == expected
    hours = pd.date_range(start, periods=24 * 8, freq="h", tz="UTC").tz_convert("Europe/Berlin")
    actual, expected = continued(hours, h=60)
    assert actual == expected


def test_a_step_to_an_hour_that_the_clock_skips_lands_after_the_change():
    days = pd.date_range("2024-03-25 02:30", periods=6, freq="D", tz="Europe/Berlin")
    schema, store = read(pd.DataFrame({"ds": days, "y": 1.0}))
    ahead = store.source.clock.restore(future_ticks(store, series_steps(store, schema.step), 2)[0])
    assert ahead.astype(str).tolist() == ["2024-03-31 03:00:00+02:00", "2024-04-01 02:30:00+02:00"]


def test_an_irregular_series_steps_by_its_median_gap():
    times = np.array([0, 1, 3, 10, 12, 14, 15, 22])
    schema, store = read(pd.DataFrame({"ds": times, "y": 1.0}))
    assert schema.step == Step("elapsed", 2.0)
    assert future_ticks(store, series_steps(store, schema.step), 3).tolist() == [[24, 26, 28]]


def test_a_median_is_a_value_that_occurs():
    owner, values = np.array([0, 0, 2, 2, 2, 2]), np.array([5.0, 3.0, 9.0, 1.0, 2.0, 7.0])
    assert lower_median(owner, values, 4).tolist() == [3.0, 0.0, 2.0, 0.0]


def test_each_series_has_its_own_step_and_a_single_observation_that_of_the_others():
    hourly, daily = pd.date_range("2024", periods=9, freq="h"), pd.date_range("2024", periods=9, freq="D")
    parts = [("h", hourly), ("d", daily), ("e", daily), ("one", daily[:1])]
    frame = pd.concat([pd.DataFrame({"unique_id": name, "ds": times, "y": 1.0}) for name, times in parts])
    schema, store = read(frame)
    steps = series_steps(store, schema.step)
    assert steps.count.tolist() == [3600.0, 86400.0, 86400.0, 86400.0]
    ahead = store.source.clock.seconds(future_ticks(store, steps, 2) - store.last_target[:, None])
    assert ahead.tolist() == [[3600, 7200]] + [[86400, 172800]] * 3


def test_steps_begin_at_the_last_target_and_not_at_rows_without_one():
    frame = pd.DataFrame({"ds": np.arange(10), "y": [1.0] * 6 + [np.nan] * 4})
    schema, store = read(frame)
    assert future_ticks(store, series_steps(store, schema.step), 2).tolist() == [[6, 7]]


@pytest.mark.parametrize(("kind", "seconds"), [("datetime", 86400.0), ("integer", 1.0)])
def test_data_without_any_step_step_by_a_day_or_one(kind, seconds):
    time = pd.Timestamp("2024") if kind == "datetime" else 5
    _, store = read(pd.DataFrame({"unique_id": ["a", "b"], "ds": [time, time], "y": 1.0}))
    assert typical_step(store) == Step("elapsed", seconds)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("36h", 129600),
        ("7d", 604800),
        ("2D 3h", 183600),
        (pd.Timedelta("90s"), 90),
        (np.timedelta64(2, "m"), 120),
        (pd.offsets.Hour(2), 7200),
    ],
)
def test_spans_of_time_are_read(value, seconds):
    assert parse_duration(value, Clock("datetime", 10**6)) == seconds


@pytest.mark.parametrize("value", ["soon", "3 months", 36, -1, "-3h", pd.NaT, None, "1MS"])
def test_what_is_no_span_is_refused_with_itself(value):
    with pytest.raises(ValueError, match=r"span of time|positive"):
        parse_duration(value, Clock("datetime", 10**6))


def test_a_span_of_a_numeric_clock_is_a_positive_number():
    assert parse_duration(2.5, Clock("float")) == 2.5
    for value in ("36h", 0, -1, np.inf, True):
        with pytest.raises(ValueError, match="On a numeric clock a span is a positive number"):
            parse_duration(value, Clock("float"))
