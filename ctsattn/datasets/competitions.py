"""Forecasting competitions and other sets of the Monash archive, all in the TSF format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import LastSteps
from ctsattn.datasets.tsf import read_tsf

ZENODO = "https://zenodo.org/records/"
ARCHIVE = 'Godahewa et al., "Monash Time Series Forecasting Archive", NeurIPS Datasets and Benchmarks (2021)'
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
        url = f"{ZENODO}{self.record}/files/{name}_dataset.zip"
        names = (f"{name}_dataset.tsf", f"{name}.tsf", f"{name}_dataset.zip")
        checksum = f"sha256:{self.sha256}" if self.sha256 else None
        return Dataset(
            name=name,
            title=self.title,
            origin=f"{self.origin}; in the Monash archive, https://forecastingdata.org",
            license="CC BY 4.0",
            citation=f"{self.citation}; {ARCHIVE}",
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


CARDS: dict[str, Dataset] = {name: facts.card(name) for name, facts in _ARCHIVED.items()}
