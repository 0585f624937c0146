"""What holds for every data set in `DATASETS`."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from ctsattn import datasets
from ctsattn.datasets import DATASETS, card, load, split
from ctsattn.datasets.splits import SeriesSplit

NAMED_IN_ISSUE = {
    "etth1",
    "etth2",
    "ettm1",
    "ettm2",
    "exchange",
    "ili",
    "weather",
    "ecl",
    "traffic",
    "solar",
    "m1_yearly",
    "m1_quarterly",
    "m1_monthly",
    "m3_yearly",
    "m3_quarterly",
    "m3_monthly",
    "m3_other",
    "m4_yearly",
    "m4_quarterly",
    "m4_monthly",
    "m4_weekly",
    "m4_daily",
    "m4_hourly",
    "tourism_yearly",
    "tourism_quarterly",
    "tourism_monthly",
    "hospital",
    "physionet2012",
    "activity",
    "ushcn",
    "asas",
    "groundwater",
    "co2_flasks",
    "river_samples",
    "sines",
    "ornstein_uhlenbeck",
    "lorenz63",
    "damped_oscillators",
    "physiome_goodwin",
}
_SMALL = {"series": 6, "observations": 40}


@pytest.fixture(params=list(DATASETS), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def small(name, made_up) -> pd.DataFrame:
    """A small frame of the set: made by its formula, or read from made-up files."""
    dataset = DATASETS[name]
    return load(name, **_SMALL) if dataset.synthetic else dataset.load(made_up(name))


def _rank(frame: pd.DataFrame, keys: list[str]) -> np.ndarray:
    """Place of each row in the order of the keys; equal rows have equal places."""
    rank = np.zeros(len(frame), dtype=np.int64)
    for key in keys:
        column = frame[key]
        place = column.cat.codes if column.dtype == "category" else pd.factorize(column, sort=True)[0]
        rank = rank * (int(np.max(place)) + 1) + np.asarray(place, dtype=np.int64)
    return rank


def _check_frame(frame: pd.DataFrame, variables: tuple[str, ...]) -> None:
    keys = ["unique_id", "variable", "ds"] if variables else ["unique_id", "ds"]
    assert list(frame.columns)[: len(keys) + 1] == [*keys, "y"]
    assert frame["y"].dtype == np.float64
    assert isinstance(frame["unique_id"].dtype, pd.CategoricalDtype)
    assert frame["ds"].dtype.kind in "Mmfi"
    assert not frame["ds"].isna().any()
    assert not np.isinf(frame["y"]).any()
    assert (np.diff(_rank(frame, keys)) > 0).all(), "not sorted, or a time stands twice"
    if variables:
        assert tuple(frame["variable"].cat.categories) == variables


def test_frame_is_long_sorted_and_without_repeated_times(name, small):
    _check_frame(small, DATASETS[name].variables)


def test_real_frame_is_long_sorted_and_without_repeated_times(name, real_frame):
    if DATASETS[name].synthetic:
        pytest.skip("made by a formula")
    _check_frame(real_frame(name), DATASETS[name].variables)


def test_card_is_complete(name):
    dataset = DATASETS[name]
    assert dataset.name == name
    for field in ("title", "origin", "license", "citation", "sampling", "metric"):
        assert getattr(dataset, field).strip(), field
    assert dataset.horizons
    assert dataset.synthetic or dataset.series
    for source in dataset.sources:
        assert source.url.startswith("https://")
        assert source.names
        assert source.checksum is None or re.fullmatch(
            r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|git-blob:[0-9a-f]{40}", source.checksum
        )
    assert list(dataset.checksums.values()) == [source.checksum for source in dataset.sources]


def _check_parts(frame: pd.DataFrame, dataset: datasets.Dataset) -> None:
    if isinstance(dataset.split, SeriesSplit) and frame["unique_id"].nunique() < 5:
        with pytest.raises(ValueError, match="at least 5"):
            dataset.split.labels(frame)
        return
    labels = dataset.split.labels(frame)
    assert len(labels) == len(frame)
    assert set(np.unique(labels)) <= {"train", "val", "test", ""}
    if isinstance(dataset.split, SeriesSplit):
        codes = frame["unique_id"].cat.codes.to_numpy()
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        assert (labels == labels[first][codes]).all(), "a series is in two parts"
        return
    keys = [key for key in ("unique_id", "variable") if key in frame]
    ds = pd.Series(frame["ds"].to_numpy())
    group = [frame[key].to_numpy() for key in keys]
    first, last = (ds.groupby([*group, labels], observed=True).agg(how).unstack(-1) for how in ("min", "max"))
    for before, after in (("train", "val"), ("val", "test"), ("train", "test")):
        if before in last and after in first:
            both = last[before].notna() & first[after].notna()
            assert (last[before][both] < first[after][both]).all(), f"{before} and {after} overlap"


def test_parts_are_disjoint_in_time_or_in_series(name, small):
    _check_parts(small, DATASETS[name])


def test_parts_of_the_real_frame_are_disjoint_and_none_is_empty(name, real_frame):
    if DATASETS[name].synthetic:
        pytest.skip("made by a formula")
    frame = real_frame(name)
    _check_parts(frame, DATASETS[name])
    assert all(len(part) for part in split(frame, DATASETS[name].split).values())


def test_every_set_that_the_project_promises_is_there():
    assert set(DATASETS) >= NAMED_IN_ISSUE


def test_an_unknown_name_is_answered_with_names_that_resemble_it():
    with pytest.raises(ValueError, match=r"Did you mean `etth1`"):
        card("ETT-h1")


def test_options_for_a_set_read_from_files_are_refused():
    with pytest.raises(TypeError, match="takes no options"):
        load("etth1", seed=3)


def test_load_names_the_set_and_warns_of_another_version(made_up, monkeypatch):
    monkeypatch.setenv("CTSATTN_DATA", str(made_up("weather")[0].parent))
    with pytest.warns(UserWarning, match="should have 1106595 rows"):
        frame = load("weather")
    assert frame.attrs["dataset"] == "weather"


def test_clean_leaves_out_numbers_that_mean_unknown(tmp_path, monkeypatch):
    (tmp_path / "weather.csv").write_text(
        "date,p (mbar),wv (m/s),OT\n2030-01-01 00:10:00,990.0,-9999.0,1.0\n"
        "2030-01-01 00:20:00,-9999.0,2.0,3.0\n"
    )
    monkeypatch.setenv("CTSATTN_DATA", str(tmp_path))
    with pytest.warns(UserWarning, match="another version"):
        kept, cleaned = load("weather"), load("weather", clean=True)
    assert len(kept) == 6
    assert len(cleaned) == 5  # -9999 in `p` is no sentinel of the card and stays
    assert not ((cleaned["unique_id"] == "wv (m/s)") & (cleaned["y"] == -9999)).any()


def test_a_set_that_is_no_table_says_which_are():
    with pytest.raises(ValueError, match="etth1"):
        datasets.load_table("asas")
