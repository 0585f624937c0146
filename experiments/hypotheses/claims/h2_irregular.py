"""H2: on irregular sampling real gaps help, the more the more irregular."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, tested
from experiments.hypotheses.statistics import slope

CLAIM = (
    "Continuous attention on real gaps (A4) beats softmax that knows the times (A0) on irregular "
    "sampling, and the gain grows with irregularity."
)
STATISTIC = (
    "Mean over data sets of log(MSE A4 / MSE A0), trained on thinned windows, pooled over the irregular"
    " conditions (C2 of the plan); the same over the patterns that training never saw; slope of the log"
    " ratio on the coefficient of variation of the gaps within data sets; and the sets whose clocks are"
    " irregular by nature."
)
THRESHOLD = "Confirmed if the 95 % interval of C2 lies below -1 % and the slope is below 0 (one-sided 5 %)."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Contrast C2, the unseen patterns, the native sets, and the dose."""
    thinned, data = tested(rows, "thinned"), list(plan.tables["data"])
    pool = ratios(thinned, "A4", "A0", conditions(plan, "irregular"), data)
    unseen = ratios(thinned, "A4", "A0", conditions(plan, "unseen"), data)
    native = ratios(thinned, "A4", "A0", ["all"], list(plan.tables["native"]))
    every = ratios(thinned, "A4", "A0", conditions(plan, "regular", "irregular", "unseen"), data)
    dose, p = slope(every.dropna(subset="irregularity"), "irregularity")
    return [
        Finding.of("C2: A4 / A0, irregular", pool),
        Finding.of("A4 / A0, patterns unseen in training", unseen),
        Finding.of("A4 / A0, native irregular clocks", native),
        Finding("slope of A4 / A0 on the irregularity of the gaps", dose, p),
    ]
