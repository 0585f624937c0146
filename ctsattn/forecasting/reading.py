"""Histories of any size become stores: frames in memory at once, streams by way of the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ctsattn.data.building import build_store, learn_schema
from ctsattn.data.frame import Panel, read_panel
from ctsattn.data.schema import Columns, Schema
from ctsattn.data.series import SeriesStore
from ctsattn.data.stream import is_stream, open_stream
from ctsattn.data.streaming import build_stream, learn_stream


@dataclass(frozen=True)
class Stream:
    """A history that is larger than what is held in memory.

    Attributes:
        head: Its first frames in one.
        frames: All its frames; they can be taken once.
        columns: Names as the caller gave them.
        static_df: Static covariates, one row for each id.
    """

    head: Any
    frames: Iterator[Any]
    columns: Columns
    static_df: Any = None


def read_history(
    df: Any,
    columns: Columns,
    *,
    static_df: Any = None,
    past_df: Any = None,
    future_df: Any = None,
    cold_start: bool = False,
) -> Panel | Stream:
    """Read a frame, or open a stream; a short stream is read as one frame.

    Raises:
        ValueError: A stream comes with `past_df`, or nothing can be read.
    """
    extra = {"static_df": static_df, "past_df": past_df, "future_df": future_df}
    if is_stream(df):
        df, more = open_stream(df)
        if more is not None:
            _check_alone(past_df, future_df)
            return Stream(df, more, columns, static_df)
    return read_panel(df, columns, **extra, cold_start=cold_start)


def _check_alone(past_df: Any, future_df: Any) -> None:
    for name, frame in (("past_df", past_df), ("future_df", future_df)):
        if frame is not None:
            raise ValueError(
                f"`{name}` does not go with files or frames larger than memory. Join its columns to them, "
                f"with a row for each of its times and no target there."
            )


def learn_from(
    history: Panel | Stream, *, calendar: Sequence[str], duplicates: str
) -> tuple[Schema, SeriesStore]:
    """The schema that a history shows, and its store."""
    if isinstance(history, Panel):
        return learn_schema(history, calendar=calendar, duplicates=duplicates)
    return learn_stream(
        history.head,
        history.frames,
        history.columns,
        static_df=history.static_df,
        calendar=calendar,
        duplicates=duplicates,
    )


def store_of(history: Panel | Stream, schema: Schema, *, duplicates: str) -> SeriesStore:
    """A history read by a schema that was learned before."""
    if isinstance(history, Panel):
        return build_store(history, schema, duplicates=duplicates)
    return build_stream(
        history.frames, history.columns, schema, static_df=history.static_df, duplicates=duplicates
    )
