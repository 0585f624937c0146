"""What else could be done with irregular series: impute first, filter the keys, or take another mixer."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, run_on, tested

CLAIM = (
    "Continuous attention on real gaps (A4) is better on irregular sampling than interpolating to a regular "
    "grid and then attending (A6), and than other mixers of the same width: softmax with a learned filter on "
    "the keys (A5), the delta rule (B1), its exact flow over real gaps (B2)."
)
STATISTIC = (
    "Mean over data sets of the log ratio of A4 to each of them, trained on thinned windows, pooled over the "
    "irregular conditions, on the sets that both were run on; and the same on native irregular clocks."
)
THRESHOLD = (
    "Against A6: a practical case exists only if the interval lies below 0 on one of the two pools. The "
    "others are exploratory."
)
_OTHERS = ("A6", "A5", "A0", "B1", "B2")


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """A4 against each alternative, thinned and native."""
    table, found = tested(rows, "thinned"), []
    pools = [("irregular", conditions(plan, "irregular"), "data"), ("native clocks", ["all"], "native")]
    for label, names, kind in pools:
        for other in _OTHERS:
            data = run_on(table, ("A4", other), plan.tables[kind])
            if data:
                found.append(Finding.of(f"A4 / {other}, {label}", ratios(table, "A4", other, names, data)))
    return found
