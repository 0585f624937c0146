"""Train and predict on several devices: one script for one process, for torchrun and for SLURM.

    python -m experiments.scale.several_devices --out one
    torchrun --standalone --nproc-per-node 2 -m experiments.scale.several_devices --out two
    sbatch experiments/scale/several_devices.sbatch

Every process runs the whole script, as PyTorch programs of several devices do; Lightning joins them in `fit`,
and `predict` shares its work among them and gives each the whole answer. The first process writes the model,
the forecast and what it took.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pandas as pd
import torch

from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.forecasting.checkpoint import as_bytes
from ctsattn.forecasting.devices import collect
from ctsattn.models import ContinuousTransformer
from experiments.scale.stamp import stamp


def series(count: int, length: int, seed: int = 0) -> pd.DataFrame:
    """Daily cycles seen at irregular moments, an hour or so apart."""
    rng = np.random.default_rng(seed)
    hours = np.cumsum(rng.exponential(1.0, (count, length)), axis=1)
    phase = rng.uniform(0, 2 * np.pi, (count, 1))
    y = np.sin(2 * np.pi * hours / 24 + phase) + 0.1 * rng.standard_normal(hours.shape)
    stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(hours.ravel() * 3600).astype(int), "s")
    ids = np.repeat([f"s{i:05d}" for i in range(count)], length)
    frame = pd.DataFrame({"unique_id": ids, "ds": stamps, "y": y.ravel()})
    return frame.drop_duplicates(["unique_id", "ds"])


class Kill(lightning.Callback):
    """Kills this process after some steps, as a machine that loses its power would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Kill when it is time."""
        if trainer.global_step == self.step:
            trainer.strategy.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def training(options: argparse.Namespace, world: int, nodes: int) -> Training:
    """Options of the run: as many devices on each node as there are processes on it."""
    return Training(
        max_steps=options.steps,
        batch_size=options.batch_size,
        patience=None,
        precision=options.precision,
        accelerator=options.accelerator,
        devices=options.devices or world // nodes,
        num_nodes=nodes,
        strategy=options.strategy or ("ddp" if world > 1 else "auto"),
        checkpoint_dir=options.checkpoint_dir,
        validate_every=options.checkpoint_every,
        trainer={"callbacks": [Kill(options.kill_at)]} if options.kill_at else {},
    )


def places() -> tuple[int, int]:
    """Processes of the run and nodes they are on, as torchrun or SLURM say; one of each without them."""
    world = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1)
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world)
    return world, world // local


def digest(forecaster: Forecaster) -> str:
    """A checksum of the weights that this process holds."""
    found = hashlib.sha256()
    for value in forecaster.fitted_.network.state_dict().values():
        found.update(as_bytes(value))
    return found.hexdigest()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model, forecast and times")
    parser.add_argument("--series", type=int, default=64)
    parser.add_argument("--length", type=int, default=400)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64, help="windows of a step, over all devices")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--checkpoint-dir", default=None)
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--kill-at", type=int, default=0, help="step after which each process kills itself")
    parser.add_argument("--devices", type=int, default=0, help="processes to start where torchrun did not")
    parser.add_argument("--strategy", default="", help="as in lightning.Trainer, for example ddp_spawn")
    options = parser.parse_args()
    world, nodes = places()
    model = ContinuousTransformer(d_model=options.width, num_layers=options.layers, num_heads=4)
    forecaster = Forecaster(
        horizon="1D", model=model, training=training(options, world, nodes), verbose=options.steps > 20
    )
    df = series(options.series, options.length)
    forecaster.fit(df)
    start = time.perf_counter()
    forecast = forecaster.predict(horizon="12h", level=[80])
    seconds = time.perf_counter() - start
    held = set(collect([digest(forecaster)]))
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        forecaster.save(options.out / "model.ctsattn")
        forecast.to_parquet(options.out / "forecast.parquet")
        log = forecaster.training_log_
        assert log is not None
        told = {
            "processes": options.devices or world,
            "steps": log.steps,
            "resumed_at": log.resumed_at,
            "same_weights": len(held) == 1,
            "fit_seconds": log.seconds,
            "predict_seconds": seconds,
            **stamp(),
        }
        windows = options.batch_size * log.steps / log.seconds
        (options.out / "run.json").write_text(json.dumps({**told, "windows_per_second": windows}, indent=1))


if __name__ == "__main__":
    main()
