"""What claims about an axis of the network share: an arm in a variant against itself in the plan."""

from __future__ import annotations

import pandas as pd

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios

CONDITIONS = ("regular", "irregular", "unseen")


def against_plan(
    rows: pd.DataFrame, plan: Plan, variant: str, arms: tuple[str, ...], positions: str = "time"
) -> list[Finding]:
    """Each arm in a variant, trained on thinned windows, against itself in the network of the plan.

    Args:
        rows: The rows.
        plan: The plan.
        variant: A table of `[variants]`; "": the plan's network, for another kind of positions.
        arms: Arms to compare.
        positions: Kind of positions of the variant.

    Returns:
        A finding for each arm that has rows of both, and one for the last arm against the first within the
        variant.
    """
    changed, usual = _of(rows, variant, positions), _of(rows, "", "time")
    names, data = conditions(plan, *CONDITIONS), sorted(set(changed["data"]) & set(usual["data"]))
    label = variant or f"positions {positions}"
    found = []
    for arm in arms:
        pair = [table[table["arm"].eq(arm)] for table in (changed, usual)]
        if not all(len(table) for table in pair):
            continue
        both = pd.concat([table.assign(arm=kind) for table, kind in zip(pair, _KINDS, strict=True)])
        found.append(Finding.of(f"{label} / plan, {arm}", ratios(both, *_KINDS, names, data)))
    first, last = arms[0], arms[-1]
    together = [set(changed.loc[changed["arm"].eq(arm), "data"]) for arm in (first, last)]
    data = sorted(together[0] & together[1])
    if data:
        found.append(Finding.of(f"{last} / {first}, {label}", ratios(changed, last, first, names, data)))
    return found


_KINDS = ("changed", "plan")


def _of(rows: pd.DataFrame, variant: str, positions: str) -> pd.DataFrame:
    """Test errors of a variant, trained on thinned windows."""
    experiment = f"{variant or 'main'}-thinned-{positions}"
    return rows[rows["experiment"].eq(experiment) & rows["split"].eq("test")]
