"""Scale of the time-rotary angles: keys are joined along chords, so fast turns lose their length."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.axes import against_plan
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "Continuous attention (A4) wants slower rotations than softmax (A0): turning by 1.5 within a median gap "
    "costs it more, since the middle of a chord between turned keys is shorter."
)
STATISTIC = (
    "Mean over a few data sets of the log ratio of the test MSE, trained on thinned windows, over all "
    "conditions: an arm in the variant against itself in the plan's network, and the arms against each other "
    "in the variant."
)
THRESHOLD = "Exploratory: confirmed if the interval of A4 / A0 lies above 0 at the turn of 1.5."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Slower and faster turns than the plan's 0.5."""
    return [
        finding
        for angle in ("0.1", "1.5")
        for finding in against_plan(rows, plan, f"angle-{angle}", ("A0", "A4"))
    ]
