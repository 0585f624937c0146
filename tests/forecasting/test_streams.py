"""Frames larger than memory: the same model and the same forecasts as from one frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from ctsattn import Forecaster, models
from ctsattn.data import diskstore, spool, stream
from ctsattn.data.diskstore import DiskStore
from ctsattn.forecasting import partitions, parts

from .conftest import assert_same_forecast, irregular, tiny

IDS = tuple(f"s{i}" for i in range(7))


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 20 rows count as more than memory holds."""
    monkeypatch.setattr(stream, "HEAD_ROWS", 20)
    monkeypatch.setattr(stream, "_PIECE_ROWS", 17)
    monkeypatch.setattr(spool, "BLOCK_ROWS", 50)
    monkeypatch.setattr(diskstore, "BLOCK_ROWS", 50)
    monkeypatch.setattr(parts, "PART_ROWS", 50)


@pytest.fixture(scope="module")
def long() -> pd.DataFrame:
    return irregular(IDS, length=40)


@pytest.fixture(scope="module")
def whole(long: pd.DataFrame) -> Forecaster:
    return tiny().fit(long)


def parquet(df: pd.DataFrame, folder: Path, files: int = 3) -> Path:
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(df)), files)):
        df.iloc[rows].to_parquet(folder / f"{number}.parquet", index=False)
    return folder


def assert_same_model(one: Forecaster, two: Forecaster) -> None:
    first, second = (m.fitted_.network.state_dict() for m in (one, two))
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert one.fitted_.schema == two.fitted_.schema
    assert one.fitted_.spec == two.fitted_.spec
    np.testing.assert_array_equal(one.fitted_.prior, two.fitted_.prior)


def shuffled(df: pd.DataFrame) -> pd.DataFrame:
    """Rows in an order that mixes series and times, the first rows of the series first."""
    heads = df.groupby("unique_id", sort=False).head(1)
    rest = df.drop(heads.index).sample(frac=1.0, random_state=0)
    return pd.concat([heads, rest], ignore_index=True)


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("order", ["series by series", "shuffled"])
def test_a_parquet_folder_gives_the_model_and_the_forecasts_of_the_frame(long, whole, tmp_path, order):
    df = shuffled(long) if order == "shuffled" else long
    folder = parquet(df, tmp_path / "data")
    model = tiny().fit(folder)
    assert isinstance(model.fitted_.store, DiskStore)
    assert len(model.fitted_.store.ranges()) > 2
    assert_same_model(model, whole)
    expected = whole.predict(horizon="1D", level=[80])
    for answer in (
        model.predict(horizon="1D", level=[80]),
        whole.predict(df=folder, horizon="1D", level=[80]),
    ):
        answer = answer.to_pandas() if not isinstance(answer, pd.DataFrame) else answer
        assert answer["unique_id"].tolist() == expected["unique_id"].tolist()
        assert (pd.DatetimeIndex(answer["ds"]) == pd.DatetimeIndex(expected["ds"])).all()
        assert_same_forecast(answer, expected)


