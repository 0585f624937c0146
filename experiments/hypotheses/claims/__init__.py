"""The claims of the study, one file each: claim, statistic and threshold first, then the code.

A claim is a module with the texts `CLAIM`, `STATISTIC` and `THRESHOLD` and a function `test(rows, plan)` that
returns findings; none where the rows of its experiment are not there yet. `notes(rows, plan)`, where a claim
has it, returns sentences to add. A new claim is a new file and a line in `CLAIMS`.
"""

from __future__ import annotations

from types import ModuleType

from experiments.hypotheses.claims import (
    alternatives,
    direction,
    ends,
    h1_regular,
    h2_irregular,
    h3_mechanism,
    h4_specificity,
    h4_text,
    h5_dynamics,
    h6_switch,
    key_filter,
    positions,
    recall,
    robustness,
    rotary_scale,
    sinks,
    smooth,
    temperature,
    text,
)

CLAIMS: dict[str, ModuleType] = {
    "H1": h1_regular,
    "H2": h2_irregular,
    "H3": h3_mechanism,
    "H4": h4_specificity,
    "H5": h5_dynamics,
    "Robustness": robustness,
    "Alternatives": alternatives,
    "H4, text": h4_text,
    "H6": h6_switch,
    "Text": text,
    "Key filter": key_filter,
    "Positions": positions,
    "Recall": recall,
    "Smooth signals": smooth,
    "Sinks": sinks,
    "Temperature": temperature,
    "Scale of positions": rotary_scale,
    "Direction": direction,
    "Ends": ends,
}
