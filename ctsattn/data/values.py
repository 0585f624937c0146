"""One column's values as float64: numbers checked, texts coded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from decimal import Decimal
from numbers import Real

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.errors import examples
from ctsattn.data.schema import NUMBER, TEXT, DataWarning, Feature

OTHER = 1  # code of a text that training did not see; 0 is missing
MAX_VOCABULARY = 1000
EXACT = 2.0**53  # up to it float64 holds every integer
LARGEST = 1e100  # beyond it squares overflow

_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_TIMES = ("datetime", "datetime64", "date", "timedelta", "timedelta64", "period", "time")
Where = Callable[[NDArray[np.int64]], str]


def kind_of(column: pd.Series) -> str:
    """Say whether a column holds numbers, texts, or neither ("time", "other")."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return TEXT
    kind = getattr(column.dtype, "kind", "O")
    if kind in "iufb":
        return NUMBER
    if kind in "Mm" or isinstance(column.dtype, pd.PeriodDtype):
        return "time"
    inferred = pd.api.types.infer_dtype(column, skipna=True)
    if inferred.startswith("mixed"):
        inferred = _mixed(column)
    if inferred in _NUMBERS:
        return NUMBER
    if inferred in ("string", "categorical"):
        return TEXT
    return "time" if inferred in _TIMES else "other"


def _mixed(column: pd.Series) -> str:
    """Say whether objects of several types are all numbers, or numbers and texts."""
    types = {type(value) for value in column[column.notna()]}
    if all(issubclass(t, (Real, Decimal, np.bool_)) for t in types):
        return "floating"
    return "string" if all(issubclass(t, (str, Real, Decimal, np.bool_)) for t in types) else "mixed"


def to_numbers(column: pd.Series, name: Hashable, what: str, where: Where) -> NDArray[np.float64]:
    """Read a numeric column of any dtype; missing values become NaN.

    Args:
        column: The caller's column; it is not changed.
        name: Its name, for messages.
        what: Its part in the task, for messages: "Target" or "Covariate".
        where: Names the ids and times of given rows.

    Raises:
        ValueError: If it holds text, or infinite values.
        TypeError: If it holds neither numbers nor text.
    """
    if isinstance(column.dtype, pd.CategoricalDtype) and kind_of(pd.Series(column.cat.categories)) == NUMBER:
        column = column.astype(np.float64)
    kind = kind_of(column)
    if kind != NUMBER:
        raise _not_numbers(column, name, what, kind, where)
    if column.dtype == object:
        column = column.where(column.notna(), np.nan).astype(np.float64)
    values = column.to_numpy(np.float64, na_value=np.nan)
    _warn_of_long_integers(column, values, name, what)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(np.abs(values) > LARGEST)
    if bad.size:
        found = "infinite" if np.isinf(values[bad]).all() else f"infinite or huge (beyond {LARGEST:g})"
        raise ValueError(
            f"{what} column {name!r} has {bad.size} {found} value(s) among {len(values)} rows: {where(bad)}. "
            f"Finite numbers and NaN (not observed) are accepted. Make them NaN: "
            f"df[{name!r}] = df[{name!r}].where(df[{name!r}].abs() < {LARGEST:g})."
        )
    return values


def _warn_of_long_integers(column: pd.Series, values: NDArray[np.float64], name: Hashable, what: str) -> None:
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    if getattr(column.dtype, "kind", "O") in "iu" and largest > EXACT:
        warnings.warn(
            f"{what} column {name!r} holds integers beyond 2**53, which float64 holds only to the nearest "
            f"{np.spacing(largest):g}. Subtract an offset: df[{name!r}] -= df[{name!r}].min().",
            DataWarning,
            stacklevel=2,
        )


def _not_numbers(column: pd.Series, name: Hashable, what: str, kind: str, where: Where) -> Exception:
    if kind != TEXT:
        return TypeError(
            f"{what} column {name!r} must hold numbers, but has dtype {column.dtype}, for example "
            f"{examples(column.iloc[:3])}. Give int, float, bool, nullable or pyarrow numbers."
        )
    values = column.astype(object)
    text = np.flatnonzero([isinstance(value, str) for value in values])
    text = text if text.size else np.flatnonzero(column.notna())
    return ValueError(
        f"{what} column {name!r} must hold numbers, but {text.size} of {len(column)} rows hold text, for "
        f"example {examples(values.iloc[text])} ({where(text)}). Convert it: df[{name!r}] = "
        f"{_conversion(values.iloc[text], name)}."
    )


def _conversion(texts: pd.Series, name: Hashable) -> str:
    """Code that makes numbers of texts; `to_numeric` alone would drop all that have a decimal comma."""
    column = f"df[{name!r}]"
    if texts.astype(str).str.fullmatch(r"\s*[+-]?\d+,\d+\s*").any():
        column = f"{column}.str.replace(',', '.')"
    return f"pd.to_numeric({column}, errors='coerce')"


def learn_vocabulary(column: pd.Series) -> tuple[str, ...]:
    """List the distinct texts of a column in sorted order; at most the 1000 most frequent."""
    texts = column.dropna().astype(object).astype(str)
    counts = texts.value_counts()
    return tuple(sorted(counts.index[:MAX_VOCABULARY]))


def to_codes(column: pd.Series, feature: Feature) -> NDArray[np.float64]:
    """Code texts by the feature's vocabulary; NaN where missing, 1 (other) where unseen.

    Warns:
        DataWarning: Once for a column with unseen texts, with their number and examples.
    """
    codes, uniques = pd.factorize(column)
    texts = pd.Index(uniques).astype(object).map(str) if len(uniques) else pd.Index([], dtype=object)
    place = pd.Index(feature.vocabulary, dtype=object).get_indexer(pd.Index(texts, dtype=object))
    unseen = texts[place < 0]
    if len(unseen):
        warnings.warn(
            f"Column {feature.name!r} has {len(unseen)} text(s) that training did not see, for example "
            f"{examples(unseen)}; they count as 'other'.",
            DataWarning,
            stacklevel=2,
        )
    coded = np.append(np.where(place < 0, OTHER, place + 2).astype(np.float64), np.nan)
    return coded[codes]
