"""What a run is (`Run`), and how a TOML file or a command line becomes a list of runs."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctsattn._options import check_options
from ctsattn.datasets import card
from ctsattn.datasets.long_horizon import tables
from ctsattn.datasets.protocols import PROTOCOLS
from ctsattn.models import MODELS

VERSION = 1  # of what a run does; a higher number makes old rows count as not done
_LISTS = ("data", "model", "mixer", "lookback", "horizon", "condition", "seed", "members")


@dataclass(frozen=True)
class Run:
    """One training and its evaluation. Everything that changes its numbers is here, and nothing else.

    Attributes:
        data: Name in `ctsattn.datasets.DATASETS`.
        model: Name in `ctsattn.models.MODELS`.
        mixer: Name in `ctsattn.nn.MIXERS`, for models that have one; empty otherwise.
        options: Further fields of the model's config.
        preset: Class method of the config to start from, `small` or `base`; empty for its defaults.
        lookback: Rows seen; 0 where the protocol or the data decide.
        horizon: Rows asked; 0 where the protocol decides.
        condition: Sampling condition of what is seen, as in `ctsattn.datasets.sampling`.
        seed: Of weights, batches and the condition.
        training: Fields of `ctsattn.forecasting.Training`.
        joint: Whether the model sees all channels of a table together.
        point: What is scored, the head's `mean` or `median`.
        windows: Windows of a part to evaluate, spread evenly; 0 for all.
        test: Whether to evaluate the test part; false while choosing on validation.
        load: Options of `ctsattn.datasets.load`, for synthetic families.
        members: Networks that are trained from seeds of their own and whose forecasts are averaged.
        start: Batches of the closed-form start at most; 0: every training window that memory has room for.
    """

    data: str
    model: str
    mixer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    lookback: int = 0
    horizon: int = 0
    condition: str = "all"
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False
    point: str = "mean"
    windows: int = 0
    test: bool = True
    load: Mapping[str, Any] = field(default_factory=dict)
    start: int = 0
    members: int = 1

    @property
    def kind(self) -> str:
        """How the set is evaluated: `rows` of a table, irregular `records`, or `series` through frames."""
        if self.data in tables():
            return "rows"
        return "records" if self.data in PROTOCOLS else "series"

    def config(self) -> Any:
        """The model's config."""
        found = MODELS[self.model]
        options = {key: tuple(v) if isinstance(v, list) else v for key, v in self.options.items()}
        if self.mixer:
            options["mixer"] = self.mixer
        return getattr(found, self.preset)(**options) if self.preset else found(**options)

    def as_json(self) -> str:
        """All fields that differ from their defaults, in one line, always written the same way."""
        default = {f.name: f.default for f in dataclasses.fields(self)}
        given = {k: v for k, v in dataclasses.asdict(self).items() if v != default[k] and v != {}}
        return json.dumps(given, sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """Twelve hex digits that name the run."""
        return hashlib.sha256(f"{VERSION}{self.as_json()}".encode()).hexdigest()[:12]

    def check(self) -> Run:
        """Raise `ValueError` for names that do not exist and options out of range; returns the run."""
        card(self.data)
        if self.model not in MODELS:
            raise ValueError(f"No model is called `{self.model}`. There are {', '.join(MODELS)}.")
        if self.kind == "rows" and not (self.lookback and self.horizon):
            raise ValueError(f"`{self.data}` needs a lookback and a horizon, in rows.")
        if self.members > 1 and (self.kind == "series" or self.point != "mean"):
            raise ValueError("`members` are averaged for the means of `rows` and `records` alone.")
        check_options(self.config(), "model")
        return self


def expand(table: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> list[Run]:
    """All combinations of the lists in a table; nested tables are joined with those of the defaults.

    A field of `training` that is "none" is None, for which TOML has no word.
    """
    base = dict(defaults or {})
    nested = {key: {**base.get(key, {}), **table.get(key, {})} for key in ("options", "training", "load")}
    nested["training"] = {k: None if v == "none" else v for k, v in nested["training"].items()}
    fields = {**base, **table, **{key: value for key, value in nested.items() if value}}
    choices = [(key, _as_list(fields[key])) for key in _LISTS if key in fields]
    fixed = {key: value for key, value in fields.items() if key not in _LISTS}
    names = [key for key, _ in choices]
    combined = itertools.product(*(values for _, values in choices))
    return [Run(**fixed, **dict(zip(names, values, strict=True))).check() for values in combined]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def read_plan(paths: Iterable[Path]) -> list[Run]:
    """Runs of some TOML files: a table `defaults` and tables `runs`, whose lists are combined."""
    runs: dict[str, Run] = {}
    for path in paths:
        content = tomllib.loads(path.read_text())
        for table in content.get("runs", [{}]):
            runs |= {run.hash: run for run in expand(table, content.get("defaults"))}
    return list(runs.values())
