"""Public data sets as long frames, with their cards, protocols and sampling conditions.

`load("etth1")` returns a frame with the columns `unique_id`, `ds`, `y`, and `variable` where a series
is observed in several variables at times of their own. `DATASETS["etth1"]` is the card.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from ctsattn.datasets import (
    activity,
    astronomy,
    competitions,
    environment,
    long_horizon,
    m4,
    physionet,
    synthetic,
    ushcn,
)
from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.download import cache_folder, fetch
from ctsattn.datasets.long_horizon import Table
from ctsattn.datasets.splits import split
from ctsattn.datasets.tables import to_wide, without_sentinels
from ctsattn.datasets.tsf import read_tsf

__all__ = [
    "DATASETS",
    "Dataset",
    "Source",
    "Table",
    "cache_folder",
    "card",
    "load",
    "load_table",
    "read_tsf",
    "split",
    "to_wide",
]

DATASETS: dict[str, Dataset] = {
    **long_horizon.CARDS,
    **competitions.CARDS,
    **m4.CARDS,
    **physionet.CARDS,
    **activity.CARDS,
    **ushcn.CARDS,
    **astronomy.CARDS,
    **environment.CARDS,
    **synthetic.CARDS,
}


def card(name: str) -> Dataset:
    """Return the card of a data set.

    Raises:
        ValueError: There is none of that name; the message lists names that resemble it.
    """
    if name in DATASETS:
        return DATASETS[name]
    from difflib import get_close_matches

    near = get_close_matches(name.lower().replace("-", "_"), DATASETS, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
    raise ValueError(f"No data set is called `{name}`.{hint} All names: {', '.join(sorted(DATASETS))}.")


def load(name: str, *, cache: str | Path | None = None, clean: bool = False, **options: Any) -> pd.DataFrame:
    """Load a data set as a long frame, fetching its files at need.

    A file below the folder in `CTSATTN_DATA` is used in place of a download, under any of the names in
    `DATASETS[name].sources` and plain or compressed. Downloads go to `cache`, or `CTSATTN_CACHE`, or the
    user's cache folder; they resume where they broke off and are checked.

    Args:
        name: A key of `DATASETS`.
        cache: Folder for downloads.
        clean: Leave out numbers that the source writes for "unknown" (`Dataset.sentinels`). Published
            benchmark numbers take them as if they were measured, so they are kept unless asked.
        options: For a synthetic family: `series`, `observations`, `span`, `noise`, `keep`, `seed`.

    Returns:
        Columns `unique_id`, `variable` where there are several, `ds`, `y`, and what else the set has,
        sorted by series, variable and time, no time twice. `attrs["dataset"]` is the name.

    Raises:
        ValueError: No such data set, or a file is damaged.
        ConnectionError: A file is not here and could not be fetched.
    """
    dataset = card(name)
    if options and not dataset.synthetic:
        raise TypeError(f"`{name}` is read from files and takes no options, but got {', '.join(options)}.")
    frame = dataset.load(_paths(dataset, cache), **options)
    if dataset.rows is not None and len(frame) != dataset.rows:
        warnings.warn(
            f"`{name}` should have {dataset.rows} rows, but the file read has {len(frame)}: it is "
            "another version.",
            stacklevel=2,
        )
    if clean:
        frame = without_sentinels(frame, dict(dataset.sentinels))
    frame.attrs["dataset"] = name
    return frame


def load_table(name: str, *, cache: str | Path | None = None) -> Table:
    """Load a long-horizon benchmark row by row, as its published protocol counts them.

    Raises:
        ValueError: The set is not one table on one clock.
    """
    if name not in long_horizon.CARDS:
        names = ", ".join(long_horizon.CARDS)
        raise ValueError(f"`{name}` is not a table on one clock. Those that are: {names}.")
    (path,) = _paths(card(name), cache)
    return long_horizon.table(name, path)


def _paths(dataset: Dataset, cache: str | Path | None) -> list[Path]:
    """Find or fetch the files of a data set, each set in a folder of its own."""
    folder = (Path(cache) if cache else cache_folder()) / dataset.name
    return [fetch(source, folder) for source in dataset.sources]
