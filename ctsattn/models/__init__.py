"""Models: a config class each, in `MODELS`; a new one is a file here and a line in the table."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from ctsattn.data.batch import TaskSpec
from ctsattn.models.constant import ConstantInTime
from ctsattn.models.continuous_transformer import ContinuousTransformer
from ctsattn.models.linear import Linear
from ctsattn.models.naive import LastValue, SeasonalNaive, WindowMean


class ModelConfig(Protocol):
    """A frozen dataclass that builds a network; what `MODELS` holds."""

    @property
    def scaler(self) -> str:
        """Name in `ctsattn.data.scalers.SCALERS`."""
        ...

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task: `forward(batch)`, `head`, `trainable`."""
        ...


MODELS: dict[str, type[Any]] = {
    "continuous_transformer": ContinuousTransformer,
    "linear": Linear,
    "constant_in_time": ConstantInTime,
    "last_value": LastValue,
    "seasonal_naive": SeasonalNaive,
    "window_mean": WindowMean,
}

__all__ = [
    "MODELS",
    "ConstantInTime",
    "ContinuousTransformer",
    "LastValue",
    "Linear",
    "ModelConfig",
    "SeasonalNaive",
    "WindowMean",
]
