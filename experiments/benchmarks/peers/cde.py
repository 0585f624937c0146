"""A neural controlled differential equation (torchcde) on irregular records, t-PatchGNN's protocol.

    P=.venvs/torchcde/bin/python
    $P -m experiments.benchmarks.peers.cde --data physionet2012 --seed 0
    $P -m experiments.benchmarks.peers.cde --data physionet2012 --max-steps 2 --records 64

The past of a window drives the equation along straight lines: time, values, and how often each variable was
seen so far. A network reads its last state at each time that is asked. Windows and error sums are those of
our own runs.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctsattn import datasets
from ctsattn.datasets.protocols import PROTOCOLS, Errors, RecordWindows, record_windows
from experiments.benchmarks import rows
from experiments.benchmarks.order import shuffled
from experiments.benchmarks.peers.windows import common


@dataclass(frozen=True)
class Tables:
    """Windows of a part as tables of their distinct times, padded by their last row.

    Attributes:
        past: `[windows, times, 1 + 2 * variables]` time, values (NaN: unseen), how often each was seen.
        asked: `[windows, queries]` times.
        truth: `[windows, queries, variables]`.
        observed: `[windows, queries, variables]` what counts.
    """

    past: Tensor
    asked: Tensor
    truth: Tensor
    observed: Tensor


def tables(cut: RecordWindows, span: float) -> Tables:
    """Tables of a part; time counts from 0 at a window's start to 1 at its end."""
    window, place, ahead = cut.members()
    records = cut.records
    elapsed = (records.time[place] - cut.start[window]) / span
    columns = (records.variable[place], records.value[place])
    seen, moments = _grid(window[~ahead], elapsed[~ahead], *(c[~ahead] for c in columns), cut)
    truth, asked = _grid(window[ahead], elapsed[ahead], *(c[ahead] for c in columns), cut)
    counts = np.cumsum(~np.isnan(seen), axis=1) / 10.0
    past = torch.tensor(np.concatenate([moments[..., None], seen, counts], axis=-1), dtype=torch.float32)
    observed = ~np.isnan(truth)
    parts = (torch.tensor(x, dtype=torch.float32) for x in (asked, np.where(observed, truth, 0.0)))
    return Tables(past, *parts, torch.tensor(observed))


def _grid(
    window: np.ndarray, elapsed: np.ndarray, variable: np.ndarray, value: np.ndarray, cut: RecordWindows
) -> tuple[np.ndarray, np.ndarray]:
    """Values `[windows, times, variables]`, NaN where there is none, and times `[windows, times]`."""
    pairs, row = np.unique(np.stack([window, elapsed], axis=1), axis=0, return_inverse=True)
    owner = pairs[:, 0].astype(np.int64)
    starts = np.searchsorted(owner, np.arange(len(cut) + 1))
    place = np.arange(len(pairs)) - starts[owner]
    longest = max(1, int(np.diff(starts).max()))
    values = np.full((len(cut), longest, cut.records.variables), np.nan)
    values[owner[row.reshape(-1)], place[row.reshape(-1)], variable] = value
    moments = np.zeros((len(cut), longest))
    moments[owner, place] = pairs[:, 1]
    return values, np.maximum.accumulate(moments, axis=1)


class NeuralCDE(nn.Module):
    """State driven by the past, read at the times that are asked.

    Args:
        variables: Variables of a record.
        hidden: Size of the state.
        width: Hidden width of both networks.

    References:
        Kidger, Morrill, Foster and Lyons, "Neural controlled differential equations for irregular time
        series" (2020).
    """

    def __init__(self, variables: int, hidden: int = 32, width: int = 64) -> None:
        super().__init__()
        self.hidden, self.channels = hidden, 1 + 2 * variables
        self.start = nn.Linear(self.channels, hidden)
        self.field = nn.Sequential(
            nn.Linear(hidden, width), nn.ReLU(), nn.Linear(width, hidden * self.channels), nn.Tanh()
        )
        self.read = nn.Sequential(nn.Linear(hidden + 1, width), nn.ReLU(), nn.Linear(width, variables))

    def forward(self, past: Tensor, asked: Tensor) -> Tensor:
        """Forecasts `[batch, queries, variables]`."""
        import torchcde

        path = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(past))
        begin = self.start(path.evaluate(path.interval[0]))
        state = torchcde.cdeint(
            X=path,
            func=lambda t, z: self.field(z).unflatten(-1, (self.hidden, self.channels)),
            z0=begin,
            t=path.interval,
            adjoint=False,
            method="rk4",
            options={"step_size": 2.0},
        )[:, -1]
        states = state.unsqueeze(1).expand(-1, asked.shape[1], -1)
        return self.read(torch.cat([states, asked.unsqueeze(-1)], dim=-1))


