"""H3: the exact integral matters, not only the measure."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, run_on, tested

CLAIM = (
    "Continuous attention on real gaps (A4) beats the trapezoid rule (A1, Continuum Attention): exact "
    "interpolation matters, not only the measure."
)
STATISTIC = (
    "Mean over data sets of log(MSE A4 / MSE A1), trained on thinned windows, pooled over the irregular"
    " conditions; C3 of the plan. Beside it A4 against the first-order form (A2)."
)
THRESHOLD = (
    "Confirmed if the 95 % interval of C3 lies below -1 %; the trapezoid rule suffices if it lies "
    "within ±1 %. First order suffices if its interval lies within ±0.5 %."
)


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Contrast C3, each irregular condition, native clocks, and the first-order form."""
    thinned, data, names = tested(rows, "thinned"), list(plan.tables["data"]), conditions(plan, "irregular")
    native = list(plan.tables["native"])
    found = [
        Finding.of("C3: A4 / A1, irregular", ratios(thinned, "A4", "A1", names, data)),
        *(Finding.of(f"A4 / A1, {name}", ratios(thinned, "A4", "A1", [name], data)) for name in names),
        Finding.of("A4 / A1, native irregular clocks", ratios(thinned, "A4", "A1", ["all"], native)),
    ]
    # looked at after the rows were there, to see where the loss against softmax comes from
    for label, where, sets in (("irregular", names, data), ("native irregular clocks", ["all"], native)):
        table = ratios(thinned, "A1", "A0", where, sets)
        found.append(Finding.of(f"A1 / A0, {label} (asked afterwards)", table))
    both = run_on(thinned, ("A2", "A4"), data)
    if both:
        found.append(Finding.of("A2 / A4, irregular", ratios(thinned, "A2", "A4", names, both)))
    return found
