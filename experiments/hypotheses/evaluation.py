"""Test errors of the seeds of a cell, under every sampling condition."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from ctsattn.datasets.sampling import irregularity
from experiments.hypotheses.recording import Recorded
from experiments.hypotheses.tasks import DeviceTask, Windows, under
from experiments.hypotheses.training import Fitted, predict, squared_error

BLOCKS = 8  # stretches of test windows whose errors are stored apart, for the bootstrap over time


@dataclass(frozen=True)
class Errors:
    """Errors under one condition.

    Attributes:
        condition: Name of the condition.
        irregularity: Mean coefficient of variation of the gaps that a window shows.
        mse: `[seeds]`.
        mae: `[seeds]`.
        blocks: `[seeds, BLOCKS]` mean squared errors of stretches of windows.
    """

    condition: str
    irregularity: float
    mse: np.ndarray
    mae: np.ndarray
    blocks: np.ndarray


@dataclass(frozen=True)
class Shown:
    """What a condition shows of the test windows.

    Attributes:
        windows: The windows.
        irregularity: Mean coefficient of variation of the gaps that a window shows.
    """

    windows: Windows
    irregularity: float


def shown_under(task: DeviceTask, conditions: list[str]) -> dict[str, Shown]:
    """What each condition shows of the test windows."""
    whole = task.windows(torch.as_tensor(task.task.cuts["test"], device=task.device))
    parts = {name: under(name, whole) for name in conditions}
    return {name: Shown(windows, mean_irregularity(windows)) for name, windows in parts.items()}


def evaluate(skeleton: nn.Module, fitted: Fitted, shown: dict[str, Shown]) -> list[Errors]:
    """Errors of every seed under every condition."""
    forecasts = forecast_all(skeleton, fitted, {name: part.windows for name, part in shown.items()})
    return [_errors(name, part, forecasts[name]) for name, part in shown.items()]


def forecast_all(skeleton: nn.Module, fitted: Fitted, shown: dict[str, Windows]) -> dict[str, Tensor]:
    """Forecasts `[seeds, windows, horizon]` under each condition; all conditions have as many windows."""
    place = next(iter(shown.values()))
    place = replace(place, **{f.name: getattr(place, f.name).clone() for f in fields(place)})
    out = torch.empty(
        (len(fitted.best), *place.future_values.shape), device=place.past_values.device, dtype=torch.float32
    )

    def work() -> None:
        out.copy_(predict(skeleton, fitted.parameters, fitted.buffers, place))

    run, forecasts = Recorded(work, [out], out.device), {}
    for name, windows in shown.items():
        for f in fields(place):
            getattr(place, f.name).copy_(getattr(windows, f.name))
        run()
        forecasts[name] = out.clone()
    return forecasts


def _errors(name: str, shown: Shown, forecast: Tensor) -> Errors:
    windows = shown.windows
    mse = squared_error(forecast, windows).double()
    there = windows.future_mask.sum(-1).clamp(min=1)
    mae = ((forecast - windows.future_values).abs() * windows.future_mask).sum(-1) / there
    blocks = [part.mean(dim=1) for part in mse.tensor_split(min(BLOCKS, mse.shape[1]), dim=1)]
    numbers = (mse.mean(dim=1), mae.double().mean(dim=1), torch.stack(blocks, dim=1))
    return Errors(name, shown.irregularity, *(x.cpu().numpy() for x in numbers))


def mean_irregularity(shown: Windows) -> float:
    """Mean coefficient of variation of the gaps that a window shows, over at most 256 windows."""
    times, mask = shown.past_times[:256].cpu().double().numpy(), shown.past_mask[:256].cpu().numpy()
    values = [irregularity(t, m[:, None])[0] for t, m in zip(times, mask, strict=True)]
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
