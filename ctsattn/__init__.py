"""Continuous softmax attention: probabilistic forecasts from any timestamps, at any timestamps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctsattn import datasets, forecasting, losses, metrics, models, nn, ops, plotting
    from ctsattn.forecasting import Forecaster
    from ctsattn.ops import continuous_attention

__version__ = "0.1.0"

__all__ = [
    "Forecaster",
    "continuous_attention",
    "datasets",
    "forecasting",
    "losses",
    "metrics",
    "models",
    "nn",
    "ops",
    "plotting",
]

_HOME = {"continuous_attention": "ctsattn.ops", "Forecaster": "ctsattn.forecasting"}


def __getattr__(name: str) -> Any:
    """Load a public name on its first use, so that `import ctsattn` costs next to nothing."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in __all__:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
