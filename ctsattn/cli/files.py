"""Frames from and to files: CSV, TSV and Parquet, compressed or not, and pipes."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_PARQUET = (".parquet", ".pq")
_KINDS = {".csv": ",", ".txt": ",", ".tsv": "\t", **dict.fromkeys(_PARQUET)}
_SEPARATORS = (",", ";", "\t", "|")  # of a .csv, told by its first line
_WITH_COMMA = r"\s*[+-]?\d+(?:,\d+)?\s*"  # a whole number has none
PIPE = "-"


def read_frame(place: str, text_columns: tuple[str, ...] = ()) -> pd.DataFrame:
    """Read a table; `-` reads the standard input, as CSV or Parquet, whichever it is.

    Args:
        place: File name, or `-`.
        text_columns: Columns to keep as text, so that an id such as 007 stays what it is.

    Returns:
        The frame.

    Raises:
        ValueError: If the kind of the file is unknown, or it does not hold a table.
        OSError: If it cannot be read.
        ImportError: If it is Parquet and pyarrow is not installed.
    """
    if place == PIPE:
        content = sys.stdin.buffer.read()
        kind = ".parquet" if content[:4] == b"PAR1" else ".csv"
        return _parse(io.BytesIO(content), kind, None, text_columns, "the standard input")
    path = Path(place)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {place!r}.")
    kind, packing = _kind_of(path)
    return _parse(path, kind, packing, text_columns, repr(place))


def read_times(frame: pd.DataFrame, column: str, pattern: str | None) -> pd.DataFrame:
    """Read a time column that does not begin with the year by its `strftime` pattern; None: leave it.

    Raises:
        ValueError: If a time does not follow the pattern.
    """
    import pandas as pd

    if pattern is None or column not in frame.columns:
        return frame
    try:
        return frame.assign(**{column: pd.to_datetime(frame[column].astype("str"), format=pattern)})
    except ValueError as error:
        what = str(error).split(" You might want", 1)[0]  # what follows is advice on arguments of pandas
        raise ValueError(
            f"Column {column!r} does not follow --time-format {pattern!r}, for example "
            f"{frame[column].iloc[0]!r}: {what}"
        ) from error


def write_frame(frame: pd.DataFrame, place: str) -> None:
    """Write a table by the suffix of its file, such as .csv, .csv.gz or .parquet; `-` writes CSV to the pipe.

    Raises:
        ValueError: If the suffix names no kind that can be written.
        ImportError: If it is Parquet and pyarrow is not installed.
    """
    if place == PIPE:
        _write_pipe(frame)
        return
    kind, packing = _kind_of(Path(place))
    if kind in _PARQUET:
        _write_parquet(frame, place, packing)
    else:
        frame.to_csv(place, index=False, sep=_KINDS[kind] or ",", compression=_compression(packing))


def _write_pipe(frame: pd.DataFrame) -> None:
    """Write CSV to the standard output; a reader that leaves early, as `head` does, is no error."""
    try:
        frame.to_csv(sys.stdout, index=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer must go somewhere, or the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_writable(place: str) -> None:
    """Refuse a result file that cannot be written, before the work of an hour is done."""
    if place == PIPE:
        return
    _kind_of(Path(place))
    check_folder(place)


def check_folder(place: str) -> None:
    """Refuse a file in a folder that does not exist."""
    if not Path(place).absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(Path(place).parent)!r} to write {place!r} into.")


def _kind_of(path: Path) -> tuple[str, str | None]:
    """Kind and packing by the suffixes of a name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in _PACKED else None
    kind = suffixes[-1] if suffixes else ""
    if kind not in _KINDS:
        raise ValueError(
            f"The name {str(path)!r} does not say what the file is. Accepted are .csv, .tsv and .parquet, "
            "compressed or not, such as data.csv.gz."
        )
    return kind, packing


def _compression(packing: str | None) -> Any:
    """Name of a packing as pandas calls it."""
    names = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".zip": "zip"}
    return names[packing] if packing else None


def _parse(
    source: Any, kind: str, packing: str | None, text_columns: tuple[str, ...], name: str
) -> pd.DataFrame:
    try:
        if kind in _PARQUET:
            return _read_parquet(source, packing)
        return _read_csv(source, kind, packing, text_columns)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{name} could not be read as {kind[1:]}: {error}") from error


def _read_csv(source: Any, kind: str, packing: str | None, text_columns: tuple[str, ...]) -> pd.DataFrame:
    """Read CSV as it is written anywhere: fields between other marks, decimals after a comma."""
    import pandas as pd

    separator = _KINDS[kind] if kind == ".tsv" else _separator(source, packing)
    how: dict[str, Any] = {"sep": separator, "compression": _compression(packing)}
    texts = dict.fromkeys(text_columns, "str")
    frame = pd.read_csv(source, dtype=texts, **how)
    others = frame.drop(columns=list(texts), errors="ignore").select_dtypes(["object", "string"])
    if separator != "," and any(_has_decimal_comma(others[column]) for column in others):
        _rewind(source)
        frame = pd.read_csv(source, dtype=texts, decimal=",", **how)
    return frame


def _separator(source: Any, packing: str | None) -> str:
    """The mark that stands most often in the first line."""
    from pandas.io.common import get_handle

    with get_handle(source, "rb", compression=_compression(packing), is_text=False) as opened:
        line = opened.handle.readline().decode("utf-8", errors="replace")
    _rewind(source)
    return max(_SEPARATORS, key=line.count)


def _rewind(source: Any) -> None:
    if isinstance(source, io.BytesIO):
        source.seek(0)


def _has_decimal_comma(column: pd.Series) -> bool:
    known = column.dropna().astype("str")
    return bool(known.str.contains(",").any()) and bool(known.str.fullmatch(_WITH_COMMA).all())


def _read_parquet(source: Any, packing: str | None) -> pd.DataFrame:
    import pandas as pd
    from pandas.io.common import get_handle

    _need_pyarrow()
    if packing is None:
        return pd.read_parquet(source)
    with get_handle(source, "rb", compression=_compression(packing), is_text=False) as opened:
        return pd.read_parquet(io.BytesIO(opened.handle.read()))


def _write_parquet(frame: pd.DataFrame, place: str, packing: str | None) -> None:
    from pandas.io.common import get_handle

    _need_pyarrow()
    if packing is None:
        frame.to_parquet(place, index=False)
        return
    with get_handle(place, "wb", compression=_compression(packing), is_text=False) as opened:
        opened.handle.write(frame.to_parquet(index=False))


def _need_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise ImportError("Parquet files need pyarrow: pip install pyarrow. Or use CSV.")
