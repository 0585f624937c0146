"""Positions × operator: the post's square, on series."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.axes import against_plan
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, tested

CLAIM = (
    "Without rotary positions continuous attention does better against softmax than with them (the post: "
    "positions close the gap), on regular series (A3) and on irregular sampling (A4)."
)
STATISTIC = (
    "Mean over data sets of log ratios of the test MSE: the arms against softmax (A0) without positions, and "
    "every arm without positions, with half of the features turned, and with counts in place of times, each "
    "against itself with time-rotary positions."
)
THRESHOLD = "Confirmed if the 95 % interval of A3 / A0 or A4 / A0 lies below -1 % without positions."


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """The square on regular and on thinned windows, then the other kinds of positions."""
    return [
        *_square(rows, plan, "regular", "regular", "A3"),
        *_square(rows, plan, "thinned", "irregular", "A4"),
        *against_plan(rows, plan, "", ("A0", "A4"), "none"),
        *against_plan(rows, plan, "", ("A0", "A4"), "partial"),
        *against_plan(rows, plan, "", ("A0", "A3"), "index"),
    ]


def _square(rows: pd.DataFrame, plan: Plan, regime: str, group: str, arm: str) -> list[Finding]:
    """An arm against softmax without and with positions, on the data sets that have all four."""
    names, tables = conditions(plan, group), {}
    data = set(plan.tables["data"])
    for positions in ("none", "time"):
        table = tested(rows, regime, positions)
        tables[positions] = table[table["condition"].isin(names)]
        for one in (arm, "A0"):
            data &= set(tables[positions].loc[tables[positions]["arm"].eq(one), "data"])
    if not data:
        return []
    return [
        Finding.of(
            f"{arm} / A0, {regime}, positions {positions}", ratios(table, arm, "A0", names, sorted(data))
        )
        for positions, table in tables.items()
    ]
