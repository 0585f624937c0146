"""Forecasts written to a folder of Parquet files as they are made; a run that was killed goes on."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw

from ctsattn.data.series import SeriesStore
from ctsattn.forecasting.asking import Queries
from ctsattn.forecasting.checkpoint import as_bytes
from ctsattn.forecasting.digests import store_digest
from ctsattn.forecasting.files import whole_file
from ctsattn.forecasting.frames import Named
from ctsattn.forecasting.state import Fitted, to_file

PART_ROWS = 1 << 19  # observations that a part looks back on
_KEY = b"ctsattn"
DONE = "_SUCCESS"  # as other engines mark a folder that is complete


def answer_digest(fitted: Fitted, names: Named) -> str:
    """Names a model and the columns that it is asked for."""
    header, tensors = to_file(fitted, data=False)
    digest = hashlib.sha256(json.dumps([header | {"log": None}, names], sort_keys=True, default=str).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + as_bytes(tensors[name]))
    return digest.hexdigest()


def part_digest(answer: str, store: SeriesStore, queries: Queries) -> str:
    """Names one part of an answer: the model, the history and the questions."""
    digest = hashlib.sha256((answer + store_digest(store)).encode())
    for array in (queries.series, queries.ticks):
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Partitions:
    """A folder of parts.

    Attributes:
        folder: Where they stand.
    """

    folder: Path

    @staticmethod
    def at(folder: str | os.PathLike[str], count: int) -> Partitions:
        """Make a folder, or find it as an earlier run left it.

        Raises:
            ValueError: It is named as a file of another kind, holds something else, or more parts than there
                will be.
            OSError: It cannot be made.
        """
        path = Path(folder)
        if {".csv", ".tsv", ".txt", ".json", ".xlsx"} & {suffix.lower() for suffix in path.suffixes}:
            raise ValueError(
                f"{str(path)!r} names a file, but a forecast is written to a folder of Parquet files. Name a "
                f"folder, or write the frame yourself: predict(...).to_csv(...)."
            )
        path.mkdir(parents=True, exist_ok=True)
        names = {f"part-{number:05d}.parquet" for number in range(count)} | {DONE}
        others = sorted(p.name for p in path.iterdir() if not p.name.startswith(".") and p.name not in names)
        if others:
            raise ValueError(
                f"The folder {str(path)!r} holds other files, for example {others[0]!r}, so no forecast was "
                f"written there. Give an empty folder."
            )
        (path / DONE).unlink(missing_ok=True)
        return Partitions(path)

    def has(self, number: int, digest: str) -> bool:
        """Whether an earlier run wrote this very part.

        Raises:
            ValueError: It wrote another one under this name.
        """
        import pyarrow.parquet as parquet

        path = self._path(number)
        if not path.exists():
            return False
        metadata = parquet.read_schema(path).metadata or {}
        if metadata.get(_KEY) != digest.encode():
            raise ValueError(
                f"{str(path)!r} is the forecast of another model, history or question, so it was left. "
                f"Give an empty folder, or remove this one first."
            )
        return True

    def write(self, number: int, frame: Any, digest: str) -> None:
        """Write a part; it appears under its name only when whole."""
        import pyarrow.parquet as parquet

        table = nw.from_native(frame, eager_only=True).to_arrow()
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: digest.encode()})
        with whole_file(self._path(number)) as temporary:
            parquet.write_table(table, temporary)

    def finish(self) -> Path:
        """Mark the folder as complete."""
        with whole_file(self.folder / DONE):
            pass
        return self.folder

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.parquet"
