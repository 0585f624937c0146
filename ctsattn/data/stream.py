"""Frames that arrive piece by piece: Parquet folders, lists of files, iterators of frames."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import narwhals as nw
import pandas as pd

from ctsattn.data.tables import is_frame

HEAD_ROWS = 1 << 20  # rows that are held in memory; what has no more is read as one frame
_PIECE_ROWS = 1 << 17  # rows that are taken from a file at once


def is_stream(df: Any) -> bool:
    """Whether `df` names files, or yields frames, instead of being a frame."""
    if isinstance(df, (str, os.PathLike)) or (hasattr(df, "to_batches") and hasattr(df, "get_fragments")):
        return True
    if df is None or is_frame(df) or isinstance(df, (dict, set, bytes)):
        return False
    if isinstance(df, (list, tuple)):
        return bool(df) and all(isinstance(x, (str, os.PathLike)) or is_frame(x) for x in df)
    return isinstance(df, Iterator)


def pieces(df: Any) -> Iterator[Any]:
    """Frames of a stream, one after the other.

    Args:
        df: A Parquet file or a folder of them, a list of files or of frames, a pyarrow dataset, or an
            iterator of frames.

    Raises:
        ValueError: A path does not exist, or holds no Parquet file.
        ImportError: Files are named, and pyarrow is not installed.
    """
    if isinstance(df, (list, tuple)) and is_frame(df[0]):
        return iter(df)
    if isinstance(df, (str, os.PathLike, list, tuple)):
        return _batches(_dataset(df))
    return _batches(df) if hasattr(df, "to_batches") else iter(df)


def _dataset(paths: Any) -> Any:
    try:
        import pyarrow.dataset as arrow
    except ImportError as error:
        raise ImportError(
            "Reading Parquet needs pyarrow, which is not installed: pip install 'ctsattn[parquet]'."
        ) from error
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    absent = [str(path) for path in several if not Path(path).exists()]
    if absent:
        raise ValueError(
            f"{len(absent)} path(s) do not exist, for example {absent[0]!r}. Give a Parquet file, a folder "
            f"of them, a list of files, or frames."
        )
    source = str(several[0]) if len(several) == 1 else [str(path) for path in several]
    try:
        dataset = arrow.dataset(source, format="parquet")
    except ValueError as error:
        raise ValueError(
            f"{source!r} cannot be read as Parquet ({str(error).splitlines()[0]}). Read a file of another "
            f"kind first: fit(pd.read_csv(...))."
        ) from error
    if not dataset.files:
        raise ValueError(f"The folder {source!r} holds no Parquet file. Give a folder of `*.parquet` files.")
    return dataset


def _batches(dataset: Any) -> Iterator[Any]:
    """Tables of bounded size, in the order of the files."""
    import pyarrow

    options = {"batch_size": _PIECE_ROWS, "batch_readahead": 2, "fragment_readahead": 1}
    for batch in dataset.to_batches(**options):
        if batch.num_rows:
            yield pyarrow.Table.from_batches([batch])


def open_stream(df: Any) -> tuple[Any, Iterator[Any] | None]:
    """The first frames of a stream in one, and all its frames, from the first on, if there are more.

    Raises:
        ValueError: The stream has no frame.
        TypeError: It yields something else.
    """
    source, first, rows = pieces(df), list[Any](), 0
    for piece in source:
        if not is_frame(piece):
            raise TypeError(
                f"The stream yields {type(piece).__name__}, but frames of pandas, polars or pyarrow are "
                f"expected."
            )
        first.append(piece)
        rows += len(piece)
        if rows > HEAD_ROWS:
            return joined(first), chain(first, source)
    if not first:
        raise ValueError("The stream has no frame. Give at least one frame with rows.")
    return joined(first), None


def joined(frames: Iterable[Any]) -> Any:
    """Several frames of one library as one."""
    found = [nw.from_native(frame, eager_only=True) for frame in frames]
    if len(found) == 1:
        return found[0].to_native()
    native = nw.concat(found, how="vertical").to_native()
    numbered = isinstance(native, pd.DataFrame) and isinstance(found[0].to_native().index, pd.RangeIndex)
    return native.reset_index(drop=True) if numbered else native
