"""Train on and forecast more rows than memory shall hold, and watch the resident memory.

    python -m experiments.scale.memory --rows 50000000 --folder /tmp/rows

Rows come by time, all series in each file, so that no series stands together. One process makes them and
ends; another, which is watched, fits from the folder and writes the forecast of every series to a folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.scale import figures
from experiments.scale.stamp import RESULTS, stamp, write

LENGTH = 5000  # observations of a series
FILES = 50
EVERY = 0.5  # seconds between looks


def make(folder: Path, rows: int) -> None:
    """Write Parquet files: irregular observations of daily cycles, one file after the other in time."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    count, each = rows // LENGTH, LENGTH // FILES
    ids = np.repeat(np.array([f"item_{i:06d}" for i in range(count)], dtype=object), each)
    hours, phase = np.zeros(count), rng.uniform(0, 2 * np.pi, count)
    for number in range(FILES):
        steps = hours[:, None] + np.cumsum(rng.exponential(1.0, (count, each)) + 0.01, axis=1)
        hours = steps[:, -1]
        y = np.sin(2 * np.pi * steps / 24 + phase[:, None]) + 0.1 * rng.standard_normal(steps.shape)
        stamps = pd.Timestamp("2020-01-01") + pd.to_timedelta((steps.ravel() * 3600).astype("m8[s]"))
        frame = pd.DataFrame({"unique_id": ids, "ds": stamps, "y": y.ravel()})
        frame.to_parquet(folder / f"{number:03d}.parquet", index=False, row_group_size=1 << 18)


class Watch(threading.Thread):
    """Looks at the resident memory of this process, and at what of it stands in mapped files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows: list[dict[str, float | str]] = []
        self.phase = "start"
        self.over = threading.Event()
        self.begin = time.perf_counter()

    def run(self) -> None:
        """Look until told to stop."""
        while not self.over.wait(EVERY):
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            told = {name: int(status[name].split()[0]) / 1024 for name in ("VmRSS", "RssFile")}
            self.rows.append(
                {
                    "seconds": round(time.perf_counter() - self.begin, 1),
                    "phase": self.phase,
                    "resident_mib": round(told["VmRSS"], 1),
                    "of_it_files_mib": round(told["RssFile"], 1),
                }
            )


def work(folder: Path, out: Path, steps: int, told: multiprocessing.Queue) -> None:
    """Fit and predict, watched."""
    import torch

    from ctsattn import Forecaster
    from ctsattn.forecasting import Training
    from ctsattn.models import ContinuousTransformer

    torch.set_num_threads(2)
    watch = Watch()
    watch.start()
    model = ContinuousTransformer(d_model=16, num_layers=1, num_heads=2)
    training = Training(max_steps=steps, accelerator="cpu")
    forecaster = Forecaster(horizon="12h", lookback="4D", model=model, training=training, verbose=False)
    watch.phase = "fit"
    forecaster.fit(folder)
    watch.phase = "predict"
    forecaster.predict(horizon="12h", level=[80], out=out)
    watch.over.set()
    watch.join()
    log = forecaster.training_log_
    told.put((watch.rows, None if log is None else log.seconds))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="where rows and forecast may stand")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    data, out = options.folder / "rows", options.folder / "forecast"
    spawn = multiprocessing.get_context("spawn")
    if not data.exists():
        maker = spawn.Process(target=make, args=(data, options.rows))
        maker.start()
        maker.join()
    shutil.rmtree(out, ignore_errors=True)
    told = spawn.Queue()
    worker = spawn.Process(target=work, args=(data, out, options.steps, told))
    worker.start()
    curve, train_seconds = told.get()
    worker.join()
    frame = pd.DataFrame(curve)
    RESULTS.mkdir(exist_ok=True)
    frame.to_csv(RESULTS / "memory_curve.csv", index=False, lineterminator="\n")
    answered = pd.read_parquet(out, columns=["unique_id"])["unique_id"]
    summary = {
        "rows": options.rows,
        "series": answered.nunique(),
        "forecast_rows": len(answered),
        "peak_mib": frame["resident_mib"].max(),
        "minutes": round(frame["seconds"].iloc[-1] / 60, 1),
        "train_seconds": round(train_seconds, 1),
        **stamp(),
    }
    write("memory", [summary])
    figures.memory(frame, RESULTS / "memory.png")


if __name__ == "__main__":
    main()
