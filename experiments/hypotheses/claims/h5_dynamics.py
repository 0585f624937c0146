"""H5: continuous attention learns faster early on."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import paired_log_ratios

CLAIM = (
    "Continuous attention (A3) has an early advantage over softmax (A0): a lower validation curve in "
    "the first fifth of training."
)
STATISTIC = (
    "Mean over data sets of the log ratio of the mean validation MSE over the checks in the first 20 % "
    "of the steps; beside it the same at the last check."
)
THRESHOLD = "Confirmed if the 95 % interval of the early ratio lies below 0."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Early and final ratios of validation losses."""
    curve = rows[rows["experiment"].eq("main-regular-time") & rows["split"].eq("val")]
    curve = curve[curve["data"].isin(list(plan.tables["data"]))]
    steps = plan.tables["schedule"]["steps"]
    early = _mean_loss(curve[curve["step"] <= 0.2 * steps])
    final = _mean_loss(curve[curve["step"] == curve["step"].max()])
    return [
        Finding.of("A3 / A0, validation loss in the first 20 %", paired_log_ratios(early, "A3", "A0")),
        Finding.of("A3 / A0, validation loss at the end", paired_log_ratios(final, "A3", "A0")),
    ]


def _mean_loss(curve: pd.DataFrame) -> pd.DataFrame:
    """Mean loss of each run over the checks given; one that is not finite makes the run a failure."""
    keys = ["arm", "data", "condition", "horizon", "seed", "metric"]
    return (
        curve.groupby(keys)["value"].agg(lambda v: v.mean() if np.isfinite(v).all() else np.nan).reset_index()
    )
