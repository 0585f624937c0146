"""The TSF format: header, attributes, clocks, missing values, and files that break it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctsattn.datasets import read_tsf
from ctsattn.datasets.tsf import clock

_HEADER = (
    "@relation x\n@attribute series_name string\n@attribute start_timestamp date\n@frequency daily\n@data\n"
)


def _write(folder: Path, text: str, encoding: str = "latin-1") -> Path:
    path = folder / "made_up.tsf"
    path.write_bytes(text.encode(encoding))
    return path


def test_header_attributes_and_values_are_read(tmp_path):
    text = (
        "# comment\n\n@relation made_up\n@attribute series_name string\n@attribute state string\n"
        "@attribute size numeric\n@attribute start_timestamp date\n@frequency quarterly\n@horizon 8\n"
        "@missing true\n@equallength false\n@data\n"
        "T1:north:3:2000-02-29 00-00-00:1,2.5,-3e2\nT2:süd:?:1999-12-31 12-30-15:?,4\n"
    )
    tsf = read_tsf(_write(tmp_path, text))
    assert tsf.horizon == 8
    assert tsf.header["relation"] == "made_up"
    assert tsf.attributes == {
        "series_name": "string",
        "state": "string",
        "size": "numeric",
        "start_timestamp": "date",
    }
    frame = tsf.frame()
    assert frame.columns.tolist() == ["unique_id", "ds", "y", "state", "size"]
    assert frame["unique_id"].tolist() == ["T1", "T1", "T1", "T2", "T2"]
    assert frame["state"].tolist() == ["north"] * 3 + ["süd"] * 2
    np.testing.assert_array_equal(frame["y"], [1, 2.5, -300, np.nan, 4])
    np.testing.assert_array_equal(frame["size"], [3, 3, 3, np.nan, np.nan])
    stamps = ["2000-02-29", "2000-05-29", "2000-08-29", "1999-12-31 12:30:15", "2000-03-31 12:30:15"]
    assert frame["ds"].tolist() == [pd.Timestamp(stamp) for stamp in stamps]


@pytest.mark.parametrize(
    ("frequency", "second"),
    [
        ("4_seconds", "2020-01-31 00:00:04"),
        ("minutely", "2020-01-31 00:01:00"),
        ("10_minutes", "2020-01-31 00:10:00"),
        ("half_hourly", "2020-01-31 00:30:00"),
        ("hourly", "2020-01-31 01:00:00"),
        ("daily", "2020-02-01"),
        ("weekly", "2020-02-07"),
        ("monthly", "2020-02-29"),
        ("quarterly", "2020-04-30"),
        ("yearly", "2021-01-31"),
    ],
)
def test_every_frequency_of_the_archive_has_its_step(frequency, second):
    times = clock(np.datetime64("2020-01-31"), frequency, 3)
    assert times[1] == np.datetime64(second)
    assert times.dtype == "datetime64[s]"


def test_a_month_end_comes_back_after_a_shorter_month():
    times = clock(np.datetime64("2019-01-31T06"), "monthly", 3)
    assert times.astype("datetime64[h]").astype(str).tolist() == [
        "2019-01-31T06",
        "2019-02-28T06",
        "2019-03-31T06",
    ]


def test_years_beyond_the_range_of_nanoseconds_are_exact():
    assert clock(np.datetime64("1650-01-01"), "yearly", 801)[-1] == np.datetime64("2450-01-01")


def test_an_unknown_frequency_is_refused_with_those_known():
    with pytest.raises(ValueError, match=r"fortnightly.*weekly"):
        clock(np.datetime64("2020-01-01"), "fortnightly", 2)


def test_without_a_start_stamp_time_counts_from_zero(tmp_path):
    frame = read_tsf(
        _write(tmp_path, "@attribute series_name string\n@frequency daily\n@data\nT1:5,6,7\n")
    ).frame()
    assert frame["ds"].tolist() == [0, 1, 2]


def test_without_a_name_series_are_numbered(tmp_path):
    frame = read_tsf(_write(tmp_path, "@frequency daily\n@data\n5,6\n7\n")).frame()
    assert frame["unique_id"].tolist() == ["T1", "T1", "T2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@relation x\n", "no line `@data`"),
        (_HEADER, "no series after"),
        (_HEADER + "T1:5,6\n", "line 6: 1 attributes, but the header names 2"),
        (_HEADER + "T1:2020-01-01 00-00-00:5,six\n", "line 6: an observation is neither a number"),
        ("@attribute name text\n@data\n", "line 1: expected `@attribute"),
        ("hello\n@data\n", "line 1: expected"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused_with_the_line(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_tsf(_write(tmp_path, text))


def test_utf8_files_can_be_read_as_such(tmp_path):
    text = "@attribute series_name string\n@frequency daily\n@data\nmünchen:1\n"
    assert read_tsf(_write(tmp_path, text, "utf-8"), encoding="utf-8").frame()["unique_id"].tolist() == [
        "münchen"
    ]
