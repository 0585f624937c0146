"""Direction: causal or bidirectional encoders."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.axes import against_plan
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "An encoder that sees both ways changes nothing in the comparison of continuous attention (A4) and "
    "softmax (A0)."
)
STATISTIC = (
    "Mean over a few data sets of the log ratio of the test MSE, trained on thinned windows, over all "
    "conditions: an arm in the variant against itself in the plan's network, and the arms against each other "
    "in the variant."
)
THRESHOLD = "Exploratory: confirmed if the interval of A4 / A0, bidirectional, lies within ±1 %."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Encoders without a causal mask."""
    return [finding for finding in against_plan(rows, plan, "bidirectional", ("A0", "A4"))]
