"""Training steps a second on one device and on several, with DDP and FSDP.

    CUDA_VISIBLE_DEVICES=0 python -m experiments.scale.speedup
    torchrun --standalone --nproc-per-node 2 -m experiments.scale.speedup --times 1 2
    torchrun --standalone --nproc-per-node 2 -m experiments.scale.speedup --strategy fsdp
    python -m experiments.scale.speedup --wait --batches between

Each size is trained by `Forecaster.fit`, and timed from the end of the steps that warm up to the last step,
the devices waited for at both ends; start, compilation and what `fit` does around them are not counted.
`--times 1` gives the batch of one device to all of them together, `--times 2` twice as much.

In a run of several processes Lightning waits for the device before each batch. `--wait` does so on one device
too, and `--batches between` makes batches in the training thread, between its steps: what batches made ahead
save there can be seen without a second device.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning
import numpy as np
import pandas as pd
import torch

from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.forecasting.prefetch import Ahead
from ctsattn.models import ContinuousTransformer
from experiments.scale.several_devices import places, series
from experiments.scale.stamp import stamp, write

SIZES = ((1024, 8, 2048), (512, 8, 2048), (128, 3, 2048))  # width, layers, windows of a step


class Pace(lightning.Callback):
    """Times the steps after the first few.

    Args:
        warm_up: Steps that do not count.
        steps: Steps of the run.
        waits: Whether to wait for the device after each step.
    """

    def __init__(self, warm_up: int, steps: int, waits: bool = False) -> None:
        self.warm_up, self.steps, self.waits = warm_up, steps, waits
        self.seconds = self.peak = 0.0
        self.ends: list[float] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the clock; wait for the devices at both ends of what is timed."""
        if self.waits and torch.cuda.is_available():
            torch.cuda.synchronize()
        if trainer.global_step > self.warm_up:
            self.ends.append(time.perf_counter())
        if trainer.global_step not in (self.warm_up, self.steps):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.peak = torch.cuda.max_memory_allocated() / 2**20
        trainer.strategy.barrier()
        self.seconds = time.perf_counter() - self.seconds


def trained(df: pd.DataFrame, size: tuple[int, int, int], options: argparse.Namespace) -> dict[str, Any]:
    """Train one size; what it took."""
    width, layers, batch = size
    world, nodes = places()
    pace = Pace(options.warm_up, options.warm_up + options.steps, options.wait)
    training = Training(
        max_steps=pace.steps,
        batch_size=batch,
        patience=None,
        precision=options.precision,
        devices=world // nodes,
        num_nodes=nodes,
        strategy=options.strategy or ("ddp" if world > 1 else "auto"),
        trainer={"callbacks": [pace]},
    )
    model = ContinuousTransformer(d_model=width, num_layers=layers, num_heads=max(2, width // 64))
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    forecaster = Forecaster(horizon="1D", lookback="7D", model=model, training=training, verbose=False)
    network = forecaster.fit(df).fitted_.network
    return {
        "processes": world,
        "strategy": training.strategy,
        "width": width,
        "layers": layers,
        "million_weights": round(sum(p.numel() for p in network.parameters()) / 1e6, 2),
        "windows_of_a_step": batch,
        "steps_timed": options.steps,
        "seconds_of_a_step": round(pace.seconds / options.steps, 5),
        "median_seconds_of_a_step": round(float(np.median(np.diff(pace.ends))), 5),
        "windows_per_second": round(batch * options.steps / pace.seconds, 1),
        "peak_mib_of_a_device": round(pace.peak, 1),
        "precision": options.precision,
        "batches": options.batches,
        "waits": int(options.wait or world > 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", help="width, layers and windows of each size")
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="batches, in those of one device")
    parser.add_argument("--strategy", default="", help="ddp or fsdp where there are several processes")
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--series", type=int, default=512)
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--batches", default="ahead", choices=["ahead", "between"])
    parser.add_argument("--wait", action="store_true", help="wait for the device after each step")
    parser.add_argument("--results", default="", help="name of the CSV; speedup_<processes>_<strategy>")
    options = parser.parse_args()
    if options.batches == "between":
        setattr(Ahead, "__iter__", lambda self: iter(self.batches))  # noqa: B010
    given = iter(options.sizes or ())
    df, rows = series(options.series, 600), []
    for width, layers, batch in list(zip(given, given, given, strict=True)) or SIZES:
        for times in options.times:
            rows.append({**trained(df, (width, layers, times * batch), options), **stamp()})
            if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
                print(rows[-1], flush=True)
                first = rows[0]
                write(options.results or f"speedup_{first['processes']}_{first['strategy']}", rows)


if __name__ == "__main__":
    main()
