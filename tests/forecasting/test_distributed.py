"""Forecasts on Dask, Spark and Ray are those made here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctsattn import Forecaster
from ctsattn.forecasting import distributed

from .conftest import irregular, tiny

KEYS = ["unique_id", "cutoff", "ds"]


@pytest.fixture(scope="module")
def df() -> pd.DataFrame:
    return irregular(tuple(f"s{i}" for i in range(6)), length=40)


@pytest.fixture(scope="module")
def model(df: pd.DataFrame) -> Forecaster:
    return tiny().fit(df)


@pytest.fixture(autouse=True)
def _workers_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def in_pieces(engine: str, df: pd.DataFrame) -> tuple[Any, Any]:
    """A frame of an engine, and the engine; skips where it is not installed."""
    pytest.importorskip("fugue", reason="fugue is not installed: pip install 'ctsattn[distributed]'")
    if engine == "native":
        return df, None
    if engine == "dask":
        frames = pytest.importorskip("dask.dataframe", reason="Dask is not installed")
        client = pytest.importorskip("dask.distributed", reason="Dask is not installed").Client
        options = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
        return frames.from_pandas(df, npartitions=3), client(**options)
    if engine == "spark":
        sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed")
        session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = session.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        return session.createDataFrame(df), session
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(num_cpus=2, include_dashboard=False, ignore_reinit_error=True)
    coded = df.astype({"unique_id": "category"})  # a dictionary to Arrow, which fugue's schemas do not have
    return ray.data.from_pandas(coded), "ray"


def assert_equal_rows(found: Any, expected: pd.DataFrame) -> None:
    """The same rows, whatever their order."""
    import fugue.api

    keys = [key for key in KEYS if key in expected]
    one, two = (f.sort_values(keys, ignore_index=True) for f in (fugue.api.as_pandas(found), expected))
    assert one.columns.tolist() == two.columns.tolist()
    for column in two.columns:
        if column in keys:
            assert (one[column].to_numpy() == two[column].to_numpy()).all(), column
        else:
            np.testing.assert_allclose(one[column], two[column], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of the engines, which are not ours
@pytest.mark.parametrize("engine", ["native", "dask", "spark", "ray"])
def test_an_engine_gives_the_rows_that_are_made_here(df, model, engine):
    frame, where = in_pieces(engine, df)
    asked = {"horizon": "1D", "level": [80]}
    found = distributed.predict(model, frame, engine=where, buckets=3, **asked)
    assert_equal_rows(found, model.predict(df=df, **asked))
    if engine != "native":
        folds = distributed.cross_validation(model, frame, 2, level=[80], engine=where, buckets=3)
        assert_equal_rows(folds, model.cross_validation(df, 2, level=[80]))


def test_each_id_has_one_bucket_wherever_it_is_asked_for():
    ids = pd.Series(["a", "b", "a", "c"])
    first = distributed._bucket_of(ids, 8)
    assert first[0] == first[2]
    np.testing.assert_array_equal(distributed._bucket_of(ids.iloc[::-1], 8), first[::-1])
    assert len(set(distributed._bucket_of(pd.Series(range(1000)), 8))) == 8


def test_what_no_process_can_know_is_asked_for(df):
    with pytest.raises(ValueError, match="Say what the windows look ahead"):
        distributed.cross_validation(tiny(horizon=None), df, 2)
