"""Cells of the study: one training of all seeds of an arm on a data set, in a regime, with some positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from experiments.hypotheses.plan import Plan

SHUFFLED = "-shuffled"  # ending of a data set's name: its control, the past in a fixed wrong order


@dataclass(frozen=True)
class Cell:
    """One training of all seeds.

    Attributes:
        data: Name of the data set; with the ending `-shuffled` its negative control.
        arm: Arm of the plan.
        regime: "regular" or "thinned".
        positions: As in `backbone.Design`.
        variant: Name of a change to the network, a table in `[variants]` of the plan; "": the network itself.
    """

    data: str
    arm: str
    regime: str
    positions: str
    variant: str = ""

    @property
    def experiment(self) -> str:
        """Name of the experiment in the rows."""
        return f"{self.variant or 'main'}-{self.regime}-{self.positions}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the cell in the rows."""
        return self.experiment, self.arm, self.data

    @property
    def plain(self) -> str:
        """Name of the data set without the control's ending."""
        return self.data.removesuffix(SHUFFLED)


def cells(plan: Plan) -> Iterator[Cell]:
    """All cells of the plan, stage by stage; within a stage data set by data set."""
    for stage in plan.tables["stages"]:
        variants = stage.get("variants", [""])
        for data, variant, arm in product(_data(plan, stage["sets"]), variants, stage["arms"]):
            yield Cell(data, arm, stage["regime"], stage["positions"], variant)


def _data(plan: Plan, kinds: list[str]) -> Iterator[str]:
    """Names of the data sets of some kinds: tables of the plan, "shuffled", or names."""
    for kind in kinds:
        if kind in ("data", "native"):
            yield from plan.tables[kind]
        elif kind == "shuffled":
            yield from (name + SHUFFLED for name in plan.tables["data"])
        else:
            yield kind
