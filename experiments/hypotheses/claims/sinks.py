"""Sinks: what attention may look at besides the observations."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.axes import against_plan
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "A sink of zeros, the post's choice, is as good for both operators as none, as a copy of the first token "
    "and as a learned one."
)
STATISTIC = (
    "Mean over a few data sets of the log ratio of the test MSE, trained on thinned windows, over all "
    "conditions: an arm in the variant against itself in the plan's network, and the arms against each other "
    "in the variant."
)
THRESHOLD = "Exploratory: the choice does not matter if every interval lies within ±1 %."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Each other kind of sink."""
    return [
        finding
        for kind in ("none", "first", "learned")
        for finding in against_plan(rows, plan, f"sink-{kind}", ("A0", "A4"))
    ]
