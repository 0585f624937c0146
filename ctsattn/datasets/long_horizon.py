"""The long-horizon forecasting benchmarks: ETT, Exchange, ILI, Weather, ECL, Traffic, Solar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import FractionSplit, RowSplit, Split
from ctsattn.datasets.tables import stack, tidy

_ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/"
_TSLIB = "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/"
_LSTNET = "https://raw.githubusercontent.com/laiguokun/multivariate-time-series-data/master/"
_METRIC = (
    "MSE and MAE on values standardised with the mean and deviation of the training rows: the plain mean "
    "over "
    "windows, steps and channels, every window counted once"
)


@dataclass(frozen=True)
class Table:
    """A multivariate series on one clock, row by row as its file has it.

    Attributes:
        times: `[rows]` datetime64[s].
        values: `[rows, channels]` float64.
        names: `[channels]`.
    """

    times: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """Long frame with one series for each channel, a repeated row merged into one."""
        return tidy(stack(self.times, self.values, self.names))


@dataclass(frozen=True)
class Clock:
    """The clock of a table that has no time column.

    Attributes:
        start: Time of the first row.
        step: Seconds between rows.
        names: Names of the columns; numbers where None.
    """

    start: str
    step: int
    names: tuple[str, ...] | None = None


def read_table(path: Path, clock: Clock | None = None) -> Table:
    """Read a benchmark table: with a header and a column `date`, or bare numbers on a known clock.

    Raises:
        ValueError: The file has no `date` column and its clock is not known.
    """
    if _first_cell(path) == "date":
        table = pd.read_csv(path)
        times = pd.to_datetime(table.pop("date")).to_numpy().astype("datetime64[s]")
        return Table(times, table.to_numpy(np.float64), tuple(map(str, table.columns)))
    if clock is None:
        raise ValueError(f"{path.name} has no column `date` in front, so its rows cannot be dated.")
    table = pd.read_csv(path, header=None)
    times = np.datetime64(clock.start, "s") + np.arange(len(table)) * np.timedelta64(clock.step, "s")
    return Table(times, table.to_numpy(np.float64), clock.names or tuple(map(str, table.columns)))


def _first_cell(path: Path) -> str:
    """First cell of a CSV file."""
    return str(pd.read_csv(path, header=None, nrows=1, dtype=str).iat[0, 0])


def _read(path: Path, clock: Clock | None = None) -> pd.DataFrame:
    """Read a benchmark table as a long frame."""
    return read_table(path, clock).frame()


@dataclass(frozen=True)
class _Facts:
    """What differs between the sets of this family."""

    title: str
    origin: str
    license: str
    citation: str
    sampling: str
    split: Split
    season: int
    rows: int
    channels: int
    source: Source
    clock: Clock | None = None
    horizons: tuple[int, ...] = (96, 192, 336, 720)
    repeated: int = 0  # rows that stand twice in the file
    sentinels: tuple[tuple[str, float], ...] = ()
    notes: str = ""

    def card(self, name: str) -> Dataset:
        """Complete the card."""
        return Dataset(
            name=name,
            title=self.title,
            origin=self.origin,
            license=self.license,
            citation=self.citation,
            sampling=self.sampling,
            regular=True,
            split=self.split,
            horizons=self.horizons,
            metric=_METRIC,
            read=partial(_read, clock=self.clock),
            sources=(self.source,),
            rows=(self.rows - self.repeated) * self.channels,
            series=self.channels,
            season=self.season,
            sentinels=dict(self.sentinels),
            notes=self.notes,
        )


def _ett(name: str, station: int, sha256: str, per_hour: int) -> _Facts:
    """Facts of one of the four ETT sets."""
    month = 30 * 24 * per_hour
    return _Facts(
        title=f"Electricity transformer temperature, station {station}: six loads and the oil temperature",
        origin="State Grid Corporation of China, by Zhou et al.; https://github.com/zhouhaoyi/ETDataset",
        license="CC BY-ND 4.0 (pass on unmodified only)",
        citation='Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence Time-Series '
        'Forecasting", '
        "AAAI (2021)",
        sampling="hourly" if per_hour == 1 else "every 15 minutes",
        split=RowSplit(12 * month, 4 * month, 4 * month),
        season=24 * per_hour,
        rows=17420 * per_hour,
        channels=7,
        source=Source(f"{_ETT}{name}.csv", (f"{name}.csv",), f"sha256:{sha256}"),
        notes=f"2016-07-01 to 2018-06-26. The last {3020 * per_hour} rows belong to no part.",
    )


_LAI = 'Lai et al., "Modeling Long- and Short-Term Temporal Patterns with Deep Neural Networks", SIGIR (2018)'
_WU = 'Wu et al., "Autoformer: Decomposition Transformers with Auto-Correlation", NeurIPS (2021)'
_EXCHANGE_NAMES = ("0", "1", "2", "3", "4", "5", "OT", "6")  # order of the columns in the original file

_FACTS: dict[str, _Facts] = {
    "etth1": _ett("ETTh1", 1, "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066", 1),
    "etth2": _ett("ETTh2", 2, "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b", 1),
    "ettm1": _ett("ETTm1", 1, "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e", 4),
    "ettm2": _ett("ETTm2", 2, "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd", 4),
    "exchange": _Facts(
        title="Exchange rates of eight currencies to the US dollar",
        origin="Collected by Lai et al.; https://github.com/laiguokun/multivariate-time-series-data",
        license="not stated",
        citation=_LAI,
        sampling="business days, dated as if daily",
        split=FractionSplit(),
        season=1,
        rows=7588,
        channels=8,
        source=Source(
            f"{_LSTNET}exchange_rate/exchange_rate.txt.gz",
            ("exchange_rate.csv", "exchange_rate.txt", "exchange_rate_original.txt"),
            "sha256:6a4fbb561dcdee43f071a83badbeec9223a335552278348656738b556f1c2e9d",
        ),
        clock=Clock("1990-01-01", 86400, _EXCHANGE_NAMES),
        notes="The dates were made by counting days on from 1990-01-01. Autoformer's copy swaps two columns.",
    ),
    "ili": _Facts(
        title="Influenza-like illness in the United States: shares and counts of patients",
        origin="US Centers for Disease Control and Prevention; "
        "https://gis.cdc.gov/grasp/fluview/fluportaldashboard.html",
        license="not stated (US government work)",
        citation=_WU,
        sampling="weekly",
        split=FractionSplit(),
        season=52,
        rows=966,
        channels=7,
        source=Source(
            f"{_TSLIB}illness/national_illness.csv",
            ("national_illness.csv",),
            "sha256:93601f64d2566dc796ca4305adad8b8560c2db1a1ff04543c3bd813a7263570a",
        ),
        horizons=(24, 36, 48, 60),
    ),
    "weather": _Facts(
        title="Weather in Jena in 2020: 21 measures from the roof of the institute",
        origin="Max Planck Institute for Biogeochemistry; https://www.bgc-jena.mpg.de/wetter/",
        license="not stated",
        citation=_WU,
        sampling="every 10 minutes",
        split=FractionSplit(),
        season=144,
        rows=52696,
        channels=21,
        source=Source(
            f"{_TSLIB}weather/weather.csv",
            ("weather.csv",),
            "sha256:34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63",
        ),
        repeated=1,
        sentinels=(("wv (m/s)", -9999.0), ("max. wv (m/s)", -9999.0), ("OT", -9999.0)),
        notes="The row of 2020-05-12 06:00 stands twice in the file and once in the long frame; 100 "
        "minutes are "
        "missing on 2020-05-29. Published numbers take both rows, and the sentinels as if they were "
        "measured.",
    ),
    "ecl": _Facts(
        title="Electricity consumption of 321 clients in Portugal",
        origin="UCI Electricity Load Diagrams 2011-2014, made hourly by Lai et al.; "
        "https://archive.ics.uci.edu/dataset/321/electricityloaddiagrams20112014",
        license="CC BY 4.0",
        citation=_LAI,
        sampling="hourly",
        split=FractionSplit(),
        season=24,
        rows=26304,
        channels=321,
        source=Source(
            f"{_TSLIB}electricity/electricity.csv",
            ("electricity.csv", "ECL.csv", "electricity.txt"),
            "sha256:7e45845d54c5219bad0ae6bc1b5316cf8ff9cead5d33fa998a5a51c2e4a497ad",
        ),
        clock=Clock("2012-01-01", 3600),
        notes="Autoformer's copy, which is downloaded, carries made-up dates from 2016-07-01 on; the "
        "measurements "
        "are of 2012 to 2014. A bare `electricity.txt` of Lai et al. is dated from 2012-01-01.",
    ),
    "traffic": _Facts(
        title="Road occupancy at 862 sensors in the San Francisco Bay area",
        origin="California Department of Transportation (PeMS), collected by Lai et al.; "
        "https://pems.dot.ca.gov",
        license="not stated",
        citation=_LAI,
        sampling="hourly",
        split=FractionSplit(),
        season=24,
        rows=17544,
        channels=862,
        source=Source(
            f"{_TSLIB}traffic/traffic.csv",
            ("traffic.csv", "traffic.txt"),
            "sha256:cb06463d56fa17d87f47027cd9389ceae82a69eddee51cdb61480e120dab0b16",
        ),
        clock=Clock("2015-01-01", 3600),
        notes="Autoformer's copy, which is downloaded, carries made-up dates from 2016-07-01 on; the "
        "measurements "
        "are of 2015 and 2016. A bare `traffic.txt` of Lai et al. is dated from 2015-01-01.",
    ),
    "solar": _Facts(
        title="Power of 137 photovoltaic plants in Alabama in 2006",
        origin="National Renewable Energy Laboratory, collected by Lai et al.; "
        "https://www.nrel.gov/grid/solar-power-data.html",
        license="not stated",
        citation=_LAI,
        sampling="every 10 minutes",
        split=FractionSplit(),
        season=144,
        rows=52560,
        channels=137,
        source=Source(
            f"{_LSTNET}solar-energy/solar_AL.txt.gz",
            ("solar_AL.txt", "solar_AL.csv"),
            "git-blob:08a1f235546b3708309ff4fb544a54bb82e4f5e7",
        ),
        clock=Clock("2006-01-01", 600),
    ),
}

CARDS: dict[str, Dataset] = {name: facts.card(name) for name, facts in _FACTS.items()}


def tables() -> Sequence[str]:
    """Names of the sets that are one table on one clock, with the row-by-row protocol."""
    return tuple(_FACTS)


def table(name: str, path: Path) -> Table:
    """Read the table of a set of this family, row by row."""
    return read_table(path, _FACTS[name].clock)
