"""neuralforecast's networks on the windows of the protocol, with our training loop's settings.

    .venvs/neuralforecast/bin/python -m experiments.benchmarks.peers.neural \
        --model PatchTST --data etth1 --lookback 336 --horizon 96 --seed 0 1 --condition all random-50

Only the networks are theirs. Windows, steps, batch size, optimiser, schedule, early stopping and error sums
are those of our own runs, so that rows differ by the network alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctsattn.datasets.protocols import Errors
from experiments.benchmarks import rows
from experiments.benchmarks.order import EVALUATED, VALIDATION, shuffled, spread
from experiments.benchmarks.peers.windows import Shown, common, shown

_JOINT = ("iTransformer",)
_ON_GPU = 4  # times as many rows evaluated at once
_MODELS = ("PatchTST", "iTransformer", "NHITS", "DLinear")


def build(
    model: str, lookback: int, horizon: int, channels: int, seed: int, options: dict[str, Any]
) -> nn.Module:
    """A network of neuralforecast with its defaults, but for `options`."""
    import neuralforecast.models as found

    extra: dict[str, Any] = {"n_series": channels} if model in _JOINT else {}
    extra |= {
        "random_seed": seed,
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    return getattr(found, model)(h=horizon, input_size=lookback, **extra, **options)


def forecast(network: nn.Module, past: Tensor) -> Tensor:
    """Forecasts `[batch, horizon, channels]` from `[batch, lookback, channels]`."""
    nothing = dict.fromkeys(("futr_exog", "hist_exog", "stat_exog"))
    return network({"insample_y": past, "insample_mask": torch.ones_like(past), **nothing})


def train(network: nn.Module, data: Shown, seed: int, options: argparse.Namespace) -> tuple[float, int]:
    """AdamW on the squared error, warmed up and lowered along a cosine, the best validated weights kept."""
    device = next(network.parameters()).device
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, options.max_steps))
    best, kept, waited, step = math.inf, copy.deepcopy(network.state_dict()), 0, 0
    started = time.perf_counter()
    held = spread(data.count("val"), VALIDATION)
    for step, chosen in enumerate(shuffled(data.count("train"), options.batch_size, seed), start=1):
        network.train()
        past, future = (
            torch.tensor(a, dtype=torch.float32, device=device) for a in data.batch("train", chosen)
        )
        loss = (forecast(network, past) - future).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % options.validate_every == 0 or step == options.max_steps:
            found = evaluate(network, data, "val", held).pooled()["mse"]
            if found < best:
                best, kept, waited = found, copy.deepcopy(network.state_dict()), 0
            else:
                waited += 1
        if step == options.max_steps or waited >= options.patience:
            break
    network.load_state_dict(kept)
    return time.perf_counter() - started, step


def _rate(step: int, steps: int, warmup: float = 0.1) -> float:
    """The schedule of our own runs."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise))))


def evaluate(network: nn.Module, data: Shown, part: str, chosen: np.ndarray | None = None) -> Errors:
    """Errors over all rows of a part, or over some."""
    network.eval()
    device = next(network.parameters()).device
    chosen = np.arange(data.count(part)) if chosen is None else chosen
    rows_at_once = EVALUATED * (_ON_GPU if device.type == "cuda" else 1)
    size = max(1, rows_at_once // (data.windows[part].table.values.shape[1] if data.joint else 1))
    errors = Errors()
    with torch.inference_mode():
        for start in range(0, len(chosen), size):
            past, future = data.batch(part, chosen[start : start + size])
            moved = torch.tensor(past, dtype=torch.float32, device=device)
            errors.add(forecast(network, moved).double().cpu().numpy(), future)
    return errors


def run(config: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One training and its rows."""
    joint = config["model"] in _JOINT
    sizes = (config["lookback"], config["horizon"])
    data = shown(config["data"], *sizes, config["condition"], config["seed"], joint)
    torch.manual_seed(config["seed"])
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    channels = data.windows["train"].table.values.shape[1]
    network = build(config["model"], *sizes, channels, config["seed"], config["options"]).to(device)
    fit_seconds, steps = train(network, data, config["seed"], options)
    scores = {("val", k): v for k, v in evaluate(network, data, "val").pooled().items()}
    started = time.perf_counter()
    if config.get("test", True):
        scores |= {("test", k): v for k, v in evaluate(network, data, "test").pooled().items()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else memory
    row = common(config, ("neuralforecast", "torch", "numpy"))
    row |= {"fit_seconds": round(fit_seconds, 3), "predict_seconds": round(time.perf_counter() - started, 3)}
    row |= {
        "peak_mib": round(peak, 1),
        "params": sum(p.numel() for p in network.parameters()),
        "steps": steps,
    }
    return [row | {"split": s, "metric": m, "value": repr(v)} for (s, m), v in scores.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", nargs="+", choices=_MODELS, default=list(_MODELS))
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--condition", nargs="+", default=["all"])
    for name, default in (("lookback", [336]), ("horizon", [96]), ("seed", [0])):
        parser.add_argument(f"--{name}", nargs="+", type=int, default=default)
    for name, default in (("max-steps", 600), ("batch-size", 32), ("validate-every", 25), ("patience", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--options", type=json.loads, default={}, help="JSON of the network's own arguments")
    parser.add_argument("--no-test", action="store_true", help="validation only, while choosing")
    parser.add_argument("--results", type=Path, default=rows.RESULTS / "peers.csv")
    options = parser.parse_args(arguments)
    logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.ERROR)
    settings = ("max_steps", "batch_size", "validate_every", "patience", "learning_rate", "weight_decay")
    finished = rows.done(options.results)
    for config in _configs(options, {key: getattr(options, key) for key in settings}):
        if common(config, ())["config_hash"] in finished:
            continue
        found = run(config, options)
        rows.append(options.results, found)
        scores = ", ".join(f"{row['split']} {row['metric']} {float(row['value']):.4f}" for row in found)
        sys.stderr.write(
            f"{config['model']} {config['data']} {config['horizon']} {config['condition']}: {scores}\n"
        )
    return 0


def _configs(options: argparse.Namespace, training: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All combinations of the lists."""
    import itertools

    keys = ("data", "model", "lookback", "horizon", "condition", "seed")
    fixed: dict[str, Any] = {"options": options.options, "training": training, "peer": True}
    fixed |= {"test": False} if options.no_test else {}
    for values in itertools.product(*(getattr(options, key) for key in keys)):
        yield dict(zip(keys, values, strict=True)) | fixed


if __name__ == "__main__":
    raise SystemExit(main())
