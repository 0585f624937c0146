"""Rows on disk: written as they come, given back one block of whole series after the other."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 1 << 19  # rows of a block, unless one series alone has more


class Scratch:
    """A temporary folder that goes when nobody holds it; it stands where TMPDIR says."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ctsattn-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked from the owner
        shutil.rmtree(path, ignore_errors=True)


def ranges_of(counts: NDArray[np.int64], limit: int) -> list[tuple[int, int]]:
    """Cut series into runs of neighbours with at most `limit` rows, or of one series that has more.

    Args:
        counts: `[series]` rows of each.
        limit: Rows of a run.

    Returns:
        First series of each run, and the one after its last.
    """
    found, start, rows = list[tuple[int, int]](), 0, 0
    for series, count in enumerate(counts.tolist()):
        if series > start and rows + count > limit:
            found.append((start, series))
            start, rows = series, 0
        rows += count
    return [*found, (start, len(counts))] if len(counts) else found


def append(path: Path, array: NDArray[Any]) -> None:
    """Write the numbers of an array behind those that a file holds."""
    with path.open("ab") as file:
        np.ascontiguousarray(array).tofile(file)


class Spool:
    """Rows of a stream on disk.

    Args:
        scratch: Where.
        width: Numbers in each row.
        floating: Whether times are floating.
    """

    def __init__(self, scratch: Scratch, width: int, floating: bool) -> None:
        self.scratch = scratch
        tick = "<f8" if floating else "<i8"
        self.dtype = np.dtype([("series", "<i8"), ("tick", tick), ("values", "<f8", (width,))])
        self.counts = np.zeros(0, np.int64)
        self._rows = scratch.path / "rows"
        self._rows.touch()
        self._last = -1
        self._grouped = True

    def append(self, series: NDArray[np.int64], ticks: NDArray[Any], values: NDArray[np.float64]) -> None:
        """Write rows: positions of their series, times, and `values` `[rows, width]`."""
        rows = np.empty(len(series), self.dtype)
        rows["series"], rows["tick"], rows["values"] = series, ticks, values
        append(self._rows, rows)
        counts = np.bincount(series, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        if len(series):
            self._grouped &= bool((np.diff(series) >= 0).all()) and int(series[0]) >= self._last
            self._last = int(series[-1])

    def blocks(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """First series, the one after the last, and the rows of each block, in the order they came in.

        Rows that came series by series are read where they stand; others are dealt out to a file for each
        block first.
        """
        ranges = ranges_of(self.counts, BLOCK_ROWS)
        if self._grouped:
            begin = 0
            for start, stop in ranges:
                count = int(self.counts[start:stop].sum())
                yield start, stop, self._read(self._rows, begin, count)
                begin += count
        else:
            self._deal(ranges)
            for number, (start, stop) in enumerate(ranges):
                path = self._part(number)
                yield start, stop, self._read(path, 0, int(self.counts[start:stop].sum()))
                path.unlink()
        self._rows.unlink()

    def _read(self, path: Path, begin: int, count: int) -> NDArray[Any]:
        return np.fromfile(path, self.dtype, count, offset=begin * self.dtype.itemsize)

    def _part(self, number: int) -> Path:
        return self.scratch.path / f"part-{number}"

    def _deal(self, ranges: list[tuple[int, int]]) -> None:
        """Append each row to the file of its block."""
        ends = np.array([stop for _, stop in ranges])
        for number in range(len(ranges)):
            self._part(number).touch()
        total = int(self.counts.sum())
        for begin in range(0, total, BLOCK_ROWS):
            rows = self._read(self._rows, begin, min(BLOCK_ROWS, total - begin))
            part = np.searchsorted(ends, rows["series"], side="right")
            order = np.argsort(part, kind="stable")
            bounds = np.searchsorted(part[order], np.arange(len(ranges) + 1))
            for number in np.unique(part).tolist():
                append(self._part(number), rows[order[bounds[number] : bounds[number + 1]]])
