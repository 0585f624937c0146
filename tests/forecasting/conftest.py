"""Tiny models, fitted once, that the tests of the forecaster share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.models import ContinuousTransformer

TINY = ContinuousTransformer(d_model=8, num_layers=1, num_heads=2, dropout=0.0)
QUICK = Training(max_steps=6, batch_size=8, learning_rate=1e-2, accelerator="cpu", patience=None)


def tiny(**options: Any) -> Forecaster:
    """A forecaster that learns little, quickly, and in silence."""
    return Forecaster(**{"model": TINY, "training": QUICK, "horizon": "2D", "verbose": False, **options})


def irregular(ids: tuple[Any, ...] = ("b", "a"), length: int = 30, seed: int = 0) -> pd.DataFrame:
    """Hourly-ish series at irregular times, ids not in alphabetic order, sorted by id and time."""
    rng = np.random.default_rng(seed)
    parts = []
    for number, name in enumerate(ids):
        hours = np.cumsum(rng.exponential(6.0, length)) + 1
        y = 10 * (number + 1) + 3 * np.sin(2 * np.pi * hours / 24) + 0.1 * rng.standard_normal(length)
        stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(hours * 3600).astype(int), "s")
        parts.append(pd.DataFrame({"unique_id": name, "ds": stamps, "y": y}))
    return pd.concat(parts, ignore_index=True)


def assert_same_forecast(first: pd.DataFrame, second: pd.DataFrame, atol: float = 1e-5) -> None:
    """Compare the forecast columns of two answers."""
    columns = [c for c in first.columns if str(c).startswith("ctsattn")]
    assert columns == [c for c in second.columns if str(c).startswith("ctsattn")]
    np.testing.assert_allclose(
        first[columns].to_numpy(float), second[columns].to_numpy(float), rtol=0, atol=atol
    )


@pytest.fixture(scope="session")
def df() -> pd.DataFrame:
    return irregular()


@pytest.fixture(scope="session")
def fitted(df: pd.DataFrame) -> Forecaster:
    """A tiny model fitted on `df`; tests must not change it."""
    return tiny().fit(df)
