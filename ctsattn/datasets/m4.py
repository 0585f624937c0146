"""The M4 competition: 100,000 series of six frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.competitions import ARCHIVE, ZENODO
from ctsattn.datasets.splits import LastSteps
from ctsattn.datasets.tables import ragged
from ctsattn.datasets.tsf import clock, read_tsf

_BASE = "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset/"


@dataclass(frozen=True)
class _Frequency:
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
            f"International Journal of Forecasting 36 (2020); {ARCHIVE}",
            sampling=frequency,
            regular=True,
            split=LastSteps(self.horizon),
            horizons=(self.horizon,),
            metric="sMAPE, MASE and OWA as in the competition: means over all series first, then the "
            "ratio to Naive2",
            read=read_m4,
            sources=(
                Source(
                    f"{_BASE}Train/{title}-train.csv",
                    (f"{title}-train.csv", f"M4_{title}-train.csv"),
                    self.train,
                ),
                Source(
                    f"{_BASE}Test/{title}-test.csv", (f"{title}-test.csv", f"M4_{title}-test.csv"), self.test
                ),
                Source(
                    f"{ZENODO}{self.record}/files/{archive}.zip",
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


_FREQUENCIES: dict[str, _Frequency] = {
    "m4_yearly": _Frequency(
        6,
        23000,
        None,
        "4656379",
        "git-blob:639f4aa455f07fe83776ba2459be782730b45ed6",
        "sha256:6dc2dd45b3af320389e2d3735cb4b3cdf320b63cbcda15d1a17193ab99702306",
        1,
    ),
    "m4_quarterly": _Frequency(
        8,
        24000,
        None,
        "4656410",
        "git-blob:94ce474ab74463e3db3edb616b5948be6af5079c",
        "sha256:bf1cab3b969a744c220cdc148e3829803eaa5da2754270fc4f376e775cd7d0ae",
        4,
    ),
    "m4_monthly": _Frequency(
        18,
        48000,
        None,
        "4656480",
        "git-blob:d956904cd5991422f70598453571572f5e6ba7f3",
        "git-blob:c27ca44ca20b15a40da9e96ca1867f1fff7aeecb",
        12,
    ),
    "m4_weekly": _Frequency(
        13,
        359,
        371579,
        "4656522",
        "sha256:d478d3f6ed673e6ed3c2cb0fbed5425f72eedd51318ebebeb0b5ecfcefc37714",
        "sha256:3b2bc4be8e636e802260dcd843ca3c5da40536a1fbe1ecb3229a97dae4f44688",
        1,
    ),
    "m4_daily": _Frequency(
        14,
        4227,
        None,
        "4656548",
        "git-blob:2393f4c26e7e002b3df8d173d83902ab26596928",
        "sha256:633b0815626ae266d36872c4d53e95eb93ee8d43e79587fceec519eba3e6b05e",
        1,
    ),
    "m4_hourly": _Frequency(
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
    initials = {name.removeprefix("m4_")[0].upper(): name.removeprefix("m4_") for name in _FREQUENCIES}
    return initials[series[0]]


def _starts(path: Path) -> np.ndarray:
    """Start time of each series, in order."""
    if ".tsf" in path.suffixes:
        return read_tsf(path).static["start_timestamp"].to_numpy()
    stamps = pd.read_csv(path)["start_timestamp"]
    return pd.to_datetime(stamps, format="%Y-%m-%d %H-%M-%S").to_numpy().astype("datetime64[s]")


CARDS: dict[str, Dataset] = {name: facts.card(name) for name, facts in _FREQUENCIES.items()}
