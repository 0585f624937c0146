"""The scores, each defined once, on utilsforecast; they work on a checked frame with a group for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from utilsforecast import losses as uf

GROUP = "__group"


@dataclass(frozen=True)
class Task:
    """A checked frame with one group code per row, and what the scores need besides."""

    frame: pd.DataFrame
    models: list[str]
    target: str
    quantiles: dict[float, dict[str, str]]
    level: float
    scale: np.ndarray | None

    @property
    def names(self) -> dict[str, str]:
        """Column names as utilsforecast takes them; there is no cutoff, the group says it all."""
        return {"id_col": GROUP, "target_col": self.target, "cutoff_col": "__no_cutoff"}

    def scaled(self, columns: Sequence[str]) -> pd.DataFrame:
        """Truth and forecasts divided by the error scale of their series."""
        if self.scale is None:
            raise ValueError(
                "Scaled scores (mase, msis) compare with the errors of a seasonal naive forecast on the "
                "training data. Pass it: evaluate(..., train_df=train_df, seasonality=...)."
            )
        frame = self.frame[[GROUP]].copy()
        for column in (self.target, *columns):
            frame[column] = self.frame[column].to_numpy(float) / self.scale
        return frame

    def band(self) -> dict[str, tuple[str, str]]:
        """Lower and upper column of each model at the asked level."""
        number = f"{self.level:g}"
        columns = {m: (f"{m}-lo-{number}", f"{m}-hi-{number}") for m in self.models}
        missing = [c for pair in columns.values() for c in pair if c not in self.frame.columns]
        if missing:
            raise ValueError(
                f"A score at level {number} needs the columns {', '.join(map(repr, missing))}. "
                f"Ask for them: predict(..., level=[{number}])."
            )
        return columns


def _mae(task: Task) -> pd.DataFrame:
    return uf.mae(task.frame, task.models, **task.names)


def _mse(task: Task) -> pd.DataFrame:
    return uf.mse(task.frame, task.models, **task.names)


def _rmse(task: Task) -> pd.DataFrame:
    return uf.rmse(task.frame, task.models, **task.names)


def _smape(task: Task) -> pd.DataFrame:
    # utilsforecast gives half of the usual value.
    halves = uf.smape(task.frame, task.models, **task.names)
    return halves.assign(**{m: 2.0 * halves[m] for m in task.models})


def _mase(task: Task) -> pd.DataFrame:
    return uf.mae(task.scaled(task.models), task.models, **task.names)


def _pinball(task: Task) -> pd.DataFrame:
    levels = sorted(task.quantiles)
    columns = {m: [task.quantiles[q][m] for q in levels] for m in task.models}
    return uf.mqloss(task.frame, columns, np.array(levels), **task.names)


def _crps(task: Task) -> pd.DataFrame:
    scores = _pinball(task)
    return scores.assign(**{m: 2.0 * scores[m] for m in task.models})


def _wql(task: Task) -> pd.DataFrame:
    scores = _crps(task).set_index(GROUP)
    size = task.frame[task.target].abs().groupby(task.frame[GROUP]).mean()
    # A truth of zeros has no size to compare with; its score stays in the units of the data.
    size = size.where(size > 0, 1.0).reindex(scores.index)
    return scores[task.models].div(size, axis=0).reset_index()


def _coverage(task: Task) -> pd.DataFrame:
    band = task.band()
    frame = task.frame.rename(columns=_band_names(band, task.level))
    return uf.coverage(frame, task.models, _as_level(task.level), **task.names)


def _msis(task: Task) -> pd.DataFrame:
    band = task.band()
    columns = [c for pair in band.values() for c in pair]
    frame = task.scaled(columns).rename(columns=_band_names(band, task.level))
    return uf.winkler_score(frame, task.models, _as_level(task.level), **task.names)


def _as_level(level: float) -> Any:
    """Utilsforecast builds column names from the level, so 80.0 must read 80."""
    return int(level) if float(level).is_integer() else float(level)


def _band_names(band: dict[str, tuple[str, str]], level: float) -> dict[str, str]:
    number = _as_level(level)
    return {
        column: f"{model}-{side}-{number}"
        for model, pair in band.items()
        for side, column in zip(("lo", "hi"), pair, strict=True)
    }


METRICS: dict[str, Callable[[Task], pd.DataFrame]] = {
    "mae": _mae,
    "mse": _mse,
    "rmse": _rmse,
    "smape": _smape,
    "mase": _mase,
    "pinball": _pinball,
    "crps": _crps,
    "wql": _wql,
    "coverage": _coverage,
    "msis": _msis,
}
PER_LEVEL = ("coverage", "msis")
