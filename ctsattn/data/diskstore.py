"""A store whose observations stand on disk: mapped into memory where they are read, never as a whole."""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.clock import Ticks
from ctsattn.data.series import Ragged, SeriesStore
from ctsattn.data.spool import BLOCK_ROWS, Scratch, append, ranges_of

SAMPLE_ROWS = 1 << 20  # observations from which statistics of all data are learned


@dataclass(frozen=True, eq=False)
class DiskStore(SeriesStore):
    """As `SeriesStore`, for more observations than memory holds; what it derives from them is on disk too.

    Attributes:
        scratch: Folder of the files, kept as long as the store.
        observed: What `moments` is.
        scales: What `running_scale` is.
    """

    scratch: Scratch = field(default_factory=Scratch)
    observed: Ragged = field(default_factory=lambda: _nothing())
    scales: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def moments(self) -> Ragged:
        """As in `SeriesStore`."""
        return self.observed

    @cached_property
    def running_scale(self) -> NDArray[np.float64]:
        """As in `SeriesStore`."""
        return self.scales

    def ranges(self) -> list[tuple[int, int]]:
        """Runs of neighbouring series that fit into memory."""
        return self._ranges

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        return ranges_of(self.rows_of_series, BLOCK_ROWS)

    def kept(self, name: str, make: Callable[[int, int], NDArray[Any]]) -> NDArray[Any]:
        """Join what `make` gives for each run of series, on disk, once for each name."""
        if name not in self._kept:
            path = self.scratch.path / f"{name}-{secrets.token_hex(4)}"
            path.touch()
            dtype = np.dtype(np.int64)
            for run in self.ranges():
                found = make(*run)
                append(path, found)
                dtype = found.dtype
            self._kept[name] = mapped(path, dtype)
            self.release()
        return self._kept[name]

    @cached_property
    def _kept(self) -> dict[str, NDArray[Any]]:
        return {}

    def sample(self) -> SeriesStore:
        """Series spread evenly over the store, in memory, with about a million observations."""
        step = -(-len(self.past) // SAMPLE_ROWS)
        return self.select(np.arange(0, self.num_series, max(step, 1)))

    def select(self, series: NDArray[np.int64]) -> SeriesStore:
        """Keep some series, in memory."""
        known = (series[:, None] * self.num_known + np.arange(self.num_known)).reshape(-1)
        plain = {f.name: getattr(self, f.name) for f in fields(SeriesStore)}
        plain |= {
            "source": replace(self.source, ids=self.source.ids.take(series)),
            "past": self.past.take(self.segments(series).reshape(-1)),
            "known": self.known.take(known),
            "static": self.static[series],
            "static_codes": self.static_codes[series],
        }
        return SeriesStore(**plain)

    def release(self) -> None:
        """Let the pages go that were read; they are read again where they are needed."""
        arrays = (self.past.times, self.past.values, self.scales, self.observed.times)
        for array in (*arrays, self.known.times, self.known.values, *self._kept.values()):
            _release(array)

    def until(self, cutoff: Ticks) -> SeriesStore:
        """Forget every observation after a cutoff for each series, in new files."""
        writer = StoreWriter()
        for start, part in self.parts():
            writer.add(part.until(cutoff[start : start + part.num_series]))
        return writer.finish(self)

    def append(self, other: SeriesStore) -> SeriesStore:
        """Add the observations of another store, in new files; new ids go to the end."""
        writer = StoreWriter()
        place = self.source.positions(other.source.ids)
        for start, part in self.parts():
            here = np.flatnonzero((place >= start) & (place < start + part.num_series))
            writer.add(part.append(other.select(here)) if len(here) else part)
        fresh = np.flatnonzero(place < 0)
        ids = self.source.ids
        if len(fresh):
            new = other.select(fresh)
            ids = ids.append(new.source.ids)
            times = self.source.clock.convert(new.past.times, new.source.clock)
            writer.add(replace(new, past=replace(new.past, times=times)))
        return writer.finish(replace(self, source=replace(self.source, ids=ids)))

    def __deepcopy__(self, memo: Any) -> DiskStore:
        return self  # it never changes, and its files are not to be doubled

    def __reduce__(self) -> Any:
        plain = self.select(np.arange(self.num_series))
        return SeriesStore, tuple(getattr(plain, f.name) for f in fields(SeriesStore))


class StoreWriter:
    """Puts stores, one behind the other, into the files of one `DiskStore`."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        for name in _FILES:
            self._path(name).touch()
        self._dtypes: dict[str, np.dtype] = {}
        self._counts: dict[str, list[NDArray[np.int64]]] = {"past": [], "known": [], "moments": []}
        self._static: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def _path(self, name: str) -> Path:
        return self.scratch.path / name

    def add(self, part: SeriesStore) -> None:
        """Write the next series."""
        arrays = {
            "past-times": part.past.times,
            "past-values": part.past.values,
            "known-times": part.known.times,
            "known-values": part.known.values,
            "scales": part.running_scale,
            "moments": part.moments.times if part.num_channels > 1 else part.past.times[:0],
        }
        for name, array in arrays.items():
            append(self._path(name), array)
            self._dtypes[name] = array.dtype
        for name, ragged in (("past", part.past), ("known", part.known), ("moments", part.moments)):
            self._counts[name].append(ragged.counts)
        self._static.append((part.static, part.static_codes))

    def finish(self, like: SeriesStore, static: tuple[NDArray[Any], NDArray[Any]] | None = None) -> DiskStore:
        """The store of all that was added.

        Args:
            like: Its names, ids and sizes are taken.
            static: Static covariates of all series; None: those of what was added.
        """
        arrays = {name: mapped(self._path(name), self._dtypes[name]) for name in _FILES}
        indptr = {
            name: np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
            for name, counts in self._counts.items()
        }
        past = Ragged(arrays["past-times"], arrays["past-values"], indptr["past"])
        if static is None:
            numbers, codes = zip(*self._static, strict=True)
            static = np.concatenate(numbers), np.concatenate(codes)
        times = arrays["moments"] if like.num_channels > 1 else past.times
        return DiskStore(
            **{name: getattr(like, name) for name in ("source", *_SIZES)},
            past=past,
            known=Ragged(arrays["known-times"], arrays["known-values"], indptr["known"]),
            static=static[0],
            static_codes=static[1],
            scratch=self.scratch,
            observed=Ragged(times, np.broadcast_to(0.0, len(times)), indptr["moments"]),
            scales=arrays["scales"],
        )


_FILES = ("past-times", "past-values", "known-times", "known-values", "scales", "moments")
_SIZES = ("num_targets", "num_channels", "num_known", "calendar")


def mapped(path: Path, dtype: np.dtype) -> NDArray[Any]:
    """The numbers of a file, read where they are looked at."""
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")


def _release(array: NDArray[Any]) -> None:
    """Tell the system that the pages of a mapped array are not needed now."""
    file = getattr(array, "_mmap", None)
    if file is not None and hasattr(file, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED)


def _nothing() -> Ragged:
    return Ragged(np.zeros(0, np.int64), np.zeros(0), np.zeros(1, np.int64))
