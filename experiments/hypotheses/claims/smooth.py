"""Smooth signals: a positive control in favour of the integral."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.curves import levels, over_seeds, tested
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "On smooth signals from known laws, seen at random times, continuous attention on real gaps (A4) beats "
    "softmax that knows the times (A0). A positive control in its favour."
)
STATISTIC = (
    "Mean over the smooth families (sines, damped oscillators, Lorenz, a gene's oscillator) of the log ratio "
    "of the test MSE; beside it the trapezoid rule, unit gaps, and Ornstein-Uhlenbeck paths, which are rough."
)
THRESHOLD = "As predicted if the 95 % interval of A4 / A0 lies below 0."
_ROUGH = "ornstein_uhlenbeck"


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """The smooth families together, and the rough one."""
    final = tested(rows, "smooth")
    if final.empty:
        return []
    smooth, rough = final[final["data"].ne(_ROUGH)], final[final["data"].eq(_ROUGH)]
    return [
        over_seeds("A4 / A0, smooth", smooth, "A4", "A0"),
        over_seeds("A4 / A1, smooth", smooth, "A4", "A1"),
        over_seeds("A3 / A0, smooth", smooth, "A3", "A0"),
        over_seeds("A4 / A0, rough", rough, "A4", "A0"),
    ]


def notes(rows: pd.DataFrame, plan: Plan) -> list[str]:
    """Levels of the losses."""
    return [levels(tested(rows, "smooth"), "MSE")]
