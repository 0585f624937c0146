"""How to fill the gaps of a thinned window before a ridge regression: validation errors of five ways.

    python -m experiments.benchmarks.gaps --data etth1 --conditions random-25 bursty-25

Every way makes a complete window of what was seen, and the same ridge regression forecasts from it; its ridge
is chosen on the last fifth of the training windows. `kriging` also forecasts by itself. The test part is not
read.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ctsattn.models.anchors import harmonic_regression
from ctsattn.models.path import interpolate
from experiments.benchmarks import rows
from experiments.benchmarks.peers.windows import shown

RESULTS = rows.RESULTS / "gaps" / "validation.csv"
_LOOKBACK, _HORIZON, _CHUNK = 336, 96, 512
_RIDGES = tuple(10.0**power for power in range(-4, 3))
_DAY = {"etth1": 24.0, "weather": 144.0}
_NOISE, _UNSEEN = 0.02, 1e6  # variances, of an observation and of a place without one


@dataclass(frozen=True)
class Part:
    """Windows of a part, scaled by what each shows: `[windows, lookback]`, `[windows, horizon]`."""

    past: Tensor
    seen: Tensor
    future: Tensor
    scale: Tensor


def parts(data: str, condition: str, most: int, device: torch.device) -> dict[str, Part]:
    """At most `most` windows of training and of validation, spread evenly."""
    found = shown(data, _LOOKBACK, _HORIZON, condition, 0, joint=False)
    return {
        part: _part(found, part, np.linspace(0, found.count(part) - 1, most).astype(np.int64), device)
        for part in ("train", "val")
    }


def _part(found: object, part: str, chosen: np.ndarray, device: torch.device) -> Part:
    cut = found.windows[part]  # type: ignore[attr-defined]
    window, channel = chosen // found.per_window, chosen % found.per_window  # type: ignore[attr-defined]
    at = cut.origins[window][:, None] + np.arange(-cut.lookback, cut.horizon)
    values = torch.tensor(cut.table.values[at, channel[:, None]], dtype=torch.float64, device=device)
    seen = torch.tensor(found.keep[at[:, :_LOOKBACK], channel[:, None]], device=device)  # type: ignore[attr-defined]
    seen[:, -2:] |= seen.sum(-1, keepdim=True) < 2
    past, future = values[:, :_LOOKBACK], values[:, _LOOKBACK:]
    count = seen.sum(-1, keepdim=True)
    loc = (past * seen).sum(-1, keepdim=True) / count
    scale = (((past - loc) * seen).square().sum(-1, keepdim=True) / count).sqrt().clamp(min=0.05)
    return Part((past - loc) / scale * seen, seen, (future - loc) / scale, scale)


def _justified(part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Times, values and mask with what was seen moved to the left."""
    order = (~part.seen).to(torch.int8).argsort(dim=-1, stable=True)
    mask = part.seen.gather(-1, order)
    times = order.double() - (_LOOKBACK - 1)
    return times, part.past.gather(-1, order), mask


def _nodes(part: Part) -> Tensor:
    at = torch.arange(1.0 - _LOOKBACK, 1.0, dtype=torch.float64, device=part.past.device)
    return at.expand(len(part.past), -1)


def straight(part: Part, **_: object) -> Tensor:
    """Straight lines between observations, the nearest one outside: what our models and the peers see."""
    return interpolate(*_justified(part), _nodes(part))


def held(part: Part, **_: object) -> Tensor:
    """The last observation, held."""
    place = torch.where(part.seen, torch.arange(_LOOKBACK, device=part.past.device), -1).cummax(-1).values
    first = part.seen.to(torch.int8).argmax(-1, keepdim=True)
    return part.past.gather(-1, torch.where(place < 0, first, place))


def seasonal(part: Part, day: float, **_: object) -> Tensor:
    """Three harmonics of a day by regression, and straight lines between what they leave."""
    times, values, mask = _justified(part)
    at = _nodes(part)
    both = torch.cat([times, at], dim=-1)
    periods = [(day, 3)]
    fitted = harmonic_regression(times, values, mask, both, periods, float(_LOOKBACK), trend=False)
    left = interpolate(times, (values - fitted[:, :_LOOKBACK]) * mask, mask, at)
    return fitted[:, _LOOKBACK:] + left


def kriging(part: Part, covariance: Tensor, **_: object) -> Tensor:
    """The conditional mean given what was seen, under the autocovariance of the training windows."""
    return _conditional(part, covariance, covariance[:_LOOKBACK, :_LOOKBACK])


