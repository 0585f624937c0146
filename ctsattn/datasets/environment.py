"""Slow measurements of water and air: groundwater heads, CO2 flasks, river samples."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import TimeSplit
from ctsattn.datasets.tables import categories, open_text, stack, tidy

_OWN_SPLIT = "No published split; ours is by time: 70 % of each series' span, then 10 %, then the rest."


def read_groundwater(path: Path) -> pd.DataFrame:
    """Read a table of heads, one column for each well, as a long frame of what was measured."""
    table = pd.read_csv(path, index_col=0, parse_dates=[0])
    frame = stack(
        table.index.to_numpy().astype("datetime64[s]"), table.to_numpy(np.float64), list(table.columns)
    )
    return tidy(frame[frame["y"].notna()])


def read_flasks(path: Path) -> pd.DataFrame:
    """Read NOAA's flask events as one series of accepted values, in micromol of CO2 per mol of dry air.

    Flasks are filled in pairs: what was filled at one moment is averaged. Samples with a rejection flag
    (first character of `qcflag` not a dot) and missing values are left out.
    """
    with open_text(path) as file:
        rows = pd.read_csv(file, sep=r"\s+", comment="#")
    accepted = rows[rows["qcflag"].str.startswith(".") & (rows["value"] > 0)]
    stamps = pd.to_datetime(accepted["datetime"].str.removesuffix("Z"), format="%Y-%m-%dT%H:%M:%S")
    frame = pd.DataFrame(
        {
            "unique_id": categories(*pd.factorize(accepted["site_code"])),
            "ds": stamps.to_numpy().astype("datetime64[s]"),
            "y": accepted["value"].to_numpy(np.float64),
        }
    )
    return tidy(frame)


_RIVERS = {  # name of the series to the file it is in
    "choptank_nitrate": "Choptank_eList.RData",
    "arkansas_ammonia": "Arkansas_eList.RData",
    "potomac_total_phosphorus": "ChainBridge.TP.RData",
    "susquehanna_phosphate": "Conowingo.PO4.RData",
}


def read_rivers(*paths: Path) -> pd.DataFrame:
    """Read water samples as a long frame: `y` in mg/l, `censored` where it is an upper limit, `flow` in m3/s.

    Args:
        paths: The four files of the R package EGRET; or, for all four, one Parquet table of the samples.
    """
    if paths[0].suffix == ".parquet":
        rows = pd.read_parquet(paths[0])
    else:
        rows = pd.concat(
            [_samples(path).assign(site=name) for name, path in zip(_RIVERS, paths, strict=True)]
        )
    site = pd.Index(list(_RIVERS)).get_indexer(rows["site"])
    frame = pd.DataFrame(
        {
            "unique_id": categories(site, _RIVERS),
            "ds": rows["Date"].to_numpy().astype("datetime64[s]"),
            "y": rows["ConcHigh"].to_numpy(np.float64),
            "flow": rows["Q"].to_numpy(np.float64),
            "censored": rows["Uncen"].to_numpy() == 0,
        }
    )
    return tidy(frame)


def _samples(path: Path) -> pd.DataFrame:
    """The table `Sample` of an EGRET list in an R data file, dates from R's count of days."""
    try:
        import rdata
    except ImportError as error:
        raise ImportError(f"{path.name} is an R data file. To read it: pip install rdata") from error
    with warnings.catch_warnings():  # rdata tells of each R class that has no counterpart in Python
        warnings.filterwarnings("ignore", message="Missing constructor", category=UserWarning)
        content: dict[str, Any] = rdata.read_rda(path)
    sample = next(iter(content.values()))["Sample"]
    dates = np.asarray(sample["Date"], dtype=np.float64)
    return pd.DataFrame(sample).assign(Date=(dates * 86400).astype("datetime64[s]")).reset_index(drop=True)


def _river_source(name: str, folder: str, sha256: str) -> Source:
    """One of the four files of EGRET."""
    return Source(
        f"https://raw.githubusercontent.com/DOI-USGS/EGRET/main/{folder}/{name}",
        ("river_samples.parquet", name),
        f"sha256:{sha256}",
    )


