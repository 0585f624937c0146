"""Prophet on irregular series, and on windows of thinned tables.

    .venvs/prophet/bin/python -m experiments.benchmarks.peers.prophets --data groundwater co2_flasks
    .venvs/prophet/bin/python -m experiments.benchmarks.peers.prophets \
        --data etth1 --lookback 336 --horizon 96 --condition random-25 --windows 40

Prophet is fitted anew to every window and channel, some tenths of a second each, so tables are evaluated on
some windows, spread evenly; `--windows` of our own runner takes the same ones.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctsattn import datasets
from ctsattn.datasets.long_horizon import tables
from ctsattn.datasets.protocols import Errors
from experiments.benchmarks import rows
from experiments.benchmarks.order import spread
from experiments.benchmarks.peers.windows import Shown, common, shown
from experiments.benchmarks.scores import competition_scores

_EPOCH = pd.Timestamp("2000-01-01")


def fit_predict(times: pd.Series, values: np.ndarray, asked: pd.Series) -> np.ndarray:
    """Prophet with its defaults, fitted to one series and asked at any times."""
    from prophet import Prophet

    if len(values) < 2:
        return np.full(len(asked), values[-1] if len(values) else 0.0)
    model = Prophet().fit(pd.DataFrame({"ds": times.to_numpy(), "y": values}))
    return model.predict(pd.DataFrame({"ds": asked.to_numpy()}))["yhat"].to_numpy()


def series(config: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Forecast the test part of every series of an irregular set from what is before it."""
    card = datasets.card(config["data"])
    frame = datasets.load(config["data"])
    labels = card.split.labels(frame)
    history, truth = frame[np.isin(labels, ("train", "val"))], frame[labels == "test"]
    stamps = _dates(frame["ds"])
    parts = []
    for key, asked in truth.groupby("unique_id", observed=True, sort=False):
        past = history[history["unique_id"] == key]
        yhat = fit_predict(stamps[past.index], past["y"].to_numpy(), stamps[asked.index])
        parts.append(asked[["unique_id", "ds", "y"]].assign(Prophet=yhat))
    scored = pd.concat(parts, ignore_index=True)
    return {("test", k): v for k, v in competition_scores(scored, history, card, "Prophet").items()}


def _dates(ds: pd.Series) -> pd.Series:
    """Times as dates, which Prophet wants: numbers count days."""
    return ds if ds.dtype.kind == "M" else _EPOCH + pd.to_timedelta(ds, "D")


def windows(config: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Forecast some test windows of a table, each channel from what its thinned past shows."""
    sizes = (config["lookback"], config["horizon"])
    data = shown(config["data"], *sizes, config["condition"], config["seed"], joint=True)
    cut, errors = data.windows["test"], Errors()
    chosen = spread(len(cut), config["windows"])
    for window in chosen:
        one = np.array([window])
        past, future = cut.past(one)[0], cut.future(one)[0]
        errors.add(_window(data, int(cut.origins[window]), past, len(future)), future)
    return {("test", k): v for k, v in errors.pooled().items()}


def _window(data: Shown, origin: int, past: np.ndarray, horizon: int) -> np.ndarray:
    """Forecast `[horizon, channels]` of one window."""
    times = pd.Series(data.windows["test"].table.times)
    seen = slice(origin - len(past), origin)
    kept = np.ones(past.shape, dtype=bool) if data.keep is None else data.keep[seen]
    asked = times[origin : origin + horizon]
    channels = range(past.shape[1])
    return np.stack(
        [fit_predict(times[seen][kept[:, c]], past[kept[:, c], c], asked) for c in channels], axis=1
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--lookback", type=int, default=336)
    parser.add_argument("--horizon", type=int, default=96)
    parser.add_argument("--condition", default="all")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=rows.RESULTS / "peers.csv")
    options = parser.parse_args(arguments)
    for name in ("prophet", "cmdstanpy"):
        logging.getLogger(name).setLevel(logging.ERROR)
    finished = rows.done(options.results)
    for data in options.data:
        config: dict[str, Any] = {"data": data, "model": "Prophet", "seed": options.seed, "peer": True}
        if data in tables():
            config |= {key: getattr(options, key) for key in ("lookback", "horizon", "condition", "windows")}
        else:
            config |= {"lookback": 0, "horizon": 0, "condition": "all"}
        row = common(config, ("prophet", "numpy", "pandas"))
        if row["config_hash"] in finished:
            continue
        started = time.perf_counter()
        scores = windows(config) if data in tables() else series(config)
        row |= {"predict_seconds": round(time.perf_counter() - started, 3)}
        row |= {"peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
        rows.append(
            options.results,
            [row | {"split": s, "metric": m, "value": repr(v)} for (s, m), v in scores.items()],
        )
        sys.stderr.write(f"Prophet {data}: {scores}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
