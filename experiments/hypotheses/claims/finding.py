"""What a claim's test returns."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from experiments.hypotheses.statistics import Interval, bootstrap, wilcoxon


@dataclass(frozen=True)
class Finding:
    """One number of a claim, with its interval.

    Attributes:
        name: What was compared.
        interval: Mean log ratio over data sets; below 0 the first arm is better.
        p: Two-sided p of the signed-rank test over data sets; None where another test decides.
        ratios: The log ratios that it rests on; None where it rests on something else.
    """

    name: str
    interval: Interval
    p: float | None = None
    ratios: pd.DataFrame | None = None

    @classmethod
    def of(cls, name: str, ratios: pd.DataFrame) -> Finding:
        """The finding of a set of log ratios."""
        return cls(name, bootstrap(ratios), wilcoxon(ratios), ratios)
