"""H4: the effect is one of genuine time series."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.cells import SHUFFLED
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, tested
from experiments.hypotheses.statistics import CELL

CLAIM = (
    "The effect of continuous attention (A3 / A0) is larger on real series than on the same series with"
    " the past shuffled in time."
)
STATISTIC = (
    "Mean log ratio on the real sets less that on their shuffled controls, both trained on all points."
)
THRESHOLD = "Confirmed if the 95 % interval of the difference lies below 0."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Difference in differences against the shuffled controls, data set by data set."""
    table, names = tested(rows, "regular"), conditions(plan, "regular")
    data = list(plan.tables["data"])
    real = ratios(table, "A3", "A0", names, data)
    shuffled = ratios(table, "A3", "A0", names, [name + SHUFFLED for name in data])
    apart = real[[*CELL, "r"]].merge(
        shuffled.assign(data=shuffled["data"].str.removesuffix(SHUFFLED))[[*CELL, "r"]], on=CELL
    )
    return [
        Finding.of("A3 / A0, shuffled in time", shuffled),
        Finding.of("A3 / A0, real less shuffled", apart.assign(r=apart["r_x"] - apart["r_y"])[[*CELL, "r"]]),
    ]
