"""Scores of forecasts of the ends of series, for our models and for peers alike; needs no torch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ctsattn import datasets, metrics
from ctsattn.datasets.protocols import naive2


def competition_scores(
    scored: pd.DataFrame, history: pd.DataFrame, card: datasets.Dataset, model: str
) -> dict[str, float]:
    """MAE, sMAPE (in percent), MASE and the weighted quantile loss; for M4 also OWA, against Naive2.

    Args:
        scored: Truth and forecasts.
        history: What was known.
        card: The set.
        model: Column of the forecast.
    """
    wanted = ["mae", "smape", "mase"]
    if any(column.startswith(f"{model}-q") for column in scored):
        wanted.append("wql")
    names = [model]
    if card.name.startswith("m4_"):
        scored = scored.assign(Naive2=_naive2_of(scored, history, card.season))
        names.append("Naive2")
        wanted = [name for name in wanted if name != "wql"]
    found = metrics.evaluate(scored, wanted, models=names, by=(), train_df=history, seasonality=card.season)
    table = found.set_index("metric")
    scores = {name: float(table.loc[name, model]) for name in wanted}
    scores["smape"] *= 100.0
    if "Naive2" in names:
        scores["owa"] = metrics.owa(found, "Naive2", [model])[model]
        alone = (
            metrics.evaluate(scored, ["wql"], models=[model], by=()) if _has_bands(scored, model) else None
        )
        if alone is not None:
            scores["wql"] = float(alone.set_index("metric").loc["wql", model])
    return scores


def _has_bands(scored: pd.DataFrame, model: str) -> bool:
    return any(column.startswith(f"{model}-q") for column in scored)


def _naive2_of(scored: pd.DataFrame, history: pd.DataFrame, season: int) -> np.ndarray:
    """Naive2 for every row of the truth, series by series in its order."""
    past = {key: y.to_numpy() for key, y in history.groupby("unique_id", observed=True, sort=False)["y"]}
    sizes = scored.groupby("unique_id", observed=True, sort=False).size()
    return np.concatenate([naive2(past[key], season, size) for key, size in sizes.items()])
