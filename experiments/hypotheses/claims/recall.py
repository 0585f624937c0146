"""The sharpness cap: recall of single tokens suffers from averages over neighbours.

While the task was sized, before the plan was frozen, one seed on a processor learned it sooner with A3 than
with A0 (16 pairs, 300 steps: 0.80 against 3.53 nats). The prediction below was left as it stood.
"""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.curves import area, levels, over_seeds, tested
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "On multi-query associative recall continuous attention (A3) is worse than softmax (A0): beside a peak "
    "of height h its neighbours keep a share of about 1 / (h - 1). A positive control: if nothing shows, the "
    "set-up is insensitive."
)
STATISTIC = (
    "Mean over tasks of the log ratio of the mean validation loss over the whole of training; beside it the "
    "test loss at the end."
)
THRESHOLD = (
    "As predicted if the 95 % interval of the first ratio lies above 0; if it lies below 0, the account of "
    "the sharpness cap is wrong, and that is reported."
)


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Area under the curve, and the end."""
    final = tested(rows, "recall")
    if final.empty:
        return []
    whole = area(rows, "recall", plan, 1.0)
    return [
        over_seeds("A3 / A0, validation loss over all of training", whole, "A3", "A0"),
        over_seeds("A3 / A0, test loss at the end", final, "A3", "A0"),
        over_seeds("A2 / A0, validation loss over all of training", whole, "A2", "A0"),
    ]


def notes(rows: pd.DataFrame, plan: Plan) -> list[str]:
    """Levels of the losses."""
    return [levels(tested(rows, "recall"), "Nats at each answer")]