def _conditional(part: Part, covariance: Tensor, wanted: Tensor) -> Tensor:
    noise = torch.where(part.seen, _NOISE, _UNSEEN)
    inner = covariance[:_LOOKBACK, :_LOOKBACK] + torch.diag_embed(noise.to(covariance))
    weights = torch.cholesky_solve(part.past.unsqueeze(-1), torch.linalg.cholesky(inner))
    return (wanted @ weights).squeeze(-1)


def zeros(part: Part, **_: object) -> Tensor:
    """Nothing is filled: the values with 0 in the gaps, and beside them where the gaps are."""
    return torch.cat([part.past, part.seen.double()], dim=-1)


WAYS: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (straight, held, seasonal, kriging, zeros)}


def autocovariance(part: Part) -> Tensor:
    """Stationary covariance `[lookback + horizon, same]` from pairs that were seen, in scaled units."""
    whole = torch.cat([part.past, part.future], dim=-1)
    there = torch.cat([part.seen.double(), torch.ones_like(part.future)], dim=-1)
    size = 2 * whole.shape[-1]
    products, pairs = (
        torch.fft.irfft(torch.fft.rfft(x, size).abs().square(), size)[..., : whole.shape[-1]].sum(0)
        for x in (whole * there, there)
    )
    lags = torch.arange(whole.shape[-1], device=whole.device)
    table = (products / pairs.clamp(min=1.0))[(lags[:, None] - lags).abs()]
    values, vectors = torch.linalg.eigh(table)
    return (vectors * values.clamp(min=0.0)) @ vectors.mT


def _filled(way: Callable[..., Tensor], part: Part, **known: object) -> Tensor:
    pieces = []
    for start in range(0, len(part.past), _CHUNK):
        cut = slice(start, start + _CHUNK)
        piece = Part(part.past[cut], part.seen[cut], part.future[cut], part.scale[cut])
        pieces.append(way(piece, **known))
    return torch.cat(pieces)


def _mse(forecast: Tensor, part: Part) -> float:
    return float((((forecast - part.future) * part.scale).square()).mean())


def ridge(train: tuple[Tensor, Part], val: tuple[Tensor, Part]) -> float:
    """Validation MSE of the ridge regression whose ridge suits the last fifth of the training windows."""
    (x, part), (asked, held_out) = train, val
    x, asked = (torch.nn.functional.pad(z, (0, 1), value=1.0) for z in (x, asked))
    cut = len(x) * 4 // 5
    weight = part.scale.square()
    last = Part(part.past[cut:], part.seen[cut:], part.future[cut:], part.scale[cut:])
    solved = _solve(x[:cut], part.future[:cut], weight[:cut])
    errors = [_mse(x[cut:] @ w, last) for w in solved]
    best = int(np.argmin(errors))
    return _mse(asked @ _solve(x, part.future, weight)[best], held_out)


def _solve(x: Tensor, y: Tensor, weight: Tensor) -> list[Tensor]:
    values, vectors = torch.linalg.eigh(x.mT @ (weight * x))
    turned = vectors.mT @ (x.mT @ (weight * y))
    unit = values.clamp(min=0).mean()
    return [vectors @ (turned / (values.clamp(min=0) + r * unit)[:, None]) for r in _RIDGES]


def study(data: str, condition: str, most: int, device: torch.device) -> dict[str, float]:
    """Validation MSE of each way."""
    found = parts(data, condition, most, device)
    train, val = found["train"], found["val"]
    known = {"day": _DAY[data], "covariance": autocovariance(train)}
    errors = {
        name: ridge((_filled(way, train, **known), train), (_filled(way, val, **known), val))
        for name, way in WAYS.items()
    }
    covariance = known["covariance"]
    ahead = covariance[_LOOKBACK:, :_LOOKBACK]  # type: ignore[index]
    alone = _filled(lambda part, **_: _conditional(part, covariance, ahead), val)  # type: ignore[arg-type]
    return errors | {"kriging alone": _mse(alone, val)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", nargs="+", default=list(_DAY), choices=list(_DAY))
    parser.add_argument("--conditions", nargs="+", default=["random-25", "bursty-25", "on_change-25"])
    parser.add_argument("--windows", type=int, default=8000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(["data", "condition", "way", "windows", "val_mse", "commit", "device"])
        for data in options.data:
            for condition in options.conditions:
                for way, error in study(data, condition, options.windows, device).items():
                    stamp = (rows.commit(), rows.device_name())
                    writer.writerow([data, condition, way, options.windows, f"{error:.5f}", *stamp])
                    sys.stderr.write(f"{data} {condition} {way}: {error:.4f}\n")
                file.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