CARDS = {
    "groundwater": Dataset(
        name="groundwater",
        title="Groundwater heads in 18 wells in the Netherlands, 1955 to 2020",
        origin="TNO, Dinoloket; https://github.com/pastas/pastas-data",
        license="GPL-3 (repository)",
        citation='van der Spek and Bakker, "The influence of the length of the calibration period and '
        "observation "
        'frequency on predictive uncertainty in time series modeling of groundwater dynamics", WRR 53 (2017)',
        sampling="irregular: about twice a month, later daily, each well on its own days",
        regular=False,
        split=TimeSplit(),
        horizons=("365D",),
        metric="MAE in the unit of the file over the observations of the last fifth of each well's span",
        read=read_groundwater,
        sources=(
            Source(
                "https://raw.githubusercontent.com/pastas/pastas-data/main/spek_2017/heads.csv",
                ("groundwater_netherlands_heads.csv", "heads.csv"),
                "sha256:c7cb525a0ac022a78375b0410832219f395097a496fd45005c0cd062822febb0",
            ),
        ),
        rows=26764,
        series=18,
        notes=_OWN_SPLIT,
    ),
    "co2_flasks": Dataset(
        name="co2_flasks",
        title="Carbon dioxide in flasks of air from Mauna Loa since 1969",
        origin="NOAA Global Monitoring Laboratory; https://gml.noaa.gov/data/dataset.php?item=mlo-co2-flask",
        license="CC0 1.0",
        citation="Lan et al., Atmospheric Carbon Dioxide Dry Air Mole Fractions from the NOAA GML Carbon "
        "Cycle "
        "Cooperative Global Air Sampling Network; https://doi.org/10.15138/wkgj-f215",
        sampling="irregular: about weekly, to the minute",
        regular=False,
        split=TimeSplit(),
        horizons=("365D",),
        metric="MAE in micromol/mol over the observations of the last fifth of the span",
        read=read_flasks,
        sources=(
            Source(
                "https://gml.noaa.gov/aftp/data/trace_gases/co2/flask/surface/txt/"
                "co2_mlo_surface-flask_1_ccgg_event.txt",
                ("noaa_mlo_co2_flask.txt", "co2_mlo_surface-flask_1_ccgg_event.txt"),
                None,
            ),
        ),
        rows=None,
        series=1,
        notes=f"NOAA extends and revises the file each year, so it has no fixed checksum. {_OWN_SPLIT}",
    ),
    "river_samples": Dataset(
        name="river_samples",
        title="Nitrate, ammonia, phosphorus and phosphate in water samples of four rivers",
        origin="US Geological Survey; https://github.com/DOI-USGS/EGRET",
        license="CC0 1.0",
        citation='Hirsch and De Cicco, "User guide to Exploration and Graphics for RivEr Trends '
        '(EGRET)", USGS (2015)',
        sampling="irregular: 1 to 119 days apart",
        regular=False,
        split=TimeSplit(),
        horizons=("365D",),
        metric="MAE of the logarithm over the observations of the last fifth of each river's span",
        read=read_rivers,
        sources=(
            _river_source(
                "Choptank_eList.RData",
                "data",
                "94833b3fa50a7ca7f4fd9086a862acfe7f861077f7860a028c7e47e5d315e8f6",
            ),
            _river_source(
                "Arkansas_eList.RData",
                "data",
                "6fb621bf7634df876c40766904fc8805493aedbb92c9085a7814dc6adede8e12",
            ),
            _river_source(
                "ChainBridge.TP.RData",
                "vignettes",
                "b1d5611362aa9d912c37e700de85035c96f0796ff8ada23e8d3cbbc539b0b56f",
            ),
            _river_source(
                "Conowingo.PO4.RData",
                "vignettes",
                "1f8698fa9feb657e82cc65ceca298e11a239d1a908a2c634932cf5bcca1a739b",
            ),
        ),
        rows=3084,
        series=4,
        notes=f"A censored value is the limit that the concentration lay below. {_OWN_SPLIT}",
    ),
}
