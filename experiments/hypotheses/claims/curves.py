"""What claims about the controls share: test losses, parts of the curves, and intervals over seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import bootstrap, paired_log_ratios

RUN = ["arm", "data", "condition", "horizon", "seed"]


def tested(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Test losses of a control, with the columns of a cell, `metric` and `value`."""
    found = rows[rows["experiment"].eq(experiment) & rows["split"].eq("test")]
    return found.assign(metric="loss")


def area(rows: pd.DataFrame, experiment: str, plan: Plan, share: float) -> pd.DataFrame:
    """Mean validation loss of each run over the checks in the first `share` of the steps, the start left out.

    One that is not finite makes the run a failure.
    """
    steps = plan.tables["controls"][experiment]["course"]["steps"]
    curve = rows[rows["experiment"].eq(experiment) & rows["split"].eq("val")]
    curve = curve[curve["step"].between(1, share * steps)]
    mean = curve.groupby(RUN)["value"].agg(lambda v: v.mean() if np.isfinite(v).all() else np.nan)
    return mean.reset_index().assign(metric="loss")


def over_seeds(name: str, losses: pd.DataFrame, arm: str, baseline: str) -> Finding:
    """The log ratio of two arms; on few data sets the interval comes from seeds, and no rank test is made."""
    ratios = paired_log_ratios(losses, arm, baseline, "loss")
    return Finding(name, bootstrap(ratios), None, ratios)


def levels(losses: pd.DataFrame, unit: str, factor: float = 1.0) -> str:
    """A sentence with the mean loss of each arm on each data set."""
    means = losses.groupby(["data", "arm"])["value"].mean() * factor
    parts = [
        f"{data}: " + ", ".join(f"{arm} {value:.4g}" for (_, arm), value in group.items())
        for data, group in means.groupby("data")
    ]
    return f"{unit} on the test part, mean over seeds. " + "; ".join(parts) + "."
