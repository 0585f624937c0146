import copy
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctsattn.data.frame import read_panel, read_rows
from ctsattn.data.schema import Columns, DataWarning
from tests.data.frames import COMMON, assert_same_observations, long_frames, observations, read

PLAIN = pd.DataFrame(
    {
        "unique_id": ["b", "b", "b", "a", "a"],
        "ds": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-05", "2024-01-01", "2024-01-03"]),
        "y": [1.0, 2.0, 4.0, 10.0, 30.0],
    }
)


def series_of(store):
    return {name: values for (name, _), (_, values) in observations(store).items()}


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("unique_id", "ds", "y"), Columns()),
        (("item_id", "timestamp", "target"), Columns()),
        (("shop", "when", "sold"), Columns("shop", "when", ("sold",))),
        ((1, 2, 3), Columns(1, 2, (3,))),
    ],
)
def test_each_dialect_is_recognised_and_its_names_come_back(names, columns):
    frame = PLAIN.set_axis(list(names), axis=1)
    _, store = read(frame, columns)
    assert_same_observations(store, read(PLAIN)[1])
    out = store.source.frame(np.array([0, 1]), store.end, {"ctsattn": np.zeros(2)})
    assert list(out.columns) == [names[0], names[1], "ctsattn"]
    assert out[names[0]].tolist() == ["b", "a"]


def test_a_frame_without_id_column_is_one_series_and_comes_back_without_one():
    _, store = read(PLAIN[["ds", "y"]].iloc[:3])
    assert store.num_series == 1
    out = store.source.frame(np.zeros(1, int), store.end, {"ctsattn": np.zeros(1)})
    assert list(out.columns) == ["ds", "ctsattn"]


def test_a_named_id_column_that_is_absent_is_an_error_and_not_one_series():
    with pytest.raises(
        ValueError, match="id column 'shop' is not in the frame, which has 'unique_id', 'ds', 'y'"
    ):
        read(PLAIN, Columns(id="shop"))


def test_wide_frames_with_a_time_index_are_one_series_a_column():
    wide = PLAIN.pivot(index="ds", columns="unique_id", values="y")
    assert_same_observations(read(wide)[1], read(PLAIN)[1])


def test_wide_frames_with_a_time_column_are_one_series_a_column():
    wide = PLAIN.pivot(index="ds", columns="unique_id", values="y").reset_index().rename_axis(columns=None)
    assert_same_observations(read(pl.from_pandas(wide))[1], read(PLAIN)[1])


def test_a_frame_with_text_beside_numbers_is_not_taken_for_wide():
    wide = PLAIN.pivot(index="ds", columns="unique_id", values="y").assign(note="text")
    with pytest.raises(ValueError, match="target column 'y' is not in the frame"):
        read(wide)


def test_a_single_value_column_on_a_time_index_is_one_series():
    series = PLAIN.iloc[:3].set_index("ds")["y"].rename("co2").rename_axis("date")
    schema, store = read(series)
    assert store.num_series == 1
    assert (schema.columns.time, schema.columns.targets) == ("date", ("co2",))


@pytest.mark.parametrize(
    "levels", [["unique_id", "ds"], ["ds", "unique_id"], [None, None], ["unique_id"], ["ds"]]
)
def test_an_index_that_names_id_or_time_is_read_as_columns(levels):
    keys = ["unique_id", "ds"] if levels == [None, None] else levels
    frame = PLAIN.set_index(keys).rename_axis(levels)
    assert_same_observations(read(frame)[1], read(PLAIN)[1])


@given(long_frames(), st.randoms(use_true_random=False))
@COMMON
def test_row_order_column_order_and_index_change_nothing(frame, random):
    rows, columns = list(range(len(frame))), list(frame.columns)
    random.shuffle(rows)
    random.shuffle(columns)
    disguised = frame.iloc[rows][columns].set_axis(random.sample(range(10**6), len(frame)))
    assert_same_observations(read(disguised)[1], read(frame)[1])


@given(long_frames())
@COMMON
def test_a_missing_target_and_an_absent_row_are_the_same(frame):
    present = frame[frame["y"].notna() | ~frame["unique_id"].duplicated()]  # keeps one row of every id
    assert_same_observations(read(present)[1], read(frame)[1])
    assert not np.isnan(read(frame)[1].past.values).any()


IDS = {
    "text": lambda s: s.astype(object),
    "string": lambda s: s.astype("string"),
    "categorical with unused levels": lambda s: s.astype(pd.CategoricalDtype(["zz", *"vutsrqp", "aa"])),
    "integers": lambda s: s.map(ord),
    "small integers": lambda s: s.map(ord).astype("int8"),
    "mixed types": lambda s: s.map(lambda v: ord(v) if v in "pqr" else v).astype(object),
    "pyarrow": lambda s: s.astype("string[pyarrow]").astype(pd.ArrowDtype(pa.string())),
}


