"""Which column is which: the dialects of long frames, wide frames, and indexes that carry meaning."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ctsattn.data.errors import examples
from ctsattn.data.schema import Columns
from ctsattn.data.tables import Library, Table, open_table

_DEFAULT = Columns()
_ALIASES = {"unique_id": "item_id", "ds": "timestamp", "y": "target"}
_HOW = (
    "Accepted are long frames (one row per series and time), with names given by id_col, time_col and "
    "target_col, and defaults `unique_id, ds, y` or `item_id, timestamp, target`; and wide frames (one "
    "column per series) with the time as index."
)


def recognise(df: Any, columns: Columns, *, need_targets: bool = True) -> tuple[Table, Columns, Library]:
    """Find id, time and targets, and turn a wide frame into a long one.

    The rules, in order: an index whose level is named as id or time, or that holds times, becomes
    columns; a default name that is absent is looked for in the other dialect; without an id column the
    frame is one series; a frame with a time but no target, all of whose other columns are numbers, is
    wide: each column is a series named by its header (a single one is the target).

    Args:
        df: The caller's frame; it is not changed.
        columns: Names as the caller gave them.
        need_targets: False for frames that carry covariates or asked times only.

    Returns:
        The columns of the long frame, the names found, and the library it came from.

    Raises:
        ValueError: If a needed column is absent; the message lists what was found.
        TypeError: If `df` is no frame.
    """
    if isinstance(df, (pd.Series, pd.DataFrame)):
        df, columns = _index_to_columns(df, columns)
    table, library = open_table(df)
    found = _translate(table, columns)
    if found.time not in table:
        raise ValueError(_absent("time", found.time, "time_col", table))
    if need_targets and not set(found.targets) <= set(table):
        table, found = _from_wide(table, found)
    return table, found, library


def columns_of(df: Any, columns: Columns) -> Table:
    """Columns of a frame that needs no time, such as one of static covariates; an id in the index counts."""
    if isinstance(df, pd.DataFrame) and (df.index.nlevels > 1 or df.index.name is not None):
        df = df.reset_index() if df.index.name not in df.columns else df
    table, _ = open_table(df)
    alias = _ALIASES.get(str(columns.id))
    if columns.id not in table and alias in table:
        table = {columns.id if name == alias else name: column for name, column in table.items()}
    return table


def _index_to_columns(df: pd.DataFrame | pd.Series, columns: Columns) -> tuple[pd.DataFrame, Columns]:
    if isinstance(df, pd.Series):
        df = df.to_frame(columns.targets[0] if df.name is None else df.name)
    if isinstance(df.columns, pd.MultiIndex):
        raise ValueError(
            f"The frame's header has {df.columns.nlevels} levels. {_HOW} Flatten it: "
            f"df.columns = ['_'.join(map(str, c)) for c in df.columns]."
        )
    if isinstance(df.index, pd.MultiIndex):
        return df.reset_index(names=_level_names(df.index, df, columns)), columns
    name = df.index.name
    times = {columns.time, _ALIASES.get(str(columns.time))} - {None}
    if name in times | {columns.id} and name is not None and name not in df.columns:
        return df.reset_index(), columns
    holds_times = isinstance(df.index, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex))
    if not holds_times or times & set(df.columns):
        return df, columns
    name = columns.time if name is None else name
    return df.reset_index(names=name), replace(columns, time=name)


def _level_names(index: pd.MultiIndex, df: pd.DataFrame, columns: Columns) -> list[Hashable]:
    """Names for the levels of a MultiIndex: its own, or id and time when it has none."""
    if index.nlevels == 2 and all(name is None for name in index.names):
        return [columns.id if columns.id is not None else "unique_id", columns.time]
    names = [f"level_{i}" if name is None else name for i, name in enumerate(index.names)]
    return [f"{name}_level" if name in df.columns else name for name in names]


def _translate(table: Table, columns: Columns) -> Columns:
    """Look for absent default names in the other dialect; drop an absent default id."""

    def known(name: Hashable) -> Hashable:
        alias = _ALIASES.get(name) if isinstance(name, str) else None
        return alias if name not in table and alias in table else name

    found = replace(columns, time=known(columns.time), targets=tuple(known(t) for t in columns.targets))
    if columns.id is None or columns.id in table:
        return found
    identity = known(columns.id)
    if identity in table:
        return replace(found, id=identity)
    if columns.id == _DEFAULT.id:
        return replace(found, id=None)
    raise ValueError(_absent("id", columns.id, "id_col", table) + " Pass id_col=None for one series.")


def _from_wide(table: Table, columns: Columns) -> tuple[Table, Columns]:
    """Stack the columns of a wide frame; a single column is the target of one series."""
    absent = [name for name in columns.targets if name not in table]
    rest = [name for name in table if name not in (columns.id, columns.time)]
    numeric = [name for name in rest if _is_number(table[name])]
    is_default = columns.targets == _DEFAULT.targets
    if not is_default or columns.declared() or not numeric or numeric != rest or columns.id in table:
        raise ValueError(_absent("target", absent[0], "target_col", table))
    if len(numeric) == 1:
        return table, replace(columns, targets=(numeric[0],), id=None)
    time = table[columns.time]
    ids = pd.Series(np.repeat(np.array(numeric, dtype=object), len(time))).infer_objects()
    values = pd.concat([table[name].astype(np.float64) for name in numeric], ignore_index=True)
    times = pd.concat([time] * len(numeric), ignore_index=True)
    identity = columns.id if columns.id is not None else _DEFAULT.id
    target = columns.targets[0]
    return {identity: ids, columns.time: times, target: values}, replace(columns, id=identity)


def _is_number(column: pd.Series) -> bool:
    if getattr(column.dtype, "kind", "O") in "iufb":
        return True
    inferred = pd.api.types.infer_dtype(column, skipna=True)
    return inferred in ("integer", "floating", "mixed-integer-float", "decimal", "boolean")


def _absent(what: str, name: Hashable, argument: str, table: Table) -> str:
    listed = examples(table, 12) or "no columns"
    return f"The {what} column {name!r} is not in the frame, which has {listed}. {_HOW} Set {argument}=..."
