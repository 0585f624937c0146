"""Text: the post's own observations, on the characters of Tiny Shakespeare."""

from __future__ import annotations

import math

import pandas as pd

from experiments.hypotheses.claims.curves import area, levels, over_seeds, tested
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan

CLAIM = (
    "On text it is as the post saw: without rotary positions both operators are worse, with them continuous "
    "attention (A3) leads softmax (A0) early, and the curves merge."
)
STATISTIC = (
    "Mean over seeds of log ratios of the loss in nats for each character: on the test part at the end, and "
    "of the mean validation loss over the checks in the first 20 % of the steps."
)
THRESHOLD = (
    "Replicated if the 95 % intervals (over seeds) lie above 0 for both operators without against with "
    "positions, below 0 for the early ratio, and within ±0.5 % for the ratio at the end."
)


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Positions, early advantage, and the end."""
    final = tested(rows, "text")
    if final.empty:
        return []
    return [
        over_seeds("A0 without / with positions", final, "A0-none", "A0"),
        over_seeds("A3 without / with positions", final, "A3-none", "A3"),
        over_seeds("A3 / A0, validation in the first 20 %", area(rows, "text", plan, 0.2), "A3", "A0"),
        over_seeds("A3 / A0, test", final, "A3", "A0"),
        over_seeds("A3 / A0, both without positions", final, "A3-none", "A0-none"),
        over_seeds("A3 without positions / A0 with", final, "A3-none", "A0"),
        over_seeds("A2 / A3, test", final, "A2", "A3"),
    ]


def notes(rows: pd.DataFrame, plan: Plan) -> list[str]:
    """Levels of the losses."""
    return [levels(tested(rows, "text"), "Bits per character", 1 / math.log(2))]
