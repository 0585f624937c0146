"""What of the plan was run, and how many runs failed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.hypotheses.cells import SHUFFLED, cells
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import CELL


def coverage(rows: pd.DataFrame, plan: Plan) -> list[str]:
    """Lines: cells run out of those planned, trainings that diverged, and a table of what is missing."""
    had = set(rows[CELL].drop_duplicates().itertuples(index=False, name=None))
    planned = [cell.key for cell in cells(plan)]
    names = {experiment for experiment, _, _ in planned}
    test = rows[rows["split"].eq("test") & rows["metric"].eq("mse") & rows["experiment"].isin(names)]
    diverged = test[~np.isfinite(test["value"])].drop_duplicates([*CELL, "seed"])
    runs = test.drop_duplicates([*CELL, "seed"])
    done = sum(key in had for key in planned)
    return [
        f"{done} of the {len(planned)} cells of the plan were run; of their {len(runs)} trainings "
        f"{len(diverged)} diverged.",
        "",
        "| experiment | arm | data sets run | planned |",
        "|---|---|---:|---:|",
        *_table(planned, had),
    ]


def _table(planned: list[tuple[str, str, str]], had: set[tuple[str, str, str]]) -> list[str]:
    """A line for each experiment and arm, the shuffled controls apart."""
    counts: dict[tuple[str, str], list[int]] = {}
    for key in planned:
        experiment, arm, data = key
        label = f"{experiment}, shuffled" if data.endswith(SHUFFLED) else experiment
        count = counts.setdefault((label, arm), [0, 0])
        count[0] += key in had
        count[1] += 1
    return [f"| {name} | {arm} | {done} | {all_} |" for (name, arm), (done, all_) in counts.items()]
