"""Fetch data sets into this folder's cache and say what is in them; or write the cards and the catalogue.

    python datasets/prepare.py etth1 m4_hourly     # fetch, read, check, and tell rows, series and span
    python datasets/prepare.py --all               # every set that is read from files
    python datasets/prepare.py --cards             # rewrite README.md here and one card for each set

Files below the folder in CTSATTN_DATA are used in place of downloads. Example:

    $ python datasets/prepare.py etth1
    etth1: 121940 rows, 7 series, 2016-07-01 00:00:00 to 2018-06-26 19:00:00
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from ctsattn.datasets import DATASETS, Dataset, load
from ctsattn.datasets.protocols import PROTOCOLS
from ctsattn.datasets.splits import FractionSplit, LastSteps, RowSplit, SeriesSplit, Split, TimeSplit

HERE = Path(__file__).parent
_HEAD = """# Data sets

What `ctsattn.datasets.load(name)` knows. Each name has a card with origin, licence, citation and protocol;
this page and the cards are written by `python datasets/prepare.py --cards` from
[`ctsattn/datasets`](../ctsattn/datasets), where a set is one entry in a table.

```python
from ctsattn import datasets

frame = datasets.load("etth1")  # unique_id, ds, y
card = datasets.DATASETS["etth1"]  # origin, licence, citation, split, horizons, metric, checksums
parts = datasets.split(frame, card.split)  # train, val, test
```

Nothing is stored in this repository. Files come from the public address on the card, are checked, and stay
in the user's cache folder (`CTSATTN_CACHE`); `python datasets/prepare.py NAME` fetches into `datasets/cache`.
A file below the folder named in `CTSATTN_DATA` is used in place of a download, under any of the names on the
card, plain or compressed. Licences differ: some forbid changed copies, some are not stated. They bind who
downloads.

"""
_GROUPS = (
    ("Long-horizon benchmarks", lambda d: isinstance(d.split, RowSplit | FractionSplit)),
    ("Competitions and the Monash archive", lambda d: isinstance(d.split, LastSteps)),
    ("Irregular", lambda d: not d.synthetic),
    ("Made by a formula", lambda d: True),
)


def describe(split: Split) -> str:
    """A split in a sentence."""
    match split:
        case RowSplit(train, val, test):
            return f"rows: the first {train} train, the next {val} validate, the next {test} test"
        case FractionSplit(train, test):
            return f"rows: the first {train:.0%} train, the last {test:.0%} test, what is between validates"
        case LastSteps(horizon):
            return f"the last {horizon} rows of each series test, the {horizon} before validate"
        case TimeSplit(train, val):
            return f"time: the first {train:.0%} of each series' span train, the next {val:.0%} validate"
        case SeriesSplit(seed):
            return f"whole series, drawn with seed {seed}: 60 % train, 20 % validate, 20 % test"
        case _:
            return type(split).__name__


def card(dataset: Dataset) -> str:
    """The card of a set as Markdown."""
    facts = {
        "origin": dataset.origin,
        "licence": dataset.license,
        "citation": dataset.citation,
        "sampling": dataset.sampling,
        "rows of the long frame": f"{dataset.rows:,}" if dataset.rows else "not fixed",
        "series": f"{dataset.series:,}" if dataset.series else "not fixed",
        "variables": ", ".join(dataset.variables) or "one",
        "split": describe(dataset.split),
        "horizons": ", ".join(map(str, dataset.horizons)),
        "metric": dataset.metric,
        "numbers that mean unknown": ", ".join(f"{k}: {v:g}" for k, v in dataset.sentinels.items()) or "none",
    }
    lines = [f"# {dataset.name}", "", dataset.title + ".", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    lines += ["", dataset.notes] if dataset.notes else []
    if dataset.sources:
        lines += ["", "| file | looked for as | checksum |", "|---|---|---|"]
        lines += [
            f"| {source.url} | {', '.join(f'`{name}`' for name in source.names)} | "
            f"{f'`{source.checksum}`' if source.checksum else 'not known: a download warns'} |"
            for source in dataset.sources
        ]
    if dataset.name in PROTOCOLS:
        lines += ["", f"Windows: `ctsattn.datasets.protocols.PROTOCOLS[{dataset.name!r}]`."]
    return "\n".join(lines) + "\n"


def catalogue() -> str:
    """The page that lists all sets, by group."""
    left, parts = dict(DATASETS), [_HEAD]
    for title, belongs in _GROUPS:
        of_formula = title == "Made by a formula"
        group = {name: d for name, d in left.items() if belongs(d) and of_formula == d.synthetic}
        left = {name: d for name, d in left.items() if name not in group}
        parts += [
            f"## {title}\n\n| name | what | clock | rows | series | licence |\n|---|---|---|---:|---:|---|\n"
        ]
        parts += [
            f"| [`{name}`]({name}/README.md) | {d.title} | {d.sampling} "
            f"| {d.rows or ''} | {d.series or ''} | {d.license} |\n"
            for name, d in group.items()
        ]
        parts += ["\n"]
    return "".join(parts).rstrip() + "\n"


def pages() -> dict[Path, str]:
    """Content of every page that `--cards` writes."""
    return {HERE / "README.md": catalogue()} | {
        HERE / name / "README.md": card(dataset) for name, dataset in DATASETS.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit code is 1 where a set could not be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="sets to fetch")
    parser.add_argument("--all", action="store_true", help="every set that is read from files")
    parser.add_argument("--cards", action="store_true", help="write the catalogue and the cards")
    parser.add_argument("--cache", type=Path, default=HERE / "cache", help="folder for downloads")
    options = parser.parse_args(arguments)
    if options.cards:
        for path, text in pages().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    names = [n for n, d in DATASETS.items() if not d.synthetic] if options.all else options.names
    return int(any([not _fetch(name, options.cache) for name in names]))


def _fetch(name: str, cache: Path) -> bool:
    """Fetch and read a set; says what is in it, or why it could not be had."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = load(name, cache=cache)
    except (ValueError, ConnectionError, ImportError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return False
    for warning in caught:
        sys.stderr.write(f"{name}: {warning.message}\n")
    series, span = frame["unique_id"].nunique(), f"{frame['ds'].min()} to {frame['ds'].max()}"
    sys.stdout.write(f"{name}: {len(frame)} rows, {series} series, {span}\n")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
