"""The frozen plan: read it, prove that it is the frozen one, and turn it into what the runs need."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.hypotheses.backbone import Design
from experiments.hypotheses.tasks import Shape
from experiments.hypotheses.training import Schedule

HERE = Path(__file__).parent
PLAN, FROZEN = HERE / "plan.toml", HERE / "frozen.json"


@dataclass(frozen=True)
class Plan:
    """The plan as read from its file.

    Attributes:
        tables: The file's tables.
        sha256: Hash of the file.
    """

    tables: dict[str, Any]
    sha256: str

    @classmethod
    def read(cls, path: Path = PLAN) -> Plan:
        """Read a plan."""
        content = path.read_bytes()
        return cls(tomllib.loads(content.decode()), hashlib.sha256(content).hexdigest())

    @cached_property
    def arms(self) -> dict[str, str]:
        """Mixer of each arm."""
        return self.tables["arms"]

    @cached_property
    def sets(self) -> dict[str, dict[str, Any]]:
        """Every data set with what the plan says of it; `native` is true for those irregular by nature."""
        regular = {name: {**facts, "native": False} for name, facts in self.tables["data"].items()}
        return regular | {name: {**facts, "native": True} for name, facts in self.tables["native"].items()}

    def shape(self, name: str) -> Shape:
        """How the windows of a data set are cut."""
        facts = self.sets[name]
        most = self.tables.get("windows", {"most": Shape.most})["most"]
        return Shape(facts["lookback"], facts["horizon"], tuple(facts.get("variables", ())), tuple(most))

    def conditions(self, name: str) -> list[str]:
        """Conditions that a data set is tested under."""
        if self.sets[name]["native"]:
            return ["all"]
        table = self.tables["conditions"]
        return [
            name for group in ("regular", "irregular", "unseen", "clocks") for name in table.get(group, ())
        ]

    def imputes(self, arm: str) -> bool:
        """Whether an arm interpolates what it is shown to a regular grid first."""
        return arm in self.tables["study"].get("imputed", ())

    def rate(self, name: str, regime: str) -> float:
        """Learning rate that softmax did best with on validation; see `pilot.py`."""
        return self.tables["rates"][name][regime]

    def design(self, variant: str = "", **changes: Any) -> Design:
        """The network in a variant of the plan, with changes that an experiment makes."""
        varied = self.tables["variants"][variant] if variant else {}
        return Design(**{**self.tables["design"], **varied, **changes})

    def schedule(self, name: str, regime: str, learning_rate: float | tuple[float, ...]) -> Schedule:
        """The training on a data set in a regime; what is irregular by nature is never thinned."""
        facts = {k: v for k, v in self.tables["schedule"].items() if k != "learning_rates"}
        thinned = regime == "thinned" and not self.sets[name]["native"]
        return Schedule(**facts, learning_rate=learning_rate, thinned=thinned)


def freeze(plan: Path = PLAN, record: Path = FROZEN) -> dict[str, str]:
    """Record hash and date of the plan; a plan that is frozen already is not frozen anew.

    Raises:
        ValueError: Another plan was frozen before.
    """
    sha256 = Plan.read(plan).sha256
    if record.exists():
        frozen = json.loads(record.read_text())
        if frozen["sha256"] != sha256:
            raise ValueError(
                f"{plan.name} differs from the plan frozen on {frozen['date']}. A frozen plan does not "
                "change: restore it, or publish the change as a new study in a folder of its own."
            )
        return frozen
    entry = {"file": plan.name, "sha256": sha256, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record.write_text(json.dumps(entry, indent=2) + "\n")
    return entry


def check_frozen(plan: Plan, record: Path = FROZEN) -> None:
    """Refuse to go on unless `plan` is the frozen one.

    Raises:
        ValueError: No plan is frozen, or another one.
    """
    if not record.exists():
        raise ValueError(
            "The plan is not frozen yet. Run `python -m experiments.hypotheses.freeze` and commit it."
        )
    frozen = json.loads(record.read_text())
    if frozen["sha256"] != plan.sha256:
        raise ValueError(f"The plan is not the one frozen on {frozen['date']}; test sets stay closed.")
