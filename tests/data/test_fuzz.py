"""Frames with any mixture of faults end in a finite batch, or in an error of ours that helps."""

import copy
import datetime as dt
import traceback
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ctsattn.data.collate import Collator
from ctsattn.data.schema import DataWarning
from ctsattn.data.task import infer_task
from ctsattn.data.windows import TrainingWindows, answer_windows
from tests.data.frames import long_frames, read


def put(column, values):
    """A fault that puts values into some rows of a column."""

    def fault(frame, rng):
        frame = frame.astype({column: object})
        rows = rng.integers(0, len(frame), 2)
        frame.iloc[rows, frame.columns.get_loc(column)] = values[rng.integers(len(values))]
        return frame

    return fault


def zoned(frame, rng):
    return frame.assign(ds=frame["ds"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"))


FAULTS = {
    "missing ids": put("unique_id", [None, np.nan]),
    "odd ids": put("unique_id", [1, 2.5, "", ("t", 1), dt.date(2024, 1, 1), True]),
    "missing times": put("ds", [None, pd.NaT]),
    "odd times": put(
        "ds", ["2024-01-01", "yesterday", 5, 1.5, pd.Timestamp("2024", tz="UTC"), dt.date(2024, 1, 1), {}]
    ),
    "odd targets": put(
        "y", ["north", np.inf, None, pd.NA, 1 + 2j, True, [1], dt.date(2024, 1, 1), 10**30, 10**200, "3.5"]
    ),
    "rows twice": lambda f, rng: pd.concat([f, f.iloc[: rng.integers(1, 3)]]),
    "shuffled rows": lambda f, rng: f.sample(frac=1, random_state=int(rng.integers(99))),
    "text times": lambda f, rng: f.assign(ds=f["ds"].astype(str)),
    "day-first times": lambda f, rng: f.assign(ds=f["ds"].astype(object).map(lambda t: f"{t:%d/%m/%Y}")),
    "integer times": lambda f, rng: f.assign(ds=f["ds"].astype("int64")),
    "float times": lambda f, rng: f.assign(ds=f["ds"].astype("int64") / 1e6),
    "zoned times": lambda f, rng: zoned(f, rng),
    "periods": lambda f, rng: f.assign(ds=f["ds"].dt.to_period("D")),
    "no times": lambda f, rng: f.drop(columns="ds"),
    "no ids": lambda f, rng: f.drop(columns="unique_id"),
    "no targets": lambda f, rng: f.assign(y=np.nan),
    "no target column": lambda f, rng: f.drop(columns="y"),
    "no rows": lambda f, rng: f.iloc[:0],
    "constant": lambda f, rng: f.assign(y=7),
    "huge": lambda f, rng: f.assign(y=f["y"] * 1e80),
    "booleans": lambda f, rng: f.assign(y=f["y"] > 0),
    "nullable": lambda f, rng: f.convert_dtypes(),
    "pyarrow dtypes": lambda f, rng: f.convert_dtypes(dtype_backend="pyarrow"),
    "categories": lambda f, rng: f.astype("category"),
    "time index": lambda f, rng: f.set_index("ds"),
    "two levels": lambda f, rng: f.set_index(["unique_id", "ds"]),
    "odd index": lambda f, rng: f.set_axis(rng.permutation(len(f)) - 5),
    "extra columns": lambda f, rng: f.assign(
        a=rng.normal(size=len(f)), b="text", c=None, d=[{}] * len(f), e=pd.Timestamp("2024")
    ),
    "one name twice": lambda f, rng: pd.concat([f, f[["y"]]], axis=1),
    "other names": lambda f, rng: f.set_axis([f"{c}_" for c in f.columns], axis=1),
    "polars": lambda f, rng: pl.from_pandas(f),
    "pyarrow": lambda f, rng: pa.Table.from_pandas(f),
}


def spoiled(frame, faults, rng):
    """Apply faults one after the other; one that does not apply any more is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fault in faults:
            try:
                frame = FAULTS[fault](frame, rng)
            except Exception:
                continue
    return frame


def unchanged(frame, before):
    return frame.equals(before)


@given(long_frames(), st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=3), st.integers(0, 999))
@settings(max_examples=400, deadline=5000, derandomize=True)
def test_any_frame_ends_in_a_finite_batch_or_in_an_error_that_helps(frame, faults, seed):
    rng = np.random.default_rng(seed)
    frame = spoiled(frame, faults, rng)
    before = copy.deepcopy(frame)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            schema, store = read(frame)
            spec = infer_task(store, schema)
            collate, number = Collator(schema, spec), np.arange(store.num_series)
            batches = [collate(store, answer_windows(store, spec, number, store.end + 1))]
            windows = TrainingWindows(store, spec, impute=0.5)
            if windows.cutoffs().size:
                batches.append(collate(store, windows.draw(4, rng), truth=True))
    except (ValueError, TypeError) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        assert "/ctsattn/data/" in raised_in, f"{type(error).__name__} of {raised_in}: {error}"
        assert len(str(error)) > 60 and any(c in str(error) for c in ("`", "'", "df"))
    else:
        for batch in batches:
            for name, tensor in vars(batch).items():
                assert np.isfinite(tensor.numpy()).all(), name
    assert unchanged(frame, before)
