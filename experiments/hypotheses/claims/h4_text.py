"""H4, second half: the effect is one of series, not of text."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.curves import levels, over_seeds, tested
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import difference, paired_log_ratios

CLAIM = (
    "The effect of continuous attention (A3 / A0) is larger on series than on text, in one causal network "
    "that predicts what comes next."
)
STATISTIC = (
    "Mean log ratio of the test loss on the series of the control less that on text; the interval draws data "
    "sets and seeds anew."
)
THRESHOLD = "Confirmed if the 95 % interval of the difference lies below 0."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Difference in differences between series and text."""
    series, text = tested(rows, "series"), tested(rows, "text")
    if series.empty or text.empty:
        return []
    effects = [paired_log_ratios(losses, "A3", "A0", "loss") for losses in (series, text)]
    return [
        over_seeds("A3 / A0 on series, causal network", series, "A3", "A0"),
        over_seeds("A3 / A0 on series, without positions", series, "A3-none", "A0-none"),
        Finding("A3 / A0, series less text", difference(*effects)),
    ]


def notes(rows: pd.DataFrame, plan: Plan) -> list[str]:
    """Levels of the losses."""
    return [levels(tested(rows, "series"), "MSE")]
