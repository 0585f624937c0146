"""Frames with mixed faults: each ends in a finite forecast, or in an error that says what and where."""

from __future__ import annotations

import decimal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import ctsattn
from ctsattn import Forecaster, models
from ctsattn.data.schema import DataWarning
from ctsattn.forecasting import Training, TrainingWarning

FRAMES, BLOCKS = 500, 10
HOME = str(Path(ctsattn.__file__).parent)
TINY = models.ContinuousTransformer(d_model=8, num_layers=1, num_heads=2, dropout=0.0)
Rng = np.random.Generator
Fault = Callable[[pd.DataFrame, Rng], pd.DataFrame]


def base(rng: Rng) -> pd.DataFrame:
    parts = []
    for number in range(rng.integers(1, 5)):
        length = int(rng.choice([1, 2, 3, 8, 30]))
        hours = np.cumsum(rng.exponential(5.0, length))
        y = rng.normal(0, 1, length) * 10.0 ** rng.integers(-3, 6) + rng.normal(0, 100)
        stamps = pd.Timestamp("2024-03-25") + pd.to_timedelta((hours * 3600).round(), "s")
        parts.append(pd.DataFrame({"unique_id": f"s{number}", "ds": stamps, "y": y}))
    return pd.concat(parts, ignore_index=True)


def some(frame: pd.DataFrame, rng: Rng, share: float = 0.2) -> np.ndarray:
    rows = rng.random(len(frame)) < share
    rows[rng.integers(len(frame))] = True
    return rows


