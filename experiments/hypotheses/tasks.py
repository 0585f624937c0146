"""Forecasting tasks of the study: windows over real series, cut on the device from flat arrays.

A task is univariate: every channel of every series is a clock of its own. Times are in units of the median
gap, values are standardised by the training rows of their variable, or of their series.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ctsattn.datasets.sampling import Condition, misrecorded
from ctsattn.datasets.splits import Split
from experiments.hypotheses.sources import source

PARTS = ("train", "val", "test")
LEAST_PAST = 8  # observations that a window shows at the least


@dataclass(frozen=True)
class Shape:
    """How windows are cut.

    Attributes:
        lookback: Most recent observations that a window shows at the most.
        horizon: Observations after the cutoff that it asks for.
        variables: Variables to take of a multivariate set; empty: all.
        most: Windows of training, validation and test at the most, spread evenly over all that there are.
    """

    lookback: int
    horizon: int
    variables: tuple[str, ...] = ()
    most: tuple[int, int, int] = (30000, 400, 1000)


@dataclass(frozen=True)
class Task:
    """Flat series and the cutoffs of each part.

    Attributes:
        name: Name of the data set.
        shape: How windows are cut.
        times: `[observations]` float64, in units of the median gap.
        values: `[observations]` float64, standardised.
        ends: `[clocks + 1]`, borders of the clocks in the flat arrays.
        cuts: For each part the flat index of the last observation that a window shows.
        shuffled: Whether the values of a window's past are put in another, fixed order.
    """

    name: str
    shape: Shape
    times: np.ndarray
    values: np.ndarray
    ends: np.ndarray
    cuts: dict[str, np.ndarray]
    shuffled: bool = False

    def shuffle(self) -> Task:
        """The negative control: the same values at the same times, in a fixed wrong order."""
        return replace(self, name=f"{self.name}-shuffled", shuffled=True)


@dataclass(frozen=True)
class Windows:
    """Windows on a device; the past is right-padded, times are relative to the cutoff.

    Attributes:
        past_times: `[windows, lookback]` float32.
        past_values: `[windows, lookback]` float32.
        past_mask: `[windows, lookback]` bool.
        future_times: `[windows, horizon]` float32.
        future_values: `[windows, horizon]` float32.
        future_mask: `[windows, horizon]` bool.
    """

    past_times: Tensor
    past_values: Tensor
    past_mask: Tensor
    future_times: Tensor
    future_values: Tensor
    future_mask: Tensor

    def thin(self, keep: Tensor) -> Windows:
        """Show only the observations in `keep` `[windows, lookback]`, moved to the front."""
        keep, length = keep & self.past_mask, keep.shape[-1]
        count = keep.sum(-1, keepdim=True)
        # what is not kept goes to one more place, which is cut off
        place = torch.where(keep, keep.cumsum(-1) - 1, length)
        spare = (*keep.shape[:-1], length + 1)
        times, values = (
            x.new_zeros(spare).scatter(-1, place, x)[..., :length]
            for x in (self.past_times, self.past_values)
        )
        mask = torch.arange(length, device=keep.device) < count
        times = torch.where(mask, times, times.gather(-1, (count - 1).clamp(min=0)))
        return replace(self, past_times=times, past_values=values * mask, past_mask=mask)


def build(name: str, shape: Shape, split: Split | None = None) -> Task:
    """Load a data set and cut its windows by `split`, or by the data set's own."""
    frame, own_split = source(name)
    if shape.variables:
        frame = frame[frame["variable"].isin(shape.variables)]
    labels = (split or own_split).labels(frame)
    keys = [key for key in ("unique_id", "variable") if key in frame]
    clock = frame.groupby(keys, sort=False, observed=True).ngroup().to_numpy()
    order = np.lexsort((_elapsed(frame["ds"]), clock))
    clock, labels, times = clock[order], labels[order], _elapsed(frame["ds"])[order]
    ends = np.concatenate([[0], np.cumsum(np.bincount(clock))])
    gaps = np.diff(times)[np.diff(clock) == 0]
    values = _standardise(frame["y"].to_numpy(np.float64)[order], labels == "train", _groups(frame, order))
    cuts = {part: _cutoffs(clock, labels, ends, shape, part) for part in PARTS}
    return Task(name, shape, times / np.median(gaps[gaps > 0]), values, ends, cuts)


