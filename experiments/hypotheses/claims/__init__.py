"""The claims of the study, one file each: claim, statistic and threshold first, then the code.

A claim is a module with the texts `CLAIM`, `STATISTIC` and `THRESHOLD` and a function `test(rows, plan)` that
returns findings. A new claim is a new file and a line in `CLAIMS`.
"""

from __future__ import annotations

from types import ModuleType

from experiments.hypotheses.claims import (
    h1_regular,
    h2_irregular,
    h3_mechanism,
    h4_specificity,
    h5_dynamics,
)

CLAIMS: dict[str, ModuleType] = {
    "H1": h1_regular,
    "H2": h2_irregular,
    "H3": h3_mechanism,
    "H4": h4_specificity,
    "H5": h5_dynamics,
}