def evaluate(network: NeuralCDE, part: Tables, batch_size: int = 256) -> Errors:
    """Errors over all windows of a part."""
    network.eval()
    errors = Errors()
    with torch.inference_mode():
        for at in torch.arange(len(part.past)).split(batch_size):
            said = network(part.past[at], part.asked[at]).double().numpy()
            errors.add(said, part.truth[at].numpy(), part.observed[at].numpy())
    return errors


def train(network: NeuralCDE, found: dict[str, Tables], options: argparse.Namespace, seed: int) -> int:
    """Adam on the squared error of what is observed, the best validated weights kept; returns the steps."""
    optimiser = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    best, kept, waited, part = math.inf, copy.deepcopy(network.state_dict()), 0, found["train"]
    step = 0
    for step, chosen in enumerate(shuffled(len(part.past), options.batch_size, seed), start=1):
        network.train()
        at = torch.from_numpy(chosen)
        error = (network(part.past[at], part.asked[at]) - part.truth[at]).square() * part.observed[at]
        optimiser.zero_grad()
        (error.sum() / part.observed[at].sum().clamp(min=1)).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if step % options.validate_every == 0 or step == options.max_steps:
            error_now = evaluate(network, found["val"]).by_variable()["mse"]
            waited = 0 if error_now < best else waited + 1
            if error_now < best:
                best, kept = error_now, copy.deepcopy(network.state_dict())
        if step == options.max_steps or waited >= options.patience:
            break
    network.load_state_dict(kept)
    return step


def run(config: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One training and its rows."""
    protocol, card = PROTOCOLS[config["data"]], datasets.card(config["data"])
    parts = record_windows(datasets.load(config["data"]), protocol, card.split)  # type: ignore[arg-type]
    span = protocol.history + protocol.ahead
    found = {part: _some(tables(cut, span), options.records) for part, cut in parts.items()}
    torch.manual_seed(config["seed"])
    network = NeuralCDE(parts["train"].records.variables)
    started = time.perf_counter()
    steps = train(network, found, options, config["seed"])
    fitted = time.perf_counter()
    scores = {("val", k): v for k, v in evaluate(network, found["val"]).by_variable().items()}
    scores |= {("test", k): v for k, v in evaluate(network, found["test"]).by_variable().items()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    params = sum(p.numel() for p in network.parameters())
    row = common(config, ("torchcde", "torch", "numpy")) | {"fit_seconds": round(fitted - started, 3)}
    row |= {"peak_mib": round(memory, 1), "params": params, "steps": steps}
    return [row | {"split": s, "metric": m, "value": repr(v)} for (s, m), v in scores.items()]


def _some(part: Tables, records: int) -> Tables:
    """The first windows of a part, all where none is said."""
    cut = slice(records or None)
    return Tables(part.past[cut], part.asked[cut], part.truth[cut], part.observed[cut])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", nargs="+", choices=list(PROTOCOLS), required=True)
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    for name, default in (("max-steps", 6000), ("batch-size", 32), ("validate-every", 225), ("patience", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--records", type=int, default=0, help="windows of each part; 0: all")
    parser.add_argument("--results", type=Path, default=rows.RESULTS / "peers.csv")
    options = parser.parse_args(arguments)
    logging.captureWarnings(True)
    finished = rows.done(options.results)
    for config in _configs(options):
        if common(config, ())["config_hash"] not in finished:
            found = run(config, options)
            rows.append(options.results, found)
            scores = ", ".join(f"{row['split']} {row['metric']} {float(row['value']):.5f}" for row in found)
            sys.stderr.write(f"NeuralCDE {config['data']}: {scores}\n")
    return 0


def _configs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    names = ("max_steps", "batch_size", "validate_every", "patience", "learning_rate", "records")
    settings = {name: getattr(options, name) for name in names}
    for data in options.data:
        for seed in options.seed:
            sizes = {"lookback": 0, "horizon": 0, "condition": "all"}
            yield {
                "data": data,
                "model": "NeuralCDE",
                "seed": seed,
                "training": settings,
                "peer": True,
            } | sizes


if __name__ == "__main__":
    raise SystemExit(main())
