"""What a model sees of a task (`TaskSpec`) and of a set of windows (`Batch`)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

_HIGHEST = 300.0  # logarithm up to which a forecast is taken back; exp of it is a finite float64


@dataclass(frozen=True)
class TaskSpec:
    """Sizes and units of a forecasting task; fixed by `fit`, saved with the model.

    Attributes:
        num_targets: Target channels; they are the first channels of a batch.
        num_channels: Target channels plus past-covariate channels.
        channel_codes: For each channel the number of category codes, 0 for a numeric channel.
        num_static: Numeric static covariates.
        static_codes: Number of codes of each categorical static covariate.
        num_known: Numeric known-future covariates, calendar features included.
        known_codes: Number of codes of each categorical known-future covariate.
        time_unit: Seconds (or units of a numeric clock) in one model unit of time.
        median_gap: Median gap between observations of one channel, in model units.
        lookback: Span of the past that a window shows, in model units.
        horizon: Span of the future that training windows ask for, in model units.
        periods: Periods worth a harmonic (natural or detected), in model units.
    """

    num_targets: int = 1
    num_channels: int = 1
    channel_codes: tuple[int, ...] = (0,)
    num_static: int = 0
    static_codes: tuple[int, ...] = ()
    num_known: int = 0
    known_codes: tuple[int, ...] = ()
    time_unit: float = 1.0
    median_gap: float = 1.0
    lookback: float = 64.0
    horizon: float = 16.0
    periods: tuple[float, ...] = ()


@dataclass(frozen=True)
class Batch:
    """A padded set of windows; one window is one series seen from one cutoff.

    Times are relative to the cutoff, in model units, ascending along their axis: the past is at or
    before 0. Padding stands on the right and repeats the last real time, so that clocks never run
    backwards; padded values are 0. Values are scaled by `(raw - loc) / scale` per window and channel.

    Attributes:
        past_times: `[batch, channels, length]` float32.
        past_values: `[batch, channels, length]` float32, scaled; 0 in categorical channels.
        past_codes: `[batch, channels, length]` int64 category codes; 0 in numeric channels.
        past_mask: `[batch, channels, length]` bool, true at an observation.
        past_known: `[batch, channels, length, known]` float32, known-future covariates at the past times.
        past_known_codes: `[batch, channels, length, known categories]` int64.
        static: `[batch, static]` float32.
        static_codes: `[batch, static categories]` int64.
        future_times: `[batch, queries]` float32, the asked times; negative when imputing.
        future_mask: `[batch, queries]` bool, true where a query exists.
        future_known: `[batch, queries, known]` float32.
        future_known_codes: `[batch, queries, known categories]` int64.
        future_values: `[batch, targets, queries]` float32, scaled truth; 0 where unknown.
        future_observed: `[batch, targets, queries]` bool, true where the truth is known.
        loc: `[batch, targets]` float64 on the CPU, for the way back to the caller's units.
        scale: `[batch, targets]` float64 on the CPU, positive.
        series: `[batch]` int64, index of the series in its store.
        cutoff: `[batch]` float64 on the CPU, seconds from the first observation of training.
        unit: `[batch, targets]` float64 on the CPU, where logarithms were scaled: `asinh(raw / unit)` takes
            the place of `raw`, a logarithm beyond the unit and straight within; empty where values were.
    """

    past_times: Tensor
    past_values: Tensor
    past_codes: Tensor
    past_mask: Tensor
    past_known: Tensor
    past_known_codes: Tensor
    static: Tensor
    static_codes: Tensor
    future_times: Tensor
    future_mask: Tensor
    future_known: Tensor
    future_known_codes: Tensor
    future_values: Tensor
    future_observed: Tensor
    loc: Tensor
    scale: Tensor
    series: Tensor
    cutoff: Tensor
    unit: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    @property
    def spread(self) -> np.ndarray:
        """`[batch, targets]` what a scaled unit is in the caller's, at the offset of the window."""
        scale = self.scale.numpy()
        if not self.unit.numel():
            return scale
        return scale * self.unit.numpy() * np.cosh(np.clip(self.loc.numpy(), -_HIGHEST, _HIGHEST))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Move what the network reads to `device`; the float64 bookkeeping stays on the CPU."""
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=non_blocking)
            for f in fields(self)
            if getattr(self, f.name).dtype != torch.float64
        }
        return replace(self, **moved)

    def pin_memory(self) -> Batch:
        """Copy what `to` moves into pinned memory, from which a GPU reads while Python goes on."""
        moved = [f.name for f in fields(self) if getattr(self, f.name).dtype != torch.float64]
        return replace(self, **{name: getattr(self, name).pin_memory() for name in moved})

    def unscale(self, values: np.ndarray) -> np.ndarray:
        """Turn scaled `[batch, targets, queries, ...]` values into the caller's units, in float64."""
        shape = self.loc.shape + (1,) * (values.ndim - 2)
        raw = values.astype(np.float64) * self.scale.numpy().reshape(shape) + self.loc.numpy().reshape(shape)
        if not self.unit.numel():
            return raw
        return self.unit.numpy().reshape(shape) * np.sinh(np.clip(raw, -_HIGHEST, _HIGHEST))

    def __len__(self) -> int:
        return self.past_values.shape[0]