def put(column: str, value: object, share: float = 0.2) -> Fault:
    def fault(frame: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        frame = (
            frame.astype({column: object}) if not isinstance(value, float) or column != "y" else frame.copy()
        )
        frame.loc[some(frame, rng, share), column] = value
        return frame

    return fault


def hours_since(frame: pd.DataFrame) -> pd.Series:
    return (frame["ds"] - frame["ds"].min()) / pd.Timedelta("1h")


FAULTS: dict[str, Fault] = {
    "nothing": lambda f, r: f,
    "shuffled": lambda f, r: f.sample(frac=1, random_state=int(r.integers(1000))),
    "columns turned": lambda f, r: f[f.columns[::-1]],
    "missing targets": put("y", np.nan),
    "one series all missing": lambda f, r: f.assign(y=f["y"].where(f["unique_id"] != "s0")),
    "all targets missing": lambda f, r: f.assign(y=np.nan),
    "infinite targets": put("y", np.inf),
    "text in target": put("y", "north"),
    "numbers as text": lambda f, r: f.assign(y=f["y"].astype(str)),
    "decimals": lambda f, r: f.assign(y=[decimal.Decimal(str(round(v, 3))) for v in f["y"]]),
    "None in target": put("y", None),
    "complex target": lambda f, r: f.assign(y=f["y"] + 1j),
    "boolean target": lambda f, r: f.assign(y=f["y"] > 0),
    "nullable target": lambda f, r: f.assign(
        y=f["y"].round().clip(-1e6, 1e6).astype("Int64").mask(some(f, r))
    ),
    "constant": lambda f, r: f.assign(y=7.0),
    "zeros": lambda f, r: f.assign(y=0.0),
    "huge": lambda f, r: f.assign(y=f["y"] * 1e200),
    "beyond float": lambda f, r: f.assign(y=1.7e308 * np.sign(f["y"])),
    "tiny": lambda f, r: f.assign(y=f["y"] * 1e-300),
    "far level": lambda f, r: f.assign(y=f["y"] + 1e15),
    "duplicates": lambda f, r: pd.concat([f, f[some(f, r)]]),
    "duplicates that differ": lambda f, r: pd.concat([f, f[some(f, r)].assign(y=-1.0)]),
    "missing ids": put("unique_id", None),
    "integer ids": lambda f, r: f.assign(unique_id=f["unique_id"].str[1:].astype(int)),
    "mixed ids": lambda f, r: f.assign(unique_id=[i if n % 2 else 5 for n, i in enumerate(f["unique_id"])]),
    "categories": lambda f, r: f.assign(
        unique_id=pd.Categorical(f["unique_id"], categories=["none", "s3", "s2", "s1", "s0"])
    ),
    "no ids": lambda f, r: f.drop(columns="unique_id", errors="ignore"),
    "missing times": put("ds", pd.NaT),
    "zone": lambda f, r: f.assign(ds=f["ds"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")),
    "coarse unit": lambda f, r: f.assign(ds=f["ds"].astype("datetime64[s]")),
    "ancient": lambda f, r: f.assign(ds=f["ds"].astype("datetime64[s]") - pd.Timedelta(300 * 365, "D")),
    "integer times": lambda f, r: f.assign(ds=hours_since(f).round().astype(int)),
    "negative float times": lambda f, r: f.assign(ds=hours_since(f) - 1e4),
    "infinite times": lambda f, r: f.assign(ds=hours_since(f).where(~some(f, r), np.inf)),
    "nanosecond numbers": lambda f, r: f.assign(ds=f["ds"].astype("datetime64[ns]").astype("int64")),
    "timedeltas": lambda f, r: f.assign(ds=f["ds"] - f["ds"].min()),
    "text times": lambda f, r: f.assign(ds=f["ds"].astype(str)),
    "text times of another order": lambda f, r: f.assign(ds=f["ds"].dt.strftime("%d/%m/%Y %H:%M")),
    "times that are no times": lambda f, r: f.assign(ds=[[1]] * len(f)),
    "mixed times": put("ds", "yesterday"),
    "dates": lambda f, r: f.assign(ds=f["ds"].dt.date),
    "periods": lambda f, r: f.assign(ds=f["ds"].dt.to_period("h")),
    "all at one time": lambda f, r: f.assign(ds=pd.Timestamp("2024-01-01")),
    "a hole of years": lambda f, r: f.assign(
        ds=f["ds"].where(f.index < len(f) // 2, f["ds"] + pd.Timedelta(9000, "D"))
    ),
    "extra numbers": lambda f, r: f.assign(x=np.where(some(f, r), np.nan, r.normal(size=len(f)))),
    "infinite covariate": lambda f, r: f.assign(x=np.where(some(f, r), np.inf, 1.0)),
    "extra text": lambda f, r: f.assign(word=r.choice(["a", "b", None], len(f))),
    "extra times": lambda f, r: f.assign(when=f["ds"]),
    "extra objects": lambda f, r: f.assign(thing=[{} for _ in range(len(f))]),
    "column named twice": lambda f, r: pd.concat([f, f["y"]], axis=1),
    "no target": lambda f, r: f.drop(columns="y"),
    "no time": lambda f, r: f.drop(columns="ds"),
    "no rows": lambda f, r: f.iloc[:0],
    "one row": lambda f, r: f.iloc[:1],
    "MultiIndex": lambda f, r: f.set_index(["unique_id", "ds"]),
    "time index": lambda f, r: f.set_index("ds"),
    "odd index": lambda f, r: f.set_axis(["i"] * len(f), axis=0),
    "index named like a column": lambda f, r: f.set_axis(pd.Index(range(len(f)), name="y"), axis=0),
    "header of two levels": lambda f, r: f.set_axis(pd.MultiIndex.from_product([f.columns, ["a"]]), axis=1),
    "other dialect": lambda f, r: f.set_axis(
        [{"unique_id": "item_id", "ds": "timestamp", "y": "target"}.get(str(c), c) for c in f.columns], axis=1
    ),
}


def make(number: int) -> tuple[list[str], object]:
    """Frame `number` and the names of its faults; a fault that cannot be laid on another one is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lay_faults(number)


def lay_faults(number: int) -> tuple[list[str], object]:
    rng = np.random.default_rng([2024, number])
    names = [*FAULTS]
    chosen = [names[number % len(names)], *rng.choice(names, rng.integers(0, 3))]
    frame, laid = base(rng), []
    if rng.random() < 0.4:
        frame = with_covariates(frame, rng)
    for name in chosen:
        try:
            frame, laid = FAULTS[name](frame, rng), [*laid, str(name)]
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError):
            continue
    if rng.random() < 0.15:
        try:
            return [*laid, "polars"], pl.from_pandas(frame)
        except Exception:  # a frame that polars cannot hold stays with pandas
            return laid, frame
    return laid, frame


def with_covariates(frame: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    return frame.assign(
        x=rng.normal(size=len(frame)), word=rng.choice(["a", "b"], len(frame)), price=rng.random(len(frame))
    )


def clean() -> pd.DataFrame:
    """Every id that faulty frames may have, with enough rows to train on."""
    rng = np.random.default_rng([7, 7])
    hours = np.cumsum(rng.exponential(5.0, (4, 12)), axis=1).ravel()
    stamps = pd.Timestamp("2024-03-25") + pd.to_timedelta((hours * 3600).round(), "s")
    return pd.DataFrame(
        {"unique_id": np.repeat(["s0", "s1", "s2", "s3"], 12), "ds": stamps, "y": rng.normal(size=48)}
    )


CLEAN = clean()


@pytest.fixture(scope="module")
def trained() -> Forecaster:
    """A small model of clean data with covariates of every role; the faulty frames are its histories."""
    training = Training(max_steps=2, batch_size=4, accelerator="cpu", patience=None)
    forecaster = Forecaster(
        "12h", TINY, training, past_cols=["x", "word"], future_cols=["price"], verbose=False
    )
    return forecaster.fit(with_covariates(CLEAN, np.random.default_rng(1)))


def fitted(frame: object, number: int) -> Forecaster:
    """Fit a model with weights to every third frame, a naive one to the others."""
    model = models.SeasonalNaive() if number % 3 else TINY
    training = Training(max_steps=1, batch_size=4, accelerator="cpu")
    duplicates = ("error", "last", "mean")[number // 3 % 3]
    horizon = (None, 3)[number % 2]
    return Forecaster(horizon, model, training, verbose=False, duplicates=duplicates).fit(frame)


Ask = Callable[[object, int, Forecaster], object]

ASKS: dict[str, Ask] = {
    "fit, steps": lambda f, n, m: fitted(f, n).predict(h=3, level=[80, 99]),
    "history": lambda f, n, m: m.predict(df=f, h=2),
    "fit, quantiles": lambda f, n, m: fitted(f, n).predict(quantiles=[0.01, 0.99]),
    "history, span": lambda f, n, m: m.predict(df=f, horizon="5h", level=[50]),
    "fit, sample": lambda f, n, m: fitted(f, n).sample(2, h=2, seed=0),
    "future": lambda f, n, m: m.predict(future_df=f),
    "fit, cross-validation": lambda f, n, m: fitted(f, n).cross_validation(f, n_windows=1),
    "past": lambda f, n, m: m.predict(df=CLEAN, past_df=f, h=1),
    "fit, impute": lambda f, n, m: fitted(f, n).impute(times=f),
    "static": lambda f, n, m: m.predict(df=CLEAN, static_df=f, h=1),
    "fit, partial fit": lambda f, n, m: fitted(f, n).partial_fit(f).predict(h=1),
    "times": lambda f, n, m: m.predict(times=f),
    "fit, score": lambda f, n, m: pd.DataFrame({"ctsattn": [fitted(f, n).score(f)]}),
    "history, sample": lambda f, n, m: m.sample(2, df=f, h=2, seed=0),
    "fit, validation": lambda f, n, m: fitted(CLEAN, n).fit(CLEAN, val=f).predict(h=1),
    "covariates in fit": lambda f, n, m: fitted(CLEAN, n).fit(CLEAN, past_df=f).predict(h=1),
}


def values_of(answer: object) -> np.ndarray:
    table = answer.to_pandas() if isinstance(answer, pl.DataFrame) else answer
    assert len(table) > 0
    return table[[c for c in table if str(c).startswith("ctsattn")]].to_numpy(float)


def same(first: object, second: object) -> bool:
    if isinstance(first, pl.DataFrame):
        return first.equals(second)
    pd.testing.assert_frame_equal(first, second)
    return True


def ask_of(number: int) -> str:
    """Faults recur every `len(FAULTS)` frames; the shift lets each meet other ways of asking."""
    return [*ASKS][(number + number // len(FAULTS)) % len(ASKS)]


def refused(error: Exception) -> bool:
    """Whether it is an error of ours that quotes a name: a column, an id or an argument."""
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    return (
        isinstance(error, (ValueError, TypeError))
        and where.startswith(HOME)
        and bool(set("'`") & set(str(error)))
    )


@pytest.mark.parametrize("block", range(BLOCKS))
def test_frames_with_mixed_faults_end_in_a_finite_forecast_or_in_an_error_of_ours(trained, block):
    answered = 0
    for number in range(block, FRAMES, BLOCKS):
        faults, frame = make(number)
        case = f"frame {number}, {ask_of(number)!r}, {faults}"
        copy = frame.clone() if isinstance(frame, pl.DataFrame) else frame.copy(deep=True)
        # Seconds of this process, so that a busy machine does not fail the test.
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", (DataWarning, TrainingWarning))
            try:
                values = values_of(ASKS[ask_of(number)](frame, number, trained))
            except Exception as error:
                assert refused(error), f"{case}: {error!r}"
            else:
                answered += 1
                assert np.isfinite(values).all(), case
        assert time.process_time() - begin < 5, case
        assert same(frame, copy), f"{case}: the caller's frame changed"
    assert answered > 5


def test_every_fault_is_laid_on_some_frame_and_every_way_of_asking_answers_some():
    laid = {fault for number in range(FRAMES) for fault in make(number)[0]}
    assert laid == {*FAULTS, "polars"}
    assert {ask_of(number) for number in range(FRAMES)} == set(ASKS)
