"""What `fit` learns of a frame: names, roles, clock, vocabularies. It is JSON, and saved with the model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ctsattn.data.clock import Clock
from ctsattn.data.scalers import ScaleLaw

TARGET, STATIC, PAST, FUTURE, IGNORED = "target", "static", "past", "future", "ignored"
NUMBER, TEXT = "number", "text"
RULE = "rule"  # how the reason of a role begins that nobody declared


class DataWarning(UserWarning):
    """Something in the data that the library can live with, and that the user should know."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a long frame.

    Attributes:
        id: Column that names the series; `None` when the frame is one series.
        time: Column of timestamps.
        targets: Columns to forecast, each with its own missing values.
        static: Declared columns that are constant within a series.
        past: Declared columns that are known up to the cutoff only.
        future: Declared columns that are known ahead of time.
    """

    id: Hashable | None = "unique_id"
    time: Hashable = "ds"
    targets: tuple[Hashable, ...] = ("y",)
    static: tuple[Hashable, ...] = ()
    past: tuple[Hashable, ...] = ()
    future: tuple[Hashable, ...] = ()

    @staticmethod
    def of(
        id_col: Hashable | None = "unique_id",
        time_col: Hashable = "ds",
        target_col: Hashable | Sequence[Hashable] = "y",
        static_cols: Sequence[Hashable] = (),
        past_cols: Sequence[Hashable] = (),
        future_cols: Sequence[Hashable] = (),
    ) -> Columns:
        """Build from the arguments of `Forecaster`, where one target may be a bare name."""
        targets = tuple(target_col) if isinstance(target_col, (list, tuple)) else (target_col,)
        _check_one(id_col=id_col, time_col=time_col)
        columns = Columns(
            id_col, time_col, targets, _names(static_cols), _names(past_cols), _names(future_cols)
        )
        columns._check_disjoint()
        return columns

    def declared(self) -> dict[Hashable, str]:
        """Map each declared covariate to its role."""
        roles = {STATIC: self.static, PAST: self.past, FUTURE: self.future}
        return {name: role for role, names in roles.items() for name in names}

    def _check_disjoint(self) -> None:
        names = [self.id, self.time, *self.targets, *self.static, *self.past, *self.future]
        twice = sorted({str(name) for name in names if name is not None and names.count(name) > 1})
        if twice:
            raise ValueError(
                f"Each column has one role, but {', '.join(map(repr, twice))} is named for more than one. "
                f"Name it once among id_col, time_col, target_col, static_cols, past_cols and future_cols."
            )
        if not self.targets:
            raise ValueError("`target_col` names no column. Give one name, or a list of names.")


def _check_one(**names: Any) -> None:
    for argument, name in names.items():
        if isinstance(name, (list, set, dict)):
            raise TypeError(
                f"`{argument}` names one column, but {name!r} was given. If several columns together say "
                f"which series a row is of, join them: df['unique_id'] = "
                f"df[[...]].astype(str).agg('/'.join, axis=1)."
            )


def _names(names: Sequence[Hashable]) -> tuple[Hashable, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True)
class Feature:
    """One column, the role it was given and why, and how its values become numbers.

    Attributes:
        name: Name of the column.
        role: "target", "static", "past", "future" or "ignored".
        kind: "number" or "text".
        why: Who decided, and on what ground.
        vocabulary: Known texts of a text column; code `k + 2` is `vocabulary[k]`.
        mean: Mean of a numeric static or known-future column over the training data.
        std: Its standard deviation, positive.
    """

    name: Hashable
    role: str
    kind: str
    why: str
    vocabulary: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    @property
    def by_rule(self) -> bool:
        """Whether nobody declared the role."""
        return self.why.startswith(RULE)

    @property
    def num_codes(self) -> int:
        """Category codes of the column: missing, other, and the vocabulary; 0 for numbers."""
        return len(self.vocabulary) + 2 if self.kind == TEXT else 0


@dataclass(frozen=True)
class Step:
    """The typical step of a data set.

    Attributes:
        kind: "elapsed" (physical time), "days" (same hour of the wall clock), "months" (same day of the
            month), "month ends", or "business days".
        count: Seconds or units (elapsed), otherwise days, months or business days.
    """

    kind: str = "elapsed"
    count: float = 1.0


@dataclass(frozen=True)
class Origin:
    """The moment from which cutoffs count: the first observation that training knew.

    Attributes:
        ticks: That moment on the clock of the training data.
        per_second: Ticks in a second of that clock.
    """

    ticks: float
    per_second: int = 1

    def on(self, clock: Clock) -> float:
        """The moment on another clock, which may be finer or coarser."""
        if clock.per_second < self.per_second:
            return self.ticks // (self.per_second // clock.per_second)
        return self.ticks * (clock.per_second // self.per_second)


@dataclass(frozen=True)
class Schema:
    """Everything `fit` learns of the data beyond sizes and units, which are in `TaskSpec`.

    Attributes:
        columns: Names as found in the training frame.
        features: One entry for every column but id and time, targets first.
        clock_kind: "datetime", "timedelta", "integer" or "float".
        calendar: Names of the calendar features that the model sees.
        laws: For each channel the law of its scale, for windows that show no spread.
        step: How the typical series steps.
        origin: From when cutoffs count, so that a phase means the same whatever history is shown; None in
            files of earlier versions, which count from the first observation of each history.
    """

    columns: Columns
    features: tuple[Feature, ...]
    clock_kind: str = "datetime"
    calendar: tuple[str, ...] = ()
    laws: tuple[ScaleLaw, ...] = field(default=())
    step: Step = Step()
    origin: Origin | None = None

    def having(self, role: str, kind: str | None = None) -> tuple[Feature, ...]:
        """Features of a role (and kind), in order."""
        return tuple(f for f in self.features if f.role == role and kind in (None, f.kind))

    @property
    def channels(self) -> tuple[Feature, ...]:
        """Targets, then past covariates: the channels of a batch."""
        return self.having(TARGET) + self.having(PAST)

    @property
    def known(self) -> tuple[Feature, ...]:
        """Known-future covariates: numbers first, then texts."""
        return self.having(FUTURE, NUMBER) + self.having(FUTURE, TEXT)

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, texts and numbers."""
        return asdict(self)

    @staticmethod
    def from_json(state: dict[str, Any]) -> Schema:
        """Rebuild what `to_json` wrote, also after a trip through a JSON text."""
        columns = {k: tuple(v) if isinstance(v, (list, tuple)) else v for k, v in state["columns"].items()}
        features = tuple(Feature(**{**f, "vocabulary": tuple(f["vocabulary"])}) for f in state["features"])
        laws = tuple(ScaleLaw(**law) for law in state["laws"])
        rest = {
            "columns": Columns(**columns),
            "features": features,
            "laws": laws,
            "step": Step(**state["step"]),
            "origin": Origin(**state["origin"]) if state.get("origin") else None,
        }
        return Schema(**{**state, **rest, "calendar": tuple(state["calendar"])})