@pytest.mark.parametrize("kind", IDS)
@given(frame=long_frames())
@COMMON
def test_ids_of_every_dtype_keep_their_dtype_and_order_of_first_appearance(kind, frame):
    frame = frame.assign(unique_id=IDS[kind](frame["unique_id"]))
    _, store = read(frame)
    out = store.source.frame(np.arange(store.num_series), store.end, {})
    assert out["unique_id"].tolist() == frame["unique_id"].drop_duplicates().tolist()
    assert out["unique_id"].dtype == frame["unique_id"].dtype


TARGETS = {
    "int64": lambda s: s.astype("int64"),
    "uint8": lambda s: s.abs().mod(200).astype("uint8"),
    "Int64": lambda s: s.astype("Int64"),
    "Float64": lambda s: s.astype("Float64"),
    "float32": lambda s: s.astype("float32"),
    "bool": lambda s: s > 0,
    "boolean": lambda s: (s > 0).astype("boolean"),
    "object": lambda s: s.astype(object),
    "object of several kinds": lambda s: pd.Series(
        [int(v) if i % 2 else float(v) for i, v in enumerate(s)], dtype=object
    ),
    "pyarrow int": lambda s: s.astype("int64").astype("int64[pyarrow]"),
    "pyarrow float": lambda s: s.astype("double[pyarrow]"),
    "pyarrow bool": lambda s: (s > 0).astype("bool[pyarrow]"),
    "pyarrow decimal": lambda s: s.astype("int64").astype(pd.ArrowDtype(pa.decimal128(24, 2))),
    "categories of numbers": lambda s: s.astype("category"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_targets_of_every_numeric_dtype_are_read_as_their_numbers(kind):
    column = TARGETS[kind](pd.Series([3.0, -7.0, 12.0, 0.0, 150.0]))
    _, store = read(PLAIN.assign(y=column))
    assert store.past.values.tolist() == [float(v) for v in column]


@pytest.mark.parametrize(
    "kind", ["Int64", "Float64", "boolean", "object", "pyarrow int", "pyarrow float", "pyarrow bool"]
)
def test_missing_values_of_every_dtype_are_not_observed(kind):
    column = TARGETS[kind](pd.Series([3.0, -7.0, 12.0, 0.0, 150.0])).copy()
    column.iloc[2] = None
    _, store = read(PLAIN.assign(y=column))
    assert store.past.counts.tolist() == [2, 2]


def test_a_text_target_is_refused_by_name_with_the_value_and_its_place():
    frame = PLAIN.assign(y=[1, 2, "north", 4, None])
    message = "Target column 'y' must hold numbers, but 1 of 5 rows hold text, for example 'north'"
    with pytest.raises(ValueError, match=message) as error:
        read(frame)
    assert "'b' at ds 2024-01-05" in str(error.value) and "pd.to_numeric(df['y']" in str(error.value)


def test_numbers_written_as_text_are_refused_and_not_guessed():
    with pytest.raises(ValueError, match=re.escape("5 of 5 rows hold text, for example '1.0'")):
        read(PLAIN.assign(y=PLAIN["y"].astype(str)))


def test_a_target_of_dates_is_refused_by_name():
    with pytest.raises(TypeError, match="Target column 'y' must hold numbers, but has dtype datetime64"):
        read(PLAIN.assign(y=PLAIN["ds"]))


def test_infinite_targets_are_refused_with_their_count_and_places():
    frame = PLAIN.assign(y=[1.0, np.inf, 3.0, -np.inf, 5.0])
    message = "Target column 'y' has 2 infinite value(s) among 5 rows: unique_id 'b' at ds 2024-01-02"
    with pytest.raises(ValueError, match=re.escape(message)):
        read(frame)


@given(long_frames(), st.data())
@COMMON
def test_duplicates_name_the_id_the_time_and_how_many(frame, data):
    frame = frame.dropna()
    if frame.empty:
        return
    row = data.draw(st.integers(0, len(frame) - 1))
    times = data.draw(st.integers(1, 3))
    twice = pd.concat([frame, *[frame.iloc[[row]]] * times]).sample(frac=1, random_state=0)
    with pytest.raises(ValueError) as error:
        read(twice)
    text = str(error.value)
    name, when = frame.iloc[row]["unique_id"], frame.iloc[row]["ds"]
    assert f"{times + 1} rows at unique_id {name!r} at ds {when}" in text
    assert f"1 time(s) in 1 series, {times + 1} rows in all" in text and "duplicates='mean'" in text


def test_duplicates_far_down_the_list_of_ids_are_found():
    ids = np.repeat(np.arange(150), 5)
    frame = pd.DataFrame({"unique_id": ids, "ds": np.tile(np.arange(5), 150), "y": 1.0})
    frame = pd.concat([frame, frame[(frame["unique_id"] >= 100) & (frame["ds"] == 2)]])
    with pytest.raises(
        ValueError,
        match=re.escape(
            "50 time(s) in 50 series, 100 rows in all. The first are 2 rows at unique_id 100 at ds 2"
        ),
    ):
        read(frame)


def test_duplicates_are_resolved_by_mean_or_last_when_asked():
    frame = pd.concat([PLAIN, PLAIN.assign(y=PLAIN["y"] + 2)])
    assert series_of(read(frame, duplicates="mean")[1]) == {"b": [2.0, 3.0, 5.0], "a": [11.0, 31.0]}
    assert series_of(read(frame, duplicates="last")[1]) == {"b": [3.0, 4.0, 6.0], "a": [12.0, 32.0]}


def test_a_repeated_row_without_target_is_no_duplicate():
    frame = pd.concat([PLAIN, PLAIN.assign(y=np.nan)])
    assert_same_observations(read(frame)[1], read(PLAIN)[1])


def test_an_unknown_rule_for_duplicates_is_refused():
    with pytest.raises(ValueError, match="must be one of 'error', 'mean', 'last', not 'first'"):
        read(PLAIN, duplicates="first")


def test_several_targets_keep_their_own_times():
    frame = PLAIN.assign(z=[np.nan, 5.0, 6.0, 7.0, np.nan])
    _, store = read(frame, Columns(targets=("y", "z")))
    assert store.past.counts.tolist() == [3, 2, 2, 1]
    apart = pd.concat([frame.assign(z=np.nan), frame.assign(y=np.nan)])  # each value on a row of its own
    assert_same_observations(read(apart, Columns(targets=("y", "z")))[1], store)


@pytest.mark.parametrize("broken", ["unique_id", "ds"])
def test_missing_ids_and_times_are_refused_with_their_count(broken):
    frame = PLAIN.astype({broken: object})
    frame.loc[[1, 3], broken] = None
    with pytest.raises(
        ValueError, match=re.escape(f"{broken!r} has 2 missing value(s), first at row(s) 1, 3")
    ):
        read(frame)


@given(long_frames())
@COMMON
def test_the_callers_frame_is_never_changed_even_if_read_only(frame):
    before = copy.deepcopy(frame)
    for name in frame.columns:
        values = frame[name].array
        if hasattr(values, "_ndarray"):
            values._ndarray.flags.writeable = False
    read(frame.iloc[::-1])
    read(frame)
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas], ids=["polars", "pyarrow"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@given(frame=long_frames())
@COMMON
def test_other_libraries_give_the_same_series_and_get_their_own_frames_back(convert, zone, frame):
    frame = frame.assign(ds=frame["ds"].dt.tz_localize("UTC").dt.tz_convert(zone) if zone else frame["ds"])
    native = convert(frame)
    _, store = read(native)
    assert_same_observations(store, read(frame)[1])
    rows = np.arange(store.num_series)
    out = store.source.frame(rows, store.end, {"ctsattn": np.zeros(len(rows))})
    assert type(out) is type(native)
    names = ["unique_id", "ds"]
    assert [out.schema[n] if isinstance(out, pl.DataFrame) else out.schema.field(n).type for n in names] == [
        native.schema[n] if isinstance(native, pl.DataFrame) else native.schema.field(n).type for n in names
    ]
    expected = read(frame)[1].source.frame(rows, store.end, {})
    times = out["ds"].to_pylist() if isinstance(out, pa.Table) else out["ds"].to_list()
    assert times == expected["ds"].tolist()


def test_polars_dates_enums_nulls_and_decimals_are_read():
    frame = pl.DataFrame(
        {
            "unique_id": pl.Series(["b", "b", "a"], dtype=pl.Enum(["a", "b", "c"])),
            "ds": pl.Series(["2024-01-01", "2024-01-02", "2024-01-01"]).str.to_date(),
            "y": pl.Series(["1.5", None, "2.5"]).cast(pl.Decimal(8, 2)),
        }
    )
    _, store = read(frame)
    assert series_of(store) == {"b": [1.5], "a": [2.5]}
    out = store.source.frame(np.arange(2), store.end, {})
    assert out.schema == {"unique_id": frame.schema["unique_id"], "ds": pl.Date}


def test_pyarrow_backed_pandas_columns_give_the_same_series():
    arrow = PLAIN.convert_dtypes(dtype_backend="pyarrow")
    arrow["ds"] = PLAIN["ds"].astype(pd.ArrowDtype(pa.timestamp("us", "UTC")))
    _, store = read(arrow)
    assert_same_observations(store, read(PLAIN)[1])
    out = store.source.frame(np.zeros(1, int), store.end[:1], {})
    assert out.dtypes.to_dict() == arrow.dtypes[["unique_id", "ds"]].to_dict()


def test_lazy_frames_and_other_objects_are_refused_by_type():
    with pytest.raises(TypeError, match="Expected a pandas, polars or pyarrow frame, got LazyFrame"):
        read(pl.from_pandas(PLAIN).lazy())
    with pytest.raises(TypeError, match="got dict"):
        read({"ds": [1], "y": [2]})


def test_columns_of_one_name_and_empty_frames_are_refused():
    with pytest.raises(ValueError, match="Column name\\(s\\) 'y' occur more than once"):
        read(pd.concat([PLAIN, PLAIN[["y"]]], axis=1))
    with pytest.raises(ValueError, match="The frame has no rows"):
        read(PLAIN.iloc[:0])


def test_a_missing_target_or_time_column_is_named_with_what_was_found():
    with pytest.raises(
        ValueError, match="target column 'sales' is not in the frame, which has 'unique_id', 'ds', 'y'"
    ):
        read(PLAIN, Columns(targets=("sales",)))
    with pytest.raises(ValueError, match="time column 'when' is not in the frame"):
        read(PLAIN, Columns(time="when"))


def test_a_column_with_two_roles_is_refused():
    with pytest.raises(ValueError, match="one role, but 'price' is named for more than one"):
        Columns.of(past_cols=["price"], future_cols=["price"])


def test_unknown_ids_in_a_frame_of_times_are_named():
    panel = read_panel(PLAIN, Columns())
    asked = pd.DataFrame({"unique_id": ["a", "zz"], "ds": pd.to_datetime(["2024-02-01"] * 2)})
    with pytest.raises(ValueError, match="1 id\\(s\\) have no history, for example 'zz'"):
        read_rows(asked, panel.source)


def test_a_frame_of_times_without_ids_goes_to_every_series():
    panel = read_panel(PLAIN, Columns())
    rows = read_rows(pd.DataFrame({"ds": pd.to_datetime(["2024-02-01", "2024-02-02"])}), panel.source)
    assert rows.series.tolist() == [0, 0, 1, 1]


def test_ids_are_matched_by_value_between_frames_of_different_dtypes():
    frame = PLAIN.astype({"unique_id": "category"})
    panel = read_panel(frame, Columns())
    rows = read_rows(PLAIN.astype({"unique_id": "string"}), panel.source)
    assert rows.series.tolist() == [0, 0, 0, 1, 1]


def test_times_of_other_frames_are_put_on_the_clock_of_the_history():
    nanoseconds = PLAIN.assign(ds=PLAIN["ds"].dt.as_unit("ns") + pd.Timedelta(1, "ns"))
    panel = read_panel(nanoseconds, Columns())
    later = pd.DataFrame({"unique_id": "a", "ds": pd.Series(pd.to_datetime(["2024-02-01"])).dt.as_unit("s")})
    rows = read_rows(later, panel.source)
    assert rows.ticks.tolist() == [pd.Timestamp("2024-02-01").as_unit("ns").value]
    berlin = read_panel(PLAIN.assign(ds=PLAIN["ds"].dt.tz_localize("Europe/Berlin")), Columns())
    with pytest.warns(DataWarning, match=r"'ds' have no zone.*read on the wall clock of Europe/Berlin"):
        (tick,) = read_rows(later, berlin.source).ticks
    assert pd.Timestamp(tick, unit="us") == pd.Timestamp("2024-01-31 23:00")
    for zone in ("Europe/Berlin", "UTC"):
        read_rows(later.assign(ds=later["ds"].dt.tz_localize(zone)), berlin.source)  # and no warning
    utc = read_panel(PLAIN.assign(ds=PLAIN["ds"].dt.tz_localize("UTC")), Columns())
    (tick,) = read_rows(later, utc.source).ticks
    assert pd.Timestamp(tick, unit="us") == pd.Timestamp("2024-02-01")


def test_several_id_columns_are_refused_with_the_line_that_joins_them():
    for argument in ("id_col", "time_col"):
        with pytest.raises(TypeError, match=rf"`{argument}` names one column.*agg\('/'.join, axis=1\)"):
            Columns.of(**{argument: ["store", "item"]})
