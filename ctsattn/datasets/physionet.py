"""PhysioNet Challenge 2012: two days of intensive care, 12,000 records of 41 variables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import SeriesSplit
from ctsattn.datasets.tables import categories, tidy

_BASE = "https://physionet.org/files/challenge-2012/1.0.0/"

STATIC = ("Age", "Gender", "Height", "ICUType", "Weight")  # written at 00:00; only Weight is measured again
VARIABLES = (
    *STATIC,
    *("Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP", "FiO2"),
    *("GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "Mg", "MAP", "MechVent", "Na", "NIDiasABP"),
    *("NIMAP", "NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2", "SysABP", "Temp"),
    *("TroponinI", "TroponinT", "Urine", "WBC"),
)


def read_physionet(*sets: Path) -> pd.DataFrame:
    """Read the sets of records as one long frame; `ds` is the time since admission.

    Values of a variable that stand twice at one time are averaged, as t-PatchGNN does. Rows without
    the name of a variable are left out.

    Args:
        sets: For each set the folder of record files, or one Parquet table of all their rows with the
            columns `File`, `Time`, `Parameter`, `Value`.
    """
    rows = pd.concat([_rows(path) for path in sets], ignore_index=True)
    variable = rows.pop("Variable").to_numpy()
    rows, variable = rows[variable >= 0], variable[variable >= 0]
    record, names = pd.factorize(rows["File"])
    frame = pd.DataFrame(
        {
            "unique_id": categories(record, names),
            "variable": categories(variable, VARIABLES),
            "ds": (rows["Minutes"].to_numpy() * 60).astype("timedelta64[s]"),
            "y": rows["Value"].to_numpy(np.float64),
        }
    )
    return tidy(frame)


def _rows(path: Path) -> pd.DataFrame:
    """All rows of a set: `File`, `Minutes`, `Variable`, `Value`, records in order of their number."""
    rows = _from_folder(path) if path.is_dir() else pd.read_parquet(path)
    stamp, parameter = rows["Time"].astype("category"), rows["Parameter"].astype("category")
    minutes = np.array(
        [int(text[:-3]) * 60 + int(text[-2:]) for text in stamp.cat.categories], dtype=np.int64
    )
    rows = pd.DataFrame(
        {
            "File": rows["File"].to_numpy(),
            "Minutes": minutes[stamp.cat.codes],
            "Variable": _numbers(parameter.cat.categories)[parameter.cat.codes],
            "Value": rows["Value"].to_numpy(np.float64),
        }
    )
    return rows.sort_values("File", kind="stable", ignore_index=True)


def _numbers(names: pd.Index) -> np.ndarray:
    """Number of each variable, with one more place at the end for a row without a name; -1 for none."""
    unknown = set(names) - {*VARIABLES, "RecordID", ""}
    if unknown:
        raise ValueError(f"Unknown variables in the records: {', '.join(sorted(unknown))}.")
    return np.append(pd.Index(VARIABLES).get_indexer(names), -1)


def _from_folder(folder: Path) -> pd.DataFrame:
    """Read every record file below a folder: a header, then lines `HH:MM,name,value`."""
    records = sorted(folder.rglob("*.txt"))
    if not records:
        raise ValueError(f"No record files `*.txt` are below {folder}.")
    tables = [pd.read_csv(record, dtype={"Time": str, "Parameter": str}) for record in records]
    numbers = np.repeat([int(record.stem) for record in records], [len(table) for table in tables])
    return pd.concat(tables, ignore_index=True).assign(File=numbers)


def _source(letter: str, sha256: str) -> Source:
    """One of the three sets."""
    names = (f"physionet2012_set-{letter}.parquet", f"set-{letter}", f"set-{letter}.tar.gz")
    return Source(f"{_BASE}set-{letter}.tar.gz", names, f"sha256:{sha256}", member="*")


CARDS = {
    "physionet2012": Dataset(
        name="physionet2012",
        title="Intensive care: the first 48 hours of 12,000 stays",
        origin="PhysioNet / Computing in Cardiology Challenge 2012; "
        "https://physionet.org/content/challenge-2012/1.0.0/",
        license="Open Data Commons Attribution License 1.0",
        citation='Silva et al., "Predicting In-Hospital Mortality of ICU Patients: The '
        "PhysioNet/Computing in "
        'Cardiology Challenge 2012", Computing in Cardiology 39 (2012)',
        sampling="irregular: to the minute, each variable at its own times",
        regular=False,
        split=SeriesSplit(seed=42),
        horizons=("24h",),
        metric="MSE and MAE of values scaled to [0, 1] by the extremes of training and validation, "
        "observed until "
        "24 h, asked from 24 h to 48 h: the mean over variables of the mean over observations (t-PatchGNN)",
        read=read_physionet,
        sources=(
            _source("a", "8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920"),
            _source("b", "b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30"),
            _source("c", "a4a56b95bcee4d50a3874fe298bf2998f2ed0dd98a676579573dc10419329ee1"),
        ),
        rows=5259623,
        series=12000,
        variables=VARIABLES,
        sentinels={"Height": -1.0, "Weight": -1.0, "Gender": -1.0},
        notes="The published code takes the records in the order in which a disk lists them before it "
        "draws the "
        "split; here they are in order of their number, set a first. Published numbers take -1 as if "
        "measured.",
    )
}
