"""Temperature: whether a head learns the sharpness of its scores."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.axes import against_plan
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "A learned temperature for each head makes up for the sharpness cap: with the fixed one of 1/√d "
    "continuous attention (A4) loses more than softmax (A0)."
)
STATISTIC = (
    "Mean over a few data sets of the log ratio of the test MSE, trained on thinned windows, over all "
    "conditions: an arm in the variant against itself in the plan's network, and the arms against each other "
    "in the variant."
)
THRESHOLD = "Exploratory: confirmed if the interval of A4 / A0 lies above 0 with the temperature fixed."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """The temperature fixed."""
    return [finding for finding in against_plan(rows, plan, "temperature-fixed", ("A0", "A4"))]
