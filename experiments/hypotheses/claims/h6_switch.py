"""H6: the operator can be exchanged in the middle of training."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import bootstrap

CLAIM = (
    "Switching from softmax (A0) to continuous attention (A3) at half of the training costs a jump of less "
    "than a tenth of the gap closed so far, and is made good within a tenth of the steps."
)
STATISTIC = (
    "Jump: (validation loss just after less just before) / (loss at the start less just before). Recovery: "
    "log ratio of the loss a tenth of the steps after the switch to that before it; beside it the ratio to "
    "the run that was not switched, at the same step, and at the end. On text and series; also from A0 to "
    "the trapezoid rule (A1) and first order (A2), and from A3 to A0, at 25, 50 and 75 %, the optimiser's "
    "state kept or reset."
)
THRESHOLD = (
    "Confirmed if for A0 to A3 at 50 %, state kept, the 95 % interval of the jump lies below 10 % and that "
    "of the recovery below 0."
)
_ROW = ["data", "condition", "horizon", "seed"]


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """The switch of the threshold first, then every other."""
    table = losses(rows)
    if table.empty:
        return []
    main = table[table["arm"].eq("A0>A3") & table["condition"].eq("50-kept")]
    found = [
        _share("A0 to A3 at 50 %: jump, share of the gap closed", main, "before"),
        _ratio("A0 to A3 at 50 %: loss 10 % later / before", main, "after-10", "before"),
        _ratio("A0 to A3 at 50 %: loss 10 % later / not switched", main, "after-10", "stayed-10"),
        _ratio("A0 to A3 at 50 %: loss at the end / not switched", main, "end", "stayed-end"),
    ]
    for (arm, condition), group in table.groupby(["arm", "condition"]):
        start, target = arm.split(">")
        percent, state = condition.split("-")
        name = f"{start} to {target} at {percent} %, optimiser {state}"
        found.append(_share(f"{name}: jump", group, "before"))
        found.append(_ratio(f"{name}: 10 % later / not switched", group, "after-10", "stayed-10"))
    return found


def losses(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each switch and seed, a column for each moment."""
    found = rows[rows["experiment"].eq("switch")]
    return found.set_index(["arm", *_ROW, "metric"])["value"].unstack("metric").reset_index()


def _share(name: str, table: pd.DataFrame, before: str) -> Finding:
    """The jump as a share of the gap closed; 100 (e^r - 1) is the share in percent."""
    share = (table["after"] - table[before]) / (table["first"] - table[before])
    return _finding(name, table, np.log1p(share.clip(lower=-0.99)))


def _ratio(name: str, table: pd.DataFrame, late: str, early: str) -> Finding:
    return _finding(name, table, np.log(table[late] / table[early]))


def _finding(name: str, table: pd.DataFrame, r: pd.Series) -> Finding:
    ratios = table[_ROW].assign(r=r.to_numpy())
    return Finding(name, bootstrap(ratios), None, ratios)
