"""The committed rows of the study, and the parts of them that a claim speaks of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import paired_log_ratios

RESULTS = Path(__file__).parent / "results"


def read(folder: Path = RESULTS) -> pd.DataFrame:
    """All rows of all pieces of the study.

    Raises:
        FileNotFoundError: No piece has been run yet.
    """
    pieces = sorted(folder.glob("rows*.csv"))
    if not pieces:
        raise FileNotFoundError(f"No rows in {folder}. Run `python -m experiments.hypotheses.run` first.")
    return pd.concat([pd.read_csv(piece) for piece in pieces], ignore_index=True)


def conditions(plan: Plan, *groups: str) -> list[str]:
    """Names of the sampling conditions of some groups of the plan."""
    return [name for group in groups for name in plan.tables["conditions"][group]]


def tested(rows: pd.DataFrame, regime: str, positions: str = "time") -> pd.DataFrame:
    """Test errors of the main experiment, for a regime of training and a kind of positions."""
    return rows[rows["experiment"].eq(f"main-{regime}-{positions}") & rows["split"].eq("test")]


def ratios(
    rows: pd.DataFrame, arm: str, baseline: str, names: list[str], data: list[str], metric: str = "mse"
) -> pd.DataFrame:
    """Log ratios of two arms on some data sets under some conditions, with the irregularity of each cell."""
    chosen = rows[rows["condition"].isin(names) & rows["data"].isin(data)]
    pairs = paired_log_ratios(chosen, arm, baseline, metric)
    known = chosen.drop_duplicates(["data", "condition"])[["data", "condition", "irregularity"]]
    return pairs.merge(known, on=["data", "condition"], how="left")
