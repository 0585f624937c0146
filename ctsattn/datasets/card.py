"""What is known of a data set (`Dataset`) and of the files it is read from (`Source`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ctsattn.datasets.splits import Split


@dataclass(frozen=True)
class Source:
    """One file: where it comes from, how to know it is whole, and under which names it may lie on a disk.

    Attributes:
        url: The public address.
        names: Names of the file, or of a folder, under which it is looked for on this disk.
        checksum: `sha256:…`, `md5:…` or `git-blob:…` (the id that git gives the content); None where
            it could not be learnt, or where the publisher revises the file. Then a download warns.
        member: For an archive, a pattern naming the one file wanted from it; "*" for the whole folder.
    """

    url: str
    names: tuple[str, ...]
    checksum: str | None
    member: str = ""

    @property
    def file(self) -> str:
        """Name of the downloaded file."""
        return self.url.split("?")[0].rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Dataset:
    """The card of a data set: all that a reader, a licence check or a benchmark needs to know.

    Attributes:
        name: The key in `DATASETS`.
        title: A line saying what it is.
        origin: Who made the data, and the page that says so.
        license: The licence, or what is known where none is stated.
        citation: The publication to cite.
        sampling: The clock: its step, or how irregular it is.
        regular: Whether observations sit on one regular clock.
        split: Which rows or series are for training, validation and test.
        horizons: Horizons of the published protocol, in steps of the clock or as spans of time.
        metric: The published measure, and how it is averaged.
        read: Turns the paths of `sources`, in order, into a long frame; for a synthetic family a
            function of keyword arguments.
        sources: The files; none for a synthetic family.
        rows: Rows of the long frame; None where the publisher revises the file.
        series: Distinct `unique_id`; None likewise.
        variables: Names in the column `variable`, for series observed in several variables.
        season: Steps in a season, for the seasonal naive forecast and MASE; 1 where there is none.
        sentinels: Column or variable name to the number that the source writes for "unknown".
        notes: What surprises.
    """

    name: str
    title: str
    origin: str
    license: str
    citation: str
    sampling: str
    regular: bool
    split: Split
    horizons: tuple[int | float | str, ...]
    metric: str
    read: Callable[..., pd.DataFrame]
    sources: tuple[Source, ...] = ()
    rows: int | None = None
    series: int | None = None
    variables: tuple[str, ...] = ()
    season: int = 1
    sentinels: Mapping[str, float] = field(default_factory=dict)
    notes: str = ""

    @property
    def checksums(self) -> dict[str, str | None]:
        """Checksum of each download by its name; None where none is known."""
        return {source.file: source.checksum for source in self.sources}

    @property
    def synthetic(self) -> bool:
        """Whether the data are made by a formula rather than read from files."""
        return not self.sources

    def load(self, paths: list[Path] | None = None, **options: Any) -> pd.DataFrame:
        """Read the frame from `paths` (one for each source), or make it with `options`."""
        return self.read(**options) if self.synthetic else self.read(*(paths or ()), **options)
