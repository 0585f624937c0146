import datetime as dt
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ctsattn.data.clock import Clock
from ctsattn.data.schema import Columns
from ctsattn.data.times import read_times
from tests.data.frames import COMMON, assert_same_observations, long_frames, read, reread

STAMPS = pd.Series(pd.to_datetime(["2024-03-30 12:00", "2024-03-31 00:30", "2024-03-31 03:30"]))
KINDS = {
    **{f"datetime64[{u}]": STAMPS.dt.as_unit(u) for u in ("s", "ms", "us", "ns")},
    **{
        f"{zone} {u}": STAMPS.dt.as_unit(u).dt.tz_localize(zone)
        for zone in ("UTC", "Europe/Berlin")
        for u in ("s", "ns")
    },
    "fixed offset": STAMPS.dt.tz_localize(dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "pyarrow timestamp": STAMPS.astype(pd.ArrowDtype(pa.timestamp("ms"))),
    "pyarrow zoned timestamp": STAMPS.dt.tz_localize("UTC").astype(
        pd.ArrowDtype(pa.timestamp("us", "America/New_York"))
    ),
    "date objects": pd.Series([dt.date(2024, 1, 31), dt.date(2024, 2, 29)]),
    "pyarrow dates": pd.Series([dt.date(2024, 1, 31)], dtype=pd.ArrowDtype(pa.date32())),
    "monthly periods": pd.Series(pd.period_range("2024-01", periods=3, freq="M")),
    "timedelta64[s]": pd.Series(pd.to_timedelta([1, 90, 7200], unit="s")).dt.as_unit("s"),
    "timedelta64[ns]": pd.Series(pd.to_timedelta([1, 2], unit="ns")),
    "pyarrow duration": pd.Series(pd.to_timedelta([1, 90], unit="s")).astype(
        pd.ArrowDtype(pa.duration("ms"))
    ),
    "int64": pd.Series([-5, 0, 2**60]),
    "int16": pd.Series([-5, 0, 7], dtype="int16"),
    "uint64": pd.Series([0, 7], dtype="uint64"),
    "Int32": pd.Series([-5, 0, 7], dtype="Int32"),
    "pyarrow int": pd.Series([1, 2], dtype="int64[pyarrow]"),
    "float64": pd.Series([-0.5, 0.1, 1e9 + 1e-6]),
    "float32": pd.Series([0.5, 0.1], dtype="float32"),
    "Float64": pd.Series([0.5, 0.1], dtype="Float64"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_times_of_every_kind_come_back_as_they_were(kind):
    ticks, clock = read_times(KINDS[kind], "ds")
    pd.testing.assert_series_equal(clock.restore(ticks), KINDS[kind], check_names=False)


OBJECTS = {
    "datetime objects": dt.datetime(2024, 1, 31, 5),
    "zoned datetime objects": dt.datetime(2024, 1, 31, 5, tzinfo=dt.UTC),
    "timestamp objects": pd.Timestamp("2024-01-31 05:00"),
    "numpy objects": np.datetime64("2024-01-31T05"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_times_as_objects_are_read_as_datetimes(kind):
    ticks, clock = read_times(pd.Series([OBJECTS[kind]], dtype=object), "ds")
    assert clock.kind == "datetime"
    assert pd.Timestamp(ticks[0], unit="us") == pd.Timestamp("2024-01-31 05:00")


def test_objects_with_several_offsets_are_read_as_instants():
    berlin, tokyo = dt.timezone(dt.timedelta(hours=1)), dt.timezone(dt.timedelta(hours=9))
    column = pd.Series(
        [dt.datetime(2024, 1, 1, 1, tzinfo=berlin), dt.datetime(2024, 1, 1, 9, tzinfo=tokyo)], dtype=object
    )
    ticks, clock = read_times(column, "ds")
    assert ticks[0] == ticks[1] and clock.zone == "UTC"


ISO = [
    "2024-03-31",
    "2024-3-1",
    "2024/03/31",
    "2024-03",
    "2024-03-31 14:05",
    "2024-03-31T14:05:06",
    " 2024-03-31T14:05:06,5",
    "2024-03-31T14:05:06.123456789",
]


@pytest.mark.parametrize("text", ISO)
def test_text_that_begins_with_the_year_is_parsed(text):
    ticks, clock = read_times(pd.Series([text] * 2), "ds")
    expected = pd.Timestamp(text.strip().replace("/", "-").replace(",", "."))
    assert clock.restore(ticks).tolist() == [expected] * 2


@pytest.mark.parametrize(
    "texts",
    [["2024-03-31T14:00Z"], ["2024-03-31T16:00+02:00"], ["2024-03-31T16:00 +0200", "2024-03-31T14:00Z"]],
)
def test_text_with_offsets_is_read_as_instants(texts):
    ticks, clock = read_times(pd.Series(texts), "ds")
    assert {pd.Timestamp(t, unit="us") for t in ticks} == {pd.Timestamp("2024-03-31 14:00")}
    assert clock.zone is not None


@pytest.mark.parametrize(
    "text",
    [
        "03/04/2024",
        "31.03.2024",
        "20240331",
        "1711843200",
        "12:30",
        "March 2024",
        "2024-03/31",
        "now",
        "24-03-31",
        "",
    ],
)
def test_text_that_could_be_read_in_two_ways_is_refused_with_itself_as_example(text):
    with pytest.raises(
        ValueError, match=f"1 distinct value.*for example {re.escape(repr(text))}.*pd.to_datetime"
    ):
        read_times(pd.Series(["2024-03-31", text, text]), "ds")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("03/04/2024", "pd.to_datetime(df['ds'], format='%d/%m/%Y')"),
        ("31.03.24 12:30", "pd.to_datetime(df['ds'], format='%d.%m.%y %H:%M')"),
        ("1-2-2024 03:04:05", "pd.to_datetime(df['ds'], format='%d-%m-%Y %H:%M:%S')"),
        ("61h", "pd.to_timedelta(df['ds'])"),
        ("3 days", "pd.to_timedelta(df['ds'])"),
        ("20240331", "pd.to_datetime(df['ds'], format='%d.%m.%Y')"),
    ],
)
def test_the_line_that_mends_a_text_is_of_its_own_marks(text, line):
    with pytest.raises(ValueError, match=re.escape(f"Say what they mean: df['ds'] = {line}.")):
        read_times(pd.Series([text]), "ds")


def test_text_that_names_no_real_date_is_refused():
    with pytest.raises(ValueError, match=r"does not name real ones.*2024-13-45"):
        read_times(pd.Series(["2024-13-45"]), "ds")


def test_text_with_a_zone_in_some_rows_only_is_refused():
    with pytest.raises(ValueError, match="a zone in some rows and none in others"):
        read_times(pd.Series(["2024-03-31T14:00Z", "2024-03-31T14:00"]), "ds")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([True, False], TypeError, "holds boolean values"),
        ([1.0, np.inf], ValueError, "1 infinite value"),
        ([1.0, np.nan], ValueError, "1 missing value"),
        ([0, 2**62], ValueError, "must lie within"),
        ([{"a": 1}], TypeError, "Time column 'ds' holds"),
        ([dt.date(2024, 1, 1), "2024-01-02"], TypeError, "holds mixed values"),
    ],
)
def test_what_is_no_time_is_refused_by_name(values, error, message):
    with pytest.raises(error, match=message):
        read_times(pd.Series(values), "ds")


@pytest.mark.parametrize("start", ["2024-03-31 00:00", "2024-10-27 00:00"])
def test_hours_over_both_clock_changes_are_equally_far_apart(start):
    hours = pd.Series(pd.date_range(start, periods=8, freq="h", tz="UTC").tz_convert("Europe/Berlin"))
    ticks, clock = read_times(hours, "ds")
    assert set(np.diff(ticks)) == {3600 * clock.per_second}
    pd.testing.assert_series_equal(clock.restore(ticks), hours, check_names=False)


@given(long_frames(), st.sampled_from(["s", "ms", "ns"]))
@COMMON
def test_the_unit_of_the_time_column_changes_nothing(frame, unit):
    whole = frame.assign(ds=frame["ds"].dt.floor("s")).drop_duplicates(["unique_id", "ds"])
    assume(whole["ds"].between(pd.Timestamp("1700-01-01"), pd.Timestamp("2200-01-01")).all())
    other = whole.assign(ds=whole["ds"].dt.as_unit(unit))
    assert_same_observations(read(other)[1], read(whole)[1])


@given(long_frames(), st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia"]))
@COMMON
def test_zoned_times_are_the_same_instants_and_keep_their_zone(frame, zone):
    zoned = frame.assign(ds=frame["ds"].dt.tz_localize("UTC").dt.tz_convert(zone))
    _, store = read(zoned)
    assert_same_observations(store, read(frame)[1])
    out = store.source.frame(np.arange(store.num_series), store.last_target, {})
    assert out["ds"].dtype == zoned["ds"].dtype
    observed = set(zip(zoned["unique_id"], zoned["ds"], strict=True))
    has = store.has_history
    assert set(zip(out["unique_id"][has], out["ds"][has], strict=True)) <= observed


@given(st.lists(st.integers(-(2**61), 2**61), min_size=2, max_size=6, unique=True))
@COMMON
def test_nanosecond_integers_lose_nothing(times):
    _, store = read(pd.DataFrame({"ds": times, "y": 1.0}))
    assert store.past.times.tolist() == sorted(times)


@given(st.integers(0, 2**22), st.lists(st.integers(1, 1000), min_size=1, max_size=5))
@COMMON
def test_unix_seconds_with_fractions_keep_their_differences(start, gaps):
    fractions = start + np.cumsum(gaps)  # steps of 2^-22 s, as fine as a float near 1.7e9 can hold
    frame = pd.DataFrame({"ds": 1.7e9 + fractions / 2**22, "y": 1.0})
    _, store = read(frame)
    assert (store.past.times - store.past.times[0]).tolist() == ((fractions - fractions[0]) / 2**22).tolist()


def test_centuries_in_nanoseconds_do_not_overflow():
    years = pd.Series(pd.to_datetime([f"{year}-01-01" for year in range(1700, 2200, 50)])).dt.as_unit("ns")
    _, store = read(pd.DataFrame({"ds": years, "y": 1.0}))
    elapsed = store.source.clock.seconds(store.past.times - store.past.times[0])
    whole = [stamp.to_pydatetime() for stamp in years]
    assert elapsed.tolist() == [(stamp - whole[0]).total_seconds() for stamp in whole]


def test_nanoseconds_that_span_centuries_are_counted_in_microseconds():
    stamps = pd.DatetimeIndex(["1700-01-01", "2200-01-01 00:00:00.000000001"]).as_unit("ns")
    ticks, clock = read_times(pd.Series(stamps), "ds")
    assert clock.seconds(np.diff(ticks)).tolist() == [
        (stamps[1].to_pydatetime(warn=False) - stamps[0].to_pydatetime()).total_seconds()
    ]


def test_an_integer_clock_answers_fractions_as_floats_and_whole_numbers_as_integers():
    clock = Clock("integer", dtype="int32")
    assert clock.restore(np.array([1.0, 2.0])).dtype == "int32"
    assert clock.restore(np.array([1.5])).tolist() == [1.5]
    assert clock.restore(np.array([2**40])).tolist() == [2**40]


def test_dates_answer_hours_as_datetimes():
    ticks, clock = read_times(pd.Series([dt.date(2024, 1, 31)]), "ds")
    assert clock.restore(ticks + 3600 * 10**6).tolist() == [pd.Timestamp("2024-01-31 01:00")]


def test_seconds_answer_fractions_in_a_finer_unit():
    ticks, clock = read_times(STAMPS.dt.as_unit("s"), "ds")
    assert clock.restore(ticks[:1] + 1).tolist() == [pd.Timestamp("2024-03-30 12:00:00.000001")]


def test_times_without_zone_are_read_on_the_wall_clock_of_the_history():
    berlin = Clock("datetime", 10**6, "us", "Europe/Berlin")
    asked, clock = read_times(pd.Series(["2024-07-01 12:00"]), "times")
    assert pd.Timestamp(berlin.convert(asked, clock)[0], unit="us") == pd.Timestamp("2024-07-01 10:00")


@pytest.mark.parametrize("text", ["2024-03-31 02:30", "2024-10-27 02:30"])
def test_wall_times_that_a_clock_change_skips_or_repeats_are_refused(text):
    berlin = Clock("datetime", 10**6, "us", "Europe/Berlin")
    asked, clock = read_times(pd.Series([text]), "times")
    with pytest.raises(ValueError, match=f"1 time.*Europe/Berlin, for example {text}"):
        berlin.convert(asked, clock)


def test_clocks_of_two_kinds_are_not_mixed():
    with pytest.raises(TypeError, match=r"Times of kind integer .* the clock of the history is datetime"):
        Clock("datetime", 10**6).convert(np.array([5]), Clock("integer", dtype="int64"))
    with pytest.raises(TypeError, match="those of the history have no zone"):
        Clock("datetime", 10**6).convert(np.array([5]), Clock("datetime", 10**6, zone="UTC"))


def test_a_model_of_dates_refuses_a_history_of_integers():
    frame = pd.DataFrame({"ds": pd.date_range("2024", periods=3), "y": 1.0})
    schema, _ = read(frame)
    with pytest.raises(TypeError, match="trained on datetime times, but column 'ds' holds integer"):
        reread(schema, frame.assign(ds=[1, 2, 3]))


def test_a_time_column_of_categories_is_read_by_its_values():
    column = pd.Series(pd.to_datetime(["2024-01-02", "2024-01-01"])).astype("category")
    ticks, _ = read_times(column, "ds")
    assert ticks[0] > ticks[1]


def test_columns_names_may_be_given_for_integer_times():
    _, store = read(pd.DataFrame({"t": [3, 1, 2], "v": [3.0, 1.0, 2.0]}), Columns(time="t", targets=("v",)))
    assert store.past.values.tolist() == [1.0, 2.0, 3.0]
