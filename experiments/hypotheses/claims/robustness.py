"""Robustness to sampling: patterns that training never saw, few points, values that decide what is seen."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, tested

CLAIM = (
    "Continuous attention on real gaps (A4) is more robust than softmax (A0) to how a series was sampled: to "
    "patterns that training never saw, to few points, to sampling that depends on the value as loggers that "
    "report on change have it, and to clocks that were recorded wrongly."
)
STATISTIC = (
    "Mean over data sets of log(MSE A4 / MSE A0), trained on thinned windows, over the two conditions whose "
    "sampling depends on the value, and under each condition by itself; and the same for arms trained on all "
    "points and tested on few (shift of rate and of mask)."
)
THRESHOLD = (
    "Confirmed if the 95 % interval lies below -1 % over value-dependent sampling; the conditions one by one "
    "are exploratory."
)
VALUE_DEPENDENT = ("moving-25", "on_change-25")
_GROUPS = ("irregular", "unseen", "clocks")


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Value-dependent sampling, each condition, and shifts between training and test."""
    data, found = list(plan.tables["data"]), []
    thinned, regular = tested(rows, "thinned"), tested(rows, "regular")
    pools = [("value-dependent sampling", list(VALUE_DEPENDENT))]
    groups = [group for group in _GROUPS if group in plan.tables["conditions"]]
    pools += [(name, [name]) for name in conditions(plan, *groups)]
    for label, names in pools:
        found += _pair(thinned, "A4", names, data, f"A4 / A0, {label}")
    shifts = conditions(plan, "irregular", "unseen")
    for arm in ("A1", "A3", "A4"):
        found += _pair(regular, arm, shifts, data, f"{arm} / A0, trained on all points, tested on few")
    return found


def _pair(table: pd.DataFrame, arm: str, names: list[str], data: list[str], label: str) -> list[Finding]:
    """The finding of an arm against softmax under some conditions, if both were run there."""
    here = table[table["condition"].isin(names) & table["data"].isin(data)]
    if not {arm, "A0"} <= set(here["arm"]):
        return []
    both = [set(here.loc[here["arm"].eq(name), "data"]) for name in (arm, "A0")]
    return [Finding.of(label, ratios(here, arm, "A0", names, sorted(both[0] & both[1])))]
