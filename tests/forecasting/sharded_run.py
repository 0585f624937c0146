"""What two processes do with weights spread over them; run under torchrun by test_sharding.

    torchrun --standalone --nproc-per-node 2 -m tests.forecasting.sharded_run FOLDER

Each process writes what it found to FOLDER/<rank>.json.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ctsattn import Forecaster
from ctsattn.forecasting import Training, checkpoint
from ctsattn.models import ContinuousTransformer

from .conftest import irregular, tiny
from .test_resuming import crashed

MODEL = ContinuousTransformer(d_model=8, num_layers=2, num_heads=2, dropout=0.2)
RUN = Training(
    max_steps=8,
    validate_every=3,
    patience=4,
    batch_size=8,
    learning_rate=1e-2,
    accelerator="cpu",
    devices=2,
    strategy="fsdp",
)


def fit(**options: Any) -> Forecaster:
    """A tiny model, trained with some options of `RUN` changed."""
    return tiny(model=MODEL, training=replace(RUN, **options)).fit(irregular(length=60))


def difference(one: Forecaster, two: Forecaster) -> float:
    """Largest difference between the weights of two models."""
    first, second = (model.fitted_.network.state_dict() for model in (one, two))
    assert first.keys() == second.keys()
    floating = [k for k, v in first.items() if v.is_floating_point() and v.numel()]
    return max((first[k] - second[k]).abs().max().item() for k in floating)


def resumed(folder: Path) -> tuple[Forecaster, dict[str, list[int]]]:
    """A run that broke down after its second checkpoint and went on, and the shapes that were kept."""
    kept = {"checkpoint_dir": str(folder / "runs")}
    with pytest.raises(ConnectionAbortedError):
        tiny(model=MODEL, training=crashed(replace(RUN, **kept), 7)).fit(irregular(length=60))
    torch.distributed.barrier()
    (path,) = (folder / "runs").iterdir()
    shapes = {name: list(value.shape) for name, value in checkpoint.read(path)[1].items()}
    return fit(**kept), shapes


def main() -> None:
    """Do all of it, in every process."""
    folder = Path(sys.argv[1])
    warnings.simplefilter("error")
    whole = fit()
    ddp = fit(strategy="ddp")
    again, shapes = resumed(folder)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        burst = fit(learning_rate=1e30, gradient_clip=0.0, patience=None)
    network = whole.fitted_.network
    found = {
        "ddp": difference(whole, ddp),
        "moved": difference(whole, fit(max_steps=1)),
        "resumed": difference(whole, again),
        "resumed_at": again.training_log_.resumed_at,
        "best_step": whole.training_log_.best_step,
        "plain": all(type(p) is torch.nn.Parameter for p in network.parameters()),
        "shapes": {name: list(value.shape) for name, value in network.state_dict().items()},
        "kept": shapes,
        "forecast": whole.predict(h=2)["ctsattn"].tolist(),
        "burst": [str(one.message) for one in told if "not finite" in str(one.message)],
        "finite": all(bool(p.isfinite().all()) for p in burst.fitted_.network.parameters()),
        "burst_steps": burst.training_log_.steps,
    }
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