def windows(task: Task, cuts: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Windows:
    """Gather windows on `device`."""
    source = DeviceTask(task, device)
    return source.windows(torch.as_tensor(cuts, device=device))


class DeviceTask:
    """A task whose flat arrays lie on a device, so that a batch of windows is a few gathers.

    Args:
        task: The task.
        device: The device.
    """

    def __init__(self, task: Task, device: torch.device | str) -> None:
        self.task, self.device = task, torch.device(device)
        self.times = torch.as_tensor(task.times, device=device)
        self.values = torch.as_tensor(task.values, dtype=torch.float32, device=device)
        self.ends = torch.as_tensor(task.ends, device=device)
        wrong = np.random.default_rng(0).permutation(task.shape.lookback)
        self.wrong_order = torch.as_tensor(wrong, device=device) if task.shuffled else None

    def windows(self, cuts: Tensor) -> Windows:
        """Windows with the cutoffs `cuts` `[...]`; the results have the shapes `[..., lookback]` etc."""
        lookback, horizon = self.task.shape.lookback, self.task.shape.horizon
        clock = torch.searchsorted(self.ends, cuts, right=True) - 1
        begin, end = self.ends[clock], self.ends[clock + 1]
        first = torch.maximum(begin, cuts - lookback + 1).unsqueeze(-1)
        cut = cuts.unsqueeze(-1)
        past = first + torch.arange(lookback, device=self.device)
        past_mask = past <= cut
        past = torch.minimum(past, cut)
        future = cut + 1 + torch.arange(horizon, device=self.device)
        future_mask = future < end.unsqueeze(-1)
        future = torch.minimum(future, end.unsqueeze(-1) - 1)
        origin = self.times[cut]
        values = self.values[past] * past_mask
        if self.wrong_order is not None:
            values = torch.where(past_mask.all(-1, keepdim=True), values[..., self.wrong_order], values)
        return Windows(
            (self.times[past] - origin).float(),
            values,
            past_mask,
            (self.times[future] - origin).float(),
            self.values[future] * future_mask,
            future_mask,
        )


def under(condition: str, shown: Windows, seed: int = 0) -> Windows:
    """What a sampling condition shows of windows: fewer observations, or wrong times for all of them.

    `clock-30` gives every time a normal error of 30 % of the mean gap; the others are those of
    `ctsattn.datasets.sampling.Condition`. A window is one channel's, so whatever is random is random for each
    channel by itself.
    """
    if condition == "all":
        return shown
    kind, _, percent = condition.partition("-")
    if kind == "clock":
        return _misrecorded(shown, int(percent) / 100, seed)
    return shown.thin(condition_mask(condition, shown, seed))


def _misrecorded(shown: Windows, share: float, seed: int) -> Windows:
    """Wrong times in ascending order, none after the cutoff; padding repeats the last."""
    times = misrecorded(shown.past_times.cpu().double().numpy(), share, seed)
    wrong = torch.as_tensor(times, device=shown.past_times.device).float().clamp(max=0.0)
    last = (shown.past_mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    wrong = torch.where(shown.past_mask, wrong, wrong.gather(-1, last))
    return replace(shown, past_times=wrong)


def condition_mask(condition: str, shown: Windows, seed: int) -> Tensor:
    """Which observations of `shown` a sampling condition keeps, `[windows, lookback]`."""
    values = shown.past_values.cpu().numpy()[..., None]
    keep = Condition(condition).keep(values, seed)[..., 0]
    return torch.as_tensor(keep, device=shown.past_values.device)


def _elapsed(ds: pd.Series) -> np.ndarray:
    """Times as float64; dates as seconds from the earliest, so that nothing is rounded away."""
    if ds.dtype.kind in "Mm":
        return ((ds - ds.min()) / pd.Timedelta(1, "s")).to_numpy(np.float64)
    return ds.to_numpy(np.float64)


def _groups(frame: pd.DataFrame, order: np.ndarray) -> np.ndarray:
    """What shares a scale: the variable where there is one, else the series."""
    key = "variable" if "variable" in frame else "unique_id"
    return pd.factorize(frame[key])[0][order]


def _standardise(values: np.ndarray, train: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Standardise by the mean and deviation of the training observations of each group."""
    table = pd.DataFrame({"y": np.where(train, values, np.nan), "group": group})
    grouped = table.groupby("group")["y"]
    mean, deviation = (
        grouped.transform("mean").to_numpy(),
        grouped.transform(lambda y: y.std(ddof=0)).to_numpy(),
    )
    overall = np.nanstd(table["y"].to_numpy())
    mean = np.where(np.isnan(mean), np.nanmean(table["y"].to_numpy()), mean)
    deviation = np.where((deviation > 0) & ~np.isnan(deviation), deviation, overall)
    return (values - mean) / deviation


def _cutoffs(clock: np.ndarray, labels: np.ndarray, ends: np.ndarray, shape: Shape, part: str) -> np.ndarray:
    """Flat indices of the cutoffs whose futures lie wholly in a part; the past may reach back before it."""
    position = np.arange(len(clock)) - ends[clock]
    inside = labels == part
    # number of consecutive rows of the part that follow each row, within its clock
    outside_after = np.where(~inside, np.arange(len(clock)), len(clock))
    next_outside = np.minimum.accumulate(outside_after[::-1])[::-1]
    reach = np.minimum(next_outside, ends[clock + 1])
    first = np.arange(len(clock)) + 1
    follows = np.append(reach[1:], len(clock)) - first
    same_clock = np.append(clock[1:], -1) == clock
    fits = same_clock & (position + 1 >= LEAST_PAST) & (follows >= shape.horizon)
    cuts = np.flatnonzero(fits)
    most = shape.most[PARTS.index(part)]
    return (
        cuts[np.linspace(0, len(cuts) - 1, min(most, len(cuts))).round().astype(int)] if len(cuts) else cuts
    )
