"""What the fields of a config may hold, told by their annotations, and one message for those that do not.

A field is annotated with its type and, as in `d_model: Count = 64`, with the range or the names that it
accepts. `check_options` is the one place where that is enforced; a new field needs its annotation, no more.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

_LONGEST = 80  # characters of a value that are shown
_WORDS = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a text",
    NoneType: "None",
    tuple: "a tuple of names",
    list: "a list of integers",
    PathLike: "a path",
}


@dataclass(frozen=True)
class Within:
    """The range of a number: both ends belong to it unless said otherwise, and infinity never does.

    Attributes:
        least: Lower end.
        most: Upper end.
        above: Whether the lower end is left out.
        below: Whether the upper end is left out.
    """

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        inside = self.least <= value <= self.most and math.isfinite(value)
        return inside and not ((self.above and value == self.least) or (self.below and value == self.most))

    def __str__(self) -> str:
        upper = "" if self.most == math.inf else f" and {'below' if self.below else 'at most'} {self.most:g}"
        return f" {'above' if self.above else 'of at least'} {self.least:g}{upper}"


@dataclass(frozen=True)
class OneOf:
    """Names that a text may be, as they stand in a table when it is asked."""

    names: Collection[str]

    def __contains__(self, value: str) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


Count = Annotated[int, Within(1)]
Positive = Annotated[float, Within(0, above=True)]
NotNegative = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1)]
LostShare = Annotated[float, Within(0, 1, below=True)]  # of what is dropped: something must be left


def check_options(config: Any, parameter: str) -> None:
    """Check the fields of a config against their annotations.

    Args:
        config: A dataclass; another object has no fields to check.
        parameter: What the estimator calls it, for the line that mends it.

    Raises:
        ValueError: A field holds what it cannot; the text says what it accepts.
    """
    hints = _annotations(type(config))
    for field in fields(config) if hints else ():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        mended = "" if default is MISSING else f"Write set_params({parameter}__{field.name}={default!r})."
        name = f"{type(config).__name__}.{field.name}"
        check_option(name, getattr(config, field.name), hints[field.name], mended)


def check_option(name: str, value: object, hint: Any, mended: str) -> None:
    """Check a value against an annotation.

    Args:
        name: What it is called.
        value: What was given.
        hint: The annotation.
        mended: How to mend it.

    Raises:
        ValueError: It does not fit.
    """
    if accepts(hint, value):
        return
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    said = (f"`{name}` must be {in_words(hint)}, but it is {shown}.", mended, _remark(hint))
    raise ValueError(" ".join(part for part in said if part))


@lru_cache
def _annotations(kind: type) -> dict[str, Any]:
    """Annotations of a dataclass by field; none where they name what only the caller's function knows."""
    try:
        return get_type_hints(kind, include_extras=True) if hasattr(kind, "__dataclass_fields__") else {}
    except NameError:
        return {}


def accepts(hint: Any, value: object) -> bool:
    """Whether a value fits an annotation: its type, and all ranges and names that go with it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [limit for limit in parts[1:] if not isinstance(limit, str)]
        return accepts(parts[0], value) and all(value in limit for limit in limits)
    if origin in (Union, UnionType):
        return any(accepts(part, value) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin in (tuple, list):
        return isinstance(value, (tuple, list)) and all(accepts(parts[0], part) for part in value)
    if hint in (bool, int, float):
        return _is_number(hint, value)
    return hint is Any or isinstance(value, origin or hint)


def _is_number(kind: type, value: object) -> bool:
    """Whether a value is a number of a kind, Python's or NumPy's; True and False are none."""
    truth = isinstance(value, (bool, np.bool_))
    if kind is bool:
        return truth
    return not truth and isinstance(value, Integral if kind is int else Real) and math.isfinite(value)


def in_words(hint: Any) -> str:
    """What an annotation accepts."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limit = parts[1]
        return f"{in_words(parts[0])}{limit}" if isinstance(limit, Within) else str(limit)
    if origin in (Union, UnionType):
        words = [in_words(part) for part in parts]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is Literal:
        return " or ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in parts)
    kind = origin or hint
    return _WORDS.get(kind, f"a {kind.__name__.lower()}")


def _remark(hint: Any) -> str:
    """What else an annotation says, a text after its ranges."""
    said = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return " ".join(part for part in said if isinstance(part, str))
