"""Files of every kind come back as they were written, and bad ones are refused in words."""

import io

import pandas as pd
import pytest

from ctsattn.cli import files
from ctsattn.cli.files import read_frame, read_times, write_frame

FRAME = pd.DataFrame({"unique_id": ["007", "b"], "ds": ["2024-01-01", "2024-01-02"], "y": [1.5, None]})
NAMES = [
    "d.csv",
    "d.csv.gz",
    "d.csv.zip",
    "d.csv.xz",
    "d.csv.bz2",
    "d.tsv",
    "d.parquet",
    "d.parquet.gz",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_survives_the_way_through_a_file(tmp_path, name):
    write_frame(FRAME, str(tmp_path / name))
    again = read_frame(str(tmp_path / name), ("unique_id",))
    pd.testing.assert_frame_equal(again, FRAME, check_dtype=False)
    assert again["unique_id"].tolist() == ["007", "b"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_pipe_may_carry_csv_or_parquet(monkeypatch, kind):
    content = FRAME.to_csv(index=False).encode() if kind == "csv" else FRAME.to_parquet(index=False)
    monkeypatch.setattr(files.sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    pd.testing.assert_frame_equal(read_frame("-", ("unique_id",)), FRAME, check_dtype=False)


@pytest.mark.parametrize("name", ["d.xlsx", "d", "d.gz"])
def test_a_name_that_says_nothing_is_refused_with_what_is_accepted(tmp_path, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"does not say what the file is. Accepted are .csv"):
        read_frame(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content"), [("d.csv", b""), ("d.csv.gz", b"no gzip"), ("d.parquet", b"PAR1 but no more")]
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}' could not be read as"):
        read_frame(str(tmp_path / name))


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        write_frame(FRAME, str(tmp_path / "d.parquet"))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz"])
def test_fields_may_stand_between_other_marks(tmp_path, separator, name):
    FRAME.to_csv(tmp_path / name, index=False, sep=separator)
    again = read_frame(str(tmp_path / name), ("unique_id",))
    pd.testing.assert_frame_equal(again, FRAME, check_dtype=False)


def test_decimals_may_follow_a_comma_where_fields_do_not(monkeypatch, tmp_path):
    text = "Datum;Wert;Ort\n31.01.2024;-1,5;a,b\n01.02.2024;;c\n"
    (tmp_path / "d.csv").write_text(text)
    monkeypatch.setattr(files.sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for place in (str(tmp_path / "d.csv"), "-"):
        frame = read_frame(place)
        assert frame["Wert"].iloc[0] == -1.5 and frame["Wert"].isna().tolist() == [False, True]
        assert frame["Ort"].tolist() == ["a,b", "c"]


def test_a_column_with_decimal_commas_may_hold_whole_numbers_and_texts_stay(tmp_path):
    (tmp_path / "d.csv").write_text("y;code;x\n1,5;1,a;3\n2;2;4\n-3,25;3,5;5\n")
    frame = read_frame(str(tmp_path / "d.csv"))
    assert frame["y"].tolist() == [1.5, 2.0, -3.25]
    assert frame["code"].tolist() == ["1,a", "2", "3,5"]
    assert frame["x"].tolist() == [3, 4, 5]


def test_times_are_read_by_the_format_that_is_given_and_left_alone_without_one():
    frame = pd.DataFrame({"t": ["31.01.2024", "01.02.2024"], "y": [1, 2]})
    assert read_times(frame, "t", "%d.%m.%Y")["t"].tolist() == [*pd.to_datetime(["2024-01-31", "2024-02-01"])]
    assert read_times(frame, "t", None) is frame
    with pytest.raises(
        ValueError, match=r"'t' does not follow --time-format '%Y', for example '31.01.2024'"
    ) as caught:
        read_times(frame, "t", "%Y")
    assert "You might want" not in str(caught.value)  # advice on arguments of pandas, which a shell has not
