"""Files of every kind come back as they were written, and bad ones are refused in words."""

import io

import pandas as pd
import pytest

from ctsattn.cli import files
from ctsattn.cli.files import read_frame, write_frame

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
