"""Ends of the interval: from the first knot, or half a piece at both ends."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.axes import against_plan
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "Integrals from the middle of the first piece to the middle of the last are as good as those from the "
    "first observation to the last."
)
STATISTIC = (
    "Mean over a few data sets of the log ratio of the test MSE, trained on thinned windows, over all "
    "conditions: an arm in the variant against itself in the plan's network, and the arms against each other "
    "in the variant."
)
THRESHOLD = "Exploratory: confirmed if the interval of A4, symmetric against plan, lies within ±1 %."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """The symmetric interval."""
    return [finding for finding in against_plan(rows, plan, "symmetric", ("A1", "A4"))]
