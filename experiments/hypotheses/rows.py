"""The committed rows of the study, and the parts of them that a claim speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import paired_log_ratios

RESULTS = Path(__file__).parent / "results"
CELL = ["experiment", "arm", "data"]


def read(folder: Path = RESULTS) -> pd.DataFrame:
    """All rows of all pieces of the study, in long form: one error of one seed in a row.

    Raises:
        FileNotFoundError: No piece has been run yet.
    """
    frames = [pd.read_csv(piece) for piece in sorted(folder.glob("rows*.csv"))]
    if (folder / "cells.csv").exists():
        known = pd.read_csv(folder / "cells.csv")[[*CELL, "lookback", "horizon", "params"]]
        frames += [_errors(folder, known), _curves(folder, known)]
    if not frames:
        raise FileNotFoundError(f"No rows in {folder}. Run `python -m experiments.hypotheses.run` first.")
    return pd.concat(frames, ignore_index=True)


def _errors(folder: Path, known: pd.DataFrame) -> pd.DataFrame:
    """Test errors; those of stretches of windows stay together in the column `blocks`."""
    wide = pd.read_csv(folder / "main.csv").merge(known, on=CELL)
    keys = [*CELL, "lookback", "horizon", "params", "condition", "seed", "irregularity", "blocks"]
    tall = wide.melt(keys, ["mse", "mae"], var_name="metric", value_name="value")
    return tall.assign(split="test", blocks=tall["blocks"].where(tall["metric"].eq("mse")))


def _curves(folder: Path, known: pd.DataFrame) -> pd.DataFrame:
    """Validation losses along training."""
    wide = pd.read_csv(folder / "curves.csv", dtype={"steps": str, "losses": str}).merge(known, on=CELL)
    wide = wide.assign(step=wide["steps"].str.split(), value=wide["losses"].str.split())
    tall = wide.drop(columns=["steps", "losses", "best"]).explode(["step", "value"], ignore_index=True)
    tall = tall.astype({"step": int, "value": float})
    return tall.assign(condition="all", split="val", metric="mse")


def conditions(plan: Plan, *groups: str) -> list[str]:
    """Names of the sampling conditions of some groups of the plan."""
    return [name for group in groups for name in plan.tables["conditions"][group]]


def tested(rows: pd.DataFrame, regime: str, positions: str = "time") -> pd.DataFrame:
    """Test errors of the main experiment, for a regime of training and a kind of positions."""
    return rows[rows["experiment"].eq(f"main-{regime}-{positions}") & rows["split"].eq("test")]


def run_on(rows: pd.DataFrame, arms: Iterable[str], data: Iterable[str]) -> list[str]:
    """Those of some data sets that all of some arms were run on."""
    had = rows.groupby("arm")["data"].agg(set)
    return [name for name in data if all(name in had.get(arm, set()) for arm in arms)]


def ratios(
    rows: pd.DataFrame, arm: str, baseline: str, names: list[str], data: list[str], metric: str = "mse"
) -> pd.DataFrame:
    """Log ratios of two arms on some data sets under some conditions, with the irregularity of each cell."""
    chosen = rows[rows["condition"].isin(names) & rows["data"].isin(data)]
    pairs = paired_log_ratios(chosen, arm, baseline, metric)
    known = chosen.drop_duplicates(["data", "condition"])[["data", "condition", "irregularity"]]
    return pairs.merge(known, on=["data", "condition"], how="left")
