"""Data sets of the study that `ctsattn.datasets` has no card for: read from files below `CTSATTN_DATA`."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from ctsattn import datasets
from ctsattn.datasets.splits import FractionSplit, Split, TimeSplit

_TRAFFIC = ("nab_speed_7578", "nab_occupancy_t4013", "nab_TravelTime_387")


def source(name: str) -> tuple[pd.DataFrame, Split]:
    """Long frame and split of a data set: one of this module, or one of `ctsattn.datasets`."""
    if name in _READERS:
        return _READERS[name]()
    return datasets.load(name, clean=True).dropna(subset="y"), datasets.card(name).split


def _glucose() -> tuple[pd.DataFrame, Split]:
    """Glucose sensors of 19 people, about every five minutes with jitter and gaps (Hall et al. 2018)."""
    table = pd.read_parquet(_file("irregular/cgm_hall2018.parquet"))
    return _long(table["id"], table["time"], table["gl"]), TimeSplit()


def _pedestrians() -> tuple[pd.DataFrame, Split]:
    """Hourly counts of four sensors in Melbourne, some hours missing."""
    table = pd.read_parquet(_file("missing_values/pedestrian.parquet"))
    return _long(table["Sensor"], table["Date_Time"], table["Count"]), FractionSplit()


def _road_sensors() -> tuple[pd.DataFrame, Split]:
    """Three road sensors that report when vehicles pass (Numenta anomaly benchmark): event-driven clocks."""
    tables = [pd.read_csv(_file(f"missing_values/{name}.csv.gz")).assign(id=name) for name in _TRAFFIC]
    table = pd.concat(tables, ignore_index=True)
    return _long(table["id"], pd.to_datetime(table["timestamp"]), table["value"]), TimeSplit()


_READERS = {"glucose": _glucose, "pedestrians": _pedestrians, "road_sensors": _road_sensors}


def _long(unique_id: pd.Series, stamps: pd.Series, values: pd.Series) -> pd.DataFrame:
    """Long frame, no time twice within a series."""
    stamps = stamps.dt.tz_localize(None) if stamps.dt.tz is not None else stamps
    frame = pd.DataFrame({"unique_id": unique_id.astype(str), "ds": stamps, "y": values.astype(float)})
    frame = frame.dropna().drop_duplicates(["unique_id", "ds"], keep="last")
    return frame.sort_values(["unique_id", "ds"], ignore_index=True)


def _file(path: str) -> Path:
    """A file below the folder of data."""
    root = os.environ.get("CTSATTN_DATA")
    if not root:
        raise FileNotFoundError(f"Set CTSATTN_DATA to the folder that holds {path}.")
    return Path(root) / path
