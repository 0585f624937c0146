"""A learned key filter: does it find the kernel of the integral on series, and nothing on text?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.hypotheses.claims.curves import RUN, over_seeds, tested
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import bootstrap

CLAIM = (
    "Softmax with a learned filter over neighbouring keys, begun at [0, 1, 0] (A5), learns about "
    "[1/6, 4/6, 1/6], the first-order form of continuous attention, on series, and stays at [0, 1, 0] on "
    "text."
)
STATISTIC = (
    "Share of the two outer taps in the sum of the three, mean over layers, heads, features and seeds of the "
    "controls; beside it the log ratios of the test loss of A5 to A0 and A3."
)
THRESHOLD = (
    "It supports H4 if the 95 % interval of the share on series lies between 16 and 50 % (the kernel has "
    "33 %) and that on text below 16 %."
)


def test(rows: pd.DataFrame, plan: Plan) -> list[Finding]:
    """Taps and losses on series and on text."""
    taps = rows[rows["split"].eq("fitted") & rows["arm"].eq("A5")]
    found = []
    for experiment in ("series", "text"):
        here, final = taps[taps["experiment"].eq(experiment)], tested(rows, experiment)
        if here.empty:
            continue
        table = here.set_index([*RUN, "metric"])["value"].unstack("metric").reset_index()
        outer = table["tap-before"] + table["tap-after"]
        share = table[RUN].assign(r=np.log1p(outer / (outer + table["tap-own"])))
        found += [
            Finding(f"share of the outer taps, {experiment}", bootstrap(share), None, share),
            over_seeds(f"A5 / A0, {experiment}", final, "A5", "A0"),
            over_seeds(f"A5 / A3, {experiment}", final, "A5", "A3"),
        ]
    return found