def pieces_of(kind: str, df: pd.DataFrame, folder: Path) -> Any:
    frames = [part for _, part in df.groupby(np.arange(len(df)) // 30)]
    if kind == "generator":
        return (part for part in frames)
    if kind == "polars":
        return iter([pl.from_pandas(part) for part in frames])
    if kind == "list of frames":
        return frames
    files = sorted(parquet(df, folder / "data").iterdir())
    return [str(file) for file in files] if kind == "files" else files[0]


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("kind", ["generator", "polars", "list of frames", "files", "one file"])
def test_streams_of_every_kind_are_read(long, tmp_path, kind):
    model = tiny(model=models.LastValue()).fit(pieces_of(kind, long, tmp_path))
    known = long.iloc[: -(-len(long) // 3)] if kind == "one file" else long
    expected = tiny(model=models.LastValue()).fit(known).predict(h=2)
    answer = model.predict(h=2)
    answer = answer if isinstance(answer, pd.DataFrame) else answer.to_pandas()
    assert answer["unique_id"].tolist() == expected["unique_id"].tolist()
    assert_same_forecast(answer, expected)


@pytest.mark.usefixtures("small_memory")
def test_covariates_of_all_roles_and_holes_survive_the_way_over_the_disk(long, tmp_path):
    rng = np.random.default_rng(0)
    df = long.assign(
        z=rng.random(len(long)),
        wind=rng.random(len(long)),
        price=rng.choice(["low", "high"], len(long)),
        region=long["unique_id"].map(lambda name: "north" if name < "s3" else "south"),
        size=long["unique_id"].map(lambda name: float(name[1])),
    )
    df.loc[rng.random(len(df)) < 0.2, ["y", "wind", "size"]] = np.nan
    df.loc[df["unique_id"] == "s5", "z"] = np.nan
    df = df.sort_values("ds", ignore_index=True)  # so that the first rows show all texts
    options = {"target_col": ["y", "z"], "past_cols": ["wind"], "future_cols": ["price"]}
    options |= {"static_cols": ["region", "size"]}
    one = tiny(**options).fit(df)
    two = tiny(**options).fit(parquet(df, tmp_path / "data"))
    a, b = one.fitted_.store, two.fitted_.store
    np.testing.assert_array_equal(a.past.values, b.past.values)
    np.testing.assert_array_equal(a.past.times, b.past.times)
    np.testing.assert_array_equal(a.past.indptr, b.past.indptr)
    np.testing.assert_array_equal(a.known.indptr, b.known.indptr)
    np.testing.assert_array_equal(a.running_scale, b.running_scale)
    np.testing.assert_array_equal(a.moments.times, b.moments.times)
    np.testing.assert_array_equal(a.static_codes, b.static_codes)
    assert b.static.shape == a.static.shape


@pytest.mark.usefixtures("small_memory")
def test_validation_and_new_data_go_over_the_disk_too(long, tmp_path):
    from dataclasses import replace

    training = replace(tiny().training, patience=2, validate_every=2)
    early, late = long.groupby("unique_id").head(30), long.groupby("unique_id").tail(10)
    one = tiny(training=training).fit(long)
    two = tiny(training=training).fit(parquet(long, tmp_path / "long"))
    assert one.training_log_.validation_loss == two.training_log_.validation_loss
    assert_same_model(one, two)
    three = tiny().fit(parquet(early, tmp_path / "early")).partial_fit(late)
    four = tiny().fit(early).partial_fit(late)
    assert_same_forecast(three.predict(h=3).to_pandas(), four.predict(h=3))


@pytest.mark.usefixtures("small_memory")
def test_a_forecast_is_written_in_parts_that_are_the_forecast_together(whole, tmp_path):
    folder = whole.predict(horizon="1D", level=[80], out=tmp_path / "out")
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["_SUCCESS", *(f"part-{i:05d}.parquet" for i in range(7))]
    pd.testing.assert_frame_equal(
        pd.read_parquet(folder), whole.predict(horizon="1D", level=[80]), check_exact=False, rtol=0, atol=1e-5
    )


@pytest.mark.usefixtures("small_memory")
def test_a_forecast_that_was_broken_off_goes_on_and_another_one_is_refused(whole, tmp_path, monkeypatch):
    asked = {"h": 2, "out": tmp_path / "out"}
    writes: list[int] = []
    write = partitions.Partitions.write

    def breaks(self: Any, number: int, frame: Any, digest: str) -> None:
        writes.append(number)
        if len(writes) == 4:
            raise KeyboardInterrupt
        write(self, number, frame, digest)

    monkeypatch.setattr(partitions.Partitions, "write", breaks)
    with pytest.raises(KeyboardInterrupt):
        whole.predict(**asked)
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    whole.predict(**asked)
    assert writes == [0, 1, 2, 3, 3, 4, 5, 6]
    assert_same_forecast(pd.read_parquet(tmp_path / "out"), whole.predict(h=2))
    with pytest.raises(ValueError, match="forecast of another model, history or question"):
        whole.predict(h=3, out=tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds other files, for example 'thesis\.txt'"):
        whole.predict(h=2, out=tmp_path / "mine")


def test_a_short_stream_is_one_frame(long, whole, tmp_path):
    assert_same_model(tiny().fit(parquet(long, tmp_path / "data")), whole)


@pytest.mark.usefixtures("small_memory")
def test_bad_streams_are_named(long, tmp_path):
    def later_is_numbers() -> Iterator[pd.DataFrame]:
        yield long
        yield long.assign(ds=np.arange(len(long)))

    (tmp_path / "empty").mkdir()
    cases = [
        (tmp_path / "none", ValueError, r"1 path\(s\) do not exist"),
        (tmp_path / "empty", ValueError, "holds no Parquet file"),
        (iter([]), ValueError, "The stream has no frame"),
        (iter(["row", long]), TypeError, "The stream yields str"),
        (later_is_numbers(), TypeError, "a later one integer times"),
        (iter([long, long.assign(y=np.inf)]), ValueError, "infinite"),
        (iter([long, long]), ValueError, "several values at one time of a series"),
    ]
    for bad, kind, text in cases:
        with pytest.raises(kind, match=text):
            tiny().fit(bad)
    with pytest.raises(ValueError, match="`past_df` does not go with files"):
        tiny().fit(iter([long]), past_df=long)


@pytest.mark.usefixtures("small_memory")
def test_the_files_of_a_stream_go_with_the_model(long, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = tiny(model=models.LastValue()).fit(iter([long]))
    assert list(tmp_path.iterdir())
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "model").predict(h=1), model.predict(h=1))
    (tmp_path / "model").unlink()
    del model
    assert list(tmp_path.iterdir()) == []
