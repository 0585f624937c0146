"""Forecasting competitions and the sets of the Monash archive, all in the TSF format, and M4."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import LastSteps
from ctsattn.datasets.tables import ragged
from ctsattn.datasets.tsf import clock, read_tsf

_ZENODO = "https://zenodo.org/records/"
_M4 = "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset/"
_ARCHIVE = 'Godahewa et al., "Monash Time Series Forecasting Archive", NeurIPS Datasets and Benchmarks (2021)'
_SEASONS = {"hourly": 24, "daily": 7, "weekly": 1, "monthly": 12, "quarterly": 4, "yearly": 1, "other": 1}


@dataclass(frozen=True)
class _Archived:
    """A set of the Monash archive: what its card needs beside the file."""

    record: str
    title: str
    origin: str
    citation: str
    frequency: str
    horizon: int
    series: int
    rows: int | None
    sha256: str | None

    def card(self, name: str) -> Dataset:
        """Complete the card."""
        url = f"{_ZENODO}{self.record}/files/{name}_dataset.zip"
        names = (f"{name}_dataset.tsf", f"{name}.tsf", f"{name}_dataset.zip")
        checksum = f"sha256:{self.sha256}" if self.sha256 else None
        return Dataset(
            name=name,
            title=self.title,
            origin=f"{self.origin}; in the Monash archive, https://forecastingdata.org",
            license="CC BY 4.0",
            citation=f"{self.citation}; {_ARCHIVE}",
            sampling=self.frequency,
            regular=True,
            split=LastSteps(self.horizon),
            horizons=(self.horizon,),
            metric="MASE and sMAPE of the last steps of every series, then the mean over series",
            read=read_archived,
            sources=(Source(url, names, checksum, member="*.tsf"),),
            rows=self.rows,
            series=self.series,
            season=_SEASONS[self.frequency],
        )


def read_archived(path: Path) -> pd.DataFrame:
    """Read a TSF file as a long frame."""
    return read_tsf(path).frame()


_M1 = 'Makridakis et al., "The Accuracy of Extrapolation Methods", Journal of Forecasting 1 (1982)'
_M3 = 'Makridakis and Hibon, "The M3-Competition", International Journal of Forecasting 16 (2000)'
_TOURISM = (
    'Athanasopoulos et al., "The Tourism Forecasting Competition", Int. Journal of Forecasting 27 (2011)'
)
_HYNDMAN = 'Hyndman et al., "Forecasting with Exponential Smoothing", Springer (2008)'
_MCLEOD = 'McLeod and Gweon, "Optimal Deseasonalization for Monthly and Daily Geophysical Time Series" (2013)'
_MOSAIC = 'Pruim et al., "The mosaic Package", R Journal 9 (2017)'
_FRED = 'McCracken and Ng, "FRED-MD: A Monthly Database for Macroeconomic Research", JBES 34 (2016)'
_LAI = "Lai et al., SIGIR (2018)"

_ARCHIVED: dict[str, _Archived] = {
    "m1_yearly": _Archived(
        "4656193", "M1 competition, yearly series", "Makridakis et al.", _M1, "yearly", 6, 181, 4515, None
    ),
    "m1_quarterly": _Archived(
        "4656154",
        "M1 competition, quarterly series",
        "Makridakis et al.",
        _M1,
        "quarterly",
        8,
        203,
        9944,
        None,
    ),
    "m1_monthly": _Archived(
        "4656159", "M1 competition, monthly series", "Makridakis et al.", _M1, "monthly", 18, 617, 55998, None
    ),
    "m3_yearly": _Archived(
        "4656222", "M3 competition, yearly series", "Makridakis and Hibon", _M3, "yearly", 6, 645, 18319, None
    ),
    "m3_quarterly": _Archived(
        "4656262",
        "M3 competition, quarterly series",
        "Makridakis and Hibon",
        _M3,
        "quarterly",
        8,
        756,
        37004,
        None,
    ),
    "m3_monthly": _Archived(
        "4656298",
        "M3 competition, monthly series",
        "Makridakis and Hibon",
        _M3,
        "monthly",
        18,
        1428,
        167562,
        None,
    ),
    "m3_other": _Archived(
        "4656335",
        "M3 competition, series of other frequencies",
        "Makridakis and Hibon",
        _M3,
        "other",
        8,
        174,
        None,
        None,
    ),
    "tourism_yearly": _Archived(
        "4656103",
        "Tourism competition, yearly series",
        "Athanasopoulos et al.",
        _TOURISM,
        "yearly",
        4,
        518,
        12757,
        "20238ddb9b11465b061bbfadcc398ef01f0896a8791199381b3edc706abf0263",
    ),
    "tourism_quarterly": _Archived(
        "4656093",
        "Tourism competition, quarterly series",
        "Athanasopoulos et al.",
        _TOURISM,
        "quarterly",
        8,
        427,
        42544,
        "fa16da64f29aa04df447756cb65a5d58f8bc3d860fc22751c76850a3ffb048c3",
    ),
    "tourism_monthly": _Archived(
        "4656096",
        "Tourism competition, monthly series",
        "Athanasopoulos et al.",
        _TOURISM,
        "monthly",
        24,
        366,
        109280,
        "6e434ad8a0ef6acb55ebee0e1d1ffe22707ea4e62c05e091326267f3a5b4a93c",
    ),
    "hospital": _Archived(
        "4656014",
        "Patient counts for 767 medical products in a hospital",
        "Hyndman et al., R package expsmooth",
        _HYNDMAN,
        "monthly",
        12,
        767,
        64428,
        "8fd4085efb4517508e30fc69247eee9b74b300765bc6e94482c5d250efba66e5",
    ),
    "saugeenday": _Archived(
        "4656058",
        "Mean daily flow of the Saugeen river at Walkerton",
        "McLeod and Gweon, R package deseasonalize",
        _MCLEOD,
        "daily",
        30,
        1,
        23741,
        "061cb56ee6829d5686e5e08f1a61f4c0af682e32c37824e79926fc11148747df",
    ),
    "us_births": _Archived(
        "4656049",
        "Births in the United States, day by day",
        "R package mosaicData",
        _MOSAIC,
        "daily",
        30,
        1,
        7305,
        "cca9ebce263e6a8cd7c776c002e01ff1f904d8bce5dd2c8103cbed8bc6f8b391",
    ),
    "fred_md": _Archived(
        "4654833",
        "107 macroeconomic indicators of the United States",
        "Federal Reserve Bank of St. Louis",
        _FRED,
        "monthly",
        12,
        107,
        77896,
        "305c0edd2b5e97159c6339be4990ea97fdf86772c1edef2a0dfc836bf29f45c3",
    ),
    "electricity_weekly": _Archived(
        "4656141", "The ECL set, summed by week", "UCI, by Lai et al.", _LAI, "weekly", 8, 321, 50076, None
    ),
    "traffic_weekly": _Archived(
        "4656135",
        "The Traffic set, averaged by week",
        "PeMS, collected by Lai et al.",
        _LAI,
        "weekly",
        8,
        862,
        89648,
        "df3fc458fb1d6f770451fc45c43b930c091e69e86d508410dae4843918851525",
    ),
    "solar_weekly": _Archived(
        "4656151",
        "The Solar set, summed by week",
        "NREL, collected by Lai et al.",
        _LAI,
        "weekly",
        5,
        137,
        7124,
        "421426b22c22997697aeeaadb8e71cc73a7a0a36ed8097037ff6b378650f428f",
    ),
}


@dataclass(frozen=True)
class _M4Frequency:
    """One frequency of the M4 competition."""

    horizon: int
    series: int
    rows: int | None
    record: str
    train: str
    test: str
    season: int

    def card(self, name: str) -> Dataset:
        """Complete the card."""
        frequency = name.removeprefix("m4_")
        title = frequency.capitalize()
        archive = f"{name}_dataset"
        return Dataset(
            name=name,
            title=f"M4 competition, {frequency} series",
            origin="Makridakis et al.; https://github.com/Mcompetitions/M4-methods",
            license="not stated (start times: CC BY 4.0, Monash archive)",
            citation='Makridakis et al., "The M4 Competition: 100,000 Time Series and 61 Forecasting '
            'Methods", '
            f"International Journal of Forecasting 36 (2020); {_ARCHIVE}",
            sampling=frequency,
            regular=True,
            split=LastSteps(self.horizon),
            horizons=(self.horizon,),
            metric="sMAPE, MASE and OWA as in the competition: means over all series first, then the "
            "ratio to Naive2",
            read=read_m4,
            sources=(
                Source(
                    f"{_M4}Train/{title}-train.csv",
                    (f"{title}-train.csv", f"M4_{title}-train.csv"),
                    self.train,
                ),
                Source(
                    f"{_M4}Test/{title}-test.csv", (f"{title}-test.csv", f"M4_{title}-test.csv"), self.test
                ),
                Source(
                    f"{_ZENODO}{self.record}/files/{archive}.zip",
                    (f"{name}_start_dates.csv", f"{archive}.tsf", f"{archive}.zip"),
                    None,
                    member="*.tsf",
                ),
            ),
            rows=self.rows,
            series=self.series,
            season=self.season,
            notes="Of the file of the Monash archive only the start times are used; its series T1 is the "
            "first here.",
        )


_M4_FREQUENCIES: dict[str, _M4Frequency] = {
    "m4_yearly": _M4Frequency(
        6,
        23000,
        None,
        "4656379",
        "git-blob:639f4aa455f07fe83776ba2459be782730b45ed6",
        "sha256:6dc2dd45b3af320389e2d3735cb4b3cdf320b63cbcda15d1a17193ab99702306",
        1,
    ),
    "m4_quarterly": _M4Frequency(
        8,
        24000,
        None,
        "4656410",
        "git-blob:94ce474ab74463e3db3edb616b5948be6af5079c",
        "sha256:bf1cab3b969a744c220cdc148e3829803eaa5da2754270fc4f376e775cd7d0ae",
        4,
    ),
    "m4_monthly": _M4Frequency(
        18,
        48000,
        None,
        "4656480",
        "git-blob:d956904cd5991422f70598453571572f5e6ba7f3",
        "git-blob:c27ca44ca20b15a40da9e96ca1867f1fff7aeecb",
        12,
    ),
    "m4_weekly": _M4Frequency(
        13,
        359,
        371579,
        "4656522",
        "sha256:d478d3f6ed673e6ed3c2cb0fbed5425f72eedd51318ebebeb0b5ecfcefc37714",
        "sha256:3b2bc4be8e636e802260dcd843ca3c5da40536a1fbe1ecb3229a97dae4f44688",
        1,
    ),
    "m4_daily": _M4Frequency(
        14,
        4227,
        None,
        "4656548",
        "git-blob:2393f4c26e7e002b3df8d173d83902ab26596928",
        "sha256:633b0815626ae266d36872c4d53e95eb93ee8d43e79587fceec519eba3e6b05e",
        1,
    ),
    "m4_hourly": _M4Frequency(
        48,
        414,
        373372,
        "4656589",
        "sha256:ea59b7783573c49077a835ab6465c7d66f1474783360f310988a9a737fbca62f",
        "sha256:71a57fccb15e534d973626ada4fb87febf789e9317715b7cc6dd3b5f90db6f42",
        24,
    ),
}


def read_m4(train: Path, test: Path, starts: Path) -> pd.DataFrame:
    """Read one frequency of M4: training and test values joined, on the clock of the start times.

    Args:
        train: `Hourly-train.csv` and the like: an id, then values, then empty cells.
        test: `Hourly-test.csv` and the like, the same series in the same order.
        starts: A TSF file of the Monash archive, or its first two fields as `…_start_dates.csv`.

    Raises:
        ValueError: The three files do not hold the same series.
    """
    past, future = (pd.read_csv(path, index_col=0) for path in (train, test))
    begins = _starts(starts)
    if list(past.index) != list(future.index) or len(begins) != len(past):
        raise ValueError(
            f"{train.name} has {len(past)} series, {test.name} {len(future)} and {starts.name} "
            f"{len(begins)}: "
            "they are not of one frequency, or not in the same order."
        )
    joined = np.concatenate([past.to_numpy(np.float64), future.to_numpy(np.float64)], axis=1)
    values = [row[~np.isnan(row)] for row in joined]
    frequency = _frequency(str(past.index[0]))
    times = [clock(start, frequency, len(row)) for start, row in zip(begins, values, strict=True)]
    return ragged(list(past.index), times, values)


def _frequency(series: str) -> str:
    """Frequency of an M4 series by the first letter of its id."""
    initials = {frequency[0].upper(): frequency for frequency in _SEASONS}
    return initials[series[0]]


def _starts(path: Path) -> np.ndarray:
    """Start time of each series, in order."""
    if ".tsf" in path.suffixes:
        return read_tsf(path).static["start_timestamp"].to_numpy()
    stamps = pd.read_csv(path)["start_timestamp"]
    return pd.to_datetime(stamps, format="%Y-%m-%d %H-%M-%S").to_numpy().astype("datetime64[s]")


CARDS: dict[str, Dataset] = {
    **{name: facts.card(name) for name, facts in _ARCHIVED.items()},
    **{name: facts.card(name) for name, facts in _M4_FREQUENCIES.items()},
}
