"""H1: on regular series continuous attention is better than softmax."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, tested

CLAIM = (
    "With time-rotary positions, continuous attention on unit gaps (A3) has a lower test error than "
    "softmax (A0) on regularly sampled real series."
)
STATISTIC = "Mean over data sets of log(MSE A3 / MSE A0), trained and tested on all points; C1 of the plan."
THRESHOLD = "Confirmed if the 95 % interval lies below -1 %, refuted as equivalent if it lies within ±1 %."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Contrast C1."""
    names, data = conditions(plan, "regular"), list(plan.tables["data"])
    return [Finding.of("C1: A3 / A0, regular", ratios(tested(rows, "regular"), "A3", "A0", names, data))]
