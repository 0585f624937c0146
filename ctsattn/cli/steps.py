"""Steps that several commands take: words to values, files to frames, names to forecasters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctsattn.cli.files import read_frame, read_times

if TYPE_CHECKING:
    import pandas as pd


def read_observations(place: str, id_col: str, time_col: str, time_format: str | None) -> pd.DataFrame:
    """A file of observations, its ids as text and its times by their format."""
    return read_times(read_frame(place, (id_col,)), time_col, time_format)


def make_forecaster(model: str, max_steps: int | None, **options: Any) -> Any:
    """A forecaster with a model of the table `MODELS`, under its name."""
    from ctsattn import Forecaster
    from ctsattn.forecasting import Training
    from ctsattn.models import MODELS

    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Models: {', '.join(sorted(MODELS))}.")
    training = None if max_steps is None else Training(max_steps=max_steps)
    return Forecaster(model=MODELS[model](), training=training, **options)


def number_or_text(text: str | None) -> str | float | int | None:
    """Read a moment or a horizon: `24` is a whole number, `36.0` a span of a numeric clock, `36h` text."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def table_text(frame: pd.DataFrame) -> str:
    """A table for a terminal: four digits, no index."""
    return frame.to_string(index=False, float_format=lambda number: f"{number:.4g}")
