"""Write a golden file of this version and schema, and its forecasts.

The command is `python tests/forecasting/golden/write.py`. Files of earlier versions and schemas stay:
`test_40_...` loads them all. The model has every part that a file can hold: covariates of each kind, two
targets, a calendar, a zone, and a calibration.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import ctsattn
from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.forecasting.checkpoint import SCHEMA_VERSION
from ctsattn.models import ContinuousTransformer

AHEAD = pd.to_datetime(["2024-01-12 03:00", "2024-01-13 17:30"])


def observations(rows: int = 40) -> pd.DataFrame:
    """Two irregular series in a zone, with a second target that is half missing and covariates."""
    rng = np.random.default_rng(0)
    parts = []
    for number, (name, kind) in enumerate([("b", "söuth"), ("a", "north")]):
        hours = np.cumsum(rng.exponential(6.0, rows)) + 1
        stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(hours * 3600).astype(int), "s")
        y = 10 * (number + 1) + 3 * np.sin(2 * np.pi * hours / 24) + 0.1 * rng.standard_normal(rows)
        z = np.where(rng.random(rows) < 0.5, np.nan, rng.random(rows))
        columns = {"unique_id": name, "ds": stamps, "y": y, "z": z, "kind": kind, "wind": rng.random(rows)}
        parts.append(pd.DataFrame(columns))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(ds=frame["ds"].dt.tz_localize("Europe/Berlin"))


def main() -> None:
    """Fit, calibrate, save, and write down what the model answers."""
    df = observations()
    days = pd.date_range("2024-01-01", "2024-01-20", freq="D", tz="Europe/Berlin")
    prices = pd.DataFrame({"ds": days, "price": np.resize(["low", "high", "high"], len(days))})
    model = Forecaster(
        horizon="2D",
        model=ContinuousTransformer(d_model=8, num_layers=1, num_heads=2, dropout=0.0),
        training=Training(max_steps=6, batch_size=8, learning_rate=1e-2, accelerator="cpu", patience=None),
        target_col=["y", "z"],
        static_cols=["kind"],
        past_cols=["wind"],
        future_cols=["price"],
        calendar=["hour"],
        verbose=False,
    )
    model.fit(df, future_df=prices)
    model.calibrate(df.assign(unique_id=df["unique_id"] + "+"), future_df=prices)
    path = Path(__file__).with_name(f"{ctsattn.__version__}-schema-{SCHEMA_VERSION}.ctsattn")
    model.save(path)
    model.predict(times=AHEAD, level=[80, 95]).to_csv(path.with_suffix(".csv"), index=False)


if __name__ == "__main__":
    main()
