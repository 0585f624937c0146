"""Light curves of variable stars from the All Sky Automated Survey."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import TimeSplit
from ctsattn.datasets.tables import categories, tidy

_BASE = "https://raw.githubusercontent.com/cesium-ml/cesium-data/main/asas_training/"


def read_asas(curves: Path, classes: Path) -> pd.DataFrame:
    """Read the light curves as a long frame: `y` in magnitudes, its error `err`, and the `class` of the star.

    Args:
        curves: The folder of files `<star>.dat` with lines `time,magnitude,error`; or one Parquet table
            with the columns `id`, `class`, `time`, `mag`, `err`.
        classes: `asas_training_set_classes.dat`; not read where the table holds the classes.
    """
    rows = _from_folder(curves, classes) if curves.is_dir() else pd.read_parquet(curves)
    star, names = pd.factorize(rows["id"])
    frame = pd.DataFrame(
        {
            "unique_id": categories(star, names),
            "ds": rows["time"].to_numpy(np.float64),
            "y": rows["mag"].to_numpy(np.float64),
            "err": rows["err"].to_numpy(np.float64),
            "class": pd.Categorical(rows["class"].astype(str)),
        }
    )
    return tidy(frame)


def _from_folder(folder: Path, classes: Path) -> pd.DataFrame:
    """Read every light curve below a folder, in order of the star's number, with the star's class."""
    files = sorted(folder.rglob("*.dat"), key=lambda path: int(path.stem))
    curves = [pd.read_csv(path, header=None, names=["time", "mag", "err"]) for path in files]
    kinds = pd.read_csv(classes).set_index("filename")["class"]
    stars = np.repeat([int(path.stem) for path in files], [len(curve) for curve in curves])
    return pd.concat(curves, ignore_index=True).assign(**{"id": stars, "class": kinds[stars].to_numpy()})


CARDS = {
    "asas": Dataset(
        name="asas",
        title="Light curves of 810 variable stars of 28 classes",
        origin="All Sky Automated Survey; https://github.com/cesium-ml/cesium-data",
        license="not stated",
        citation='Richards et al., "Construction of a Calibrated Probabilistic Classification Catalog: '
        "Application to "
        '50k Variable Sources in the All-Sky Automated Survey", ApJS 203 (2012)',
        sampling="irregular: nights, from a minute to three years apart",
        regular=False,
        split=TimeSplit(),
        horizons=(100.0,),
        metric="MAE in magnitudes over the observations of the last fifth of each star's span",
        read=read_asas,
        sources=(
            Source(
                f"{_BASE}asas_training_set.tar.gz",
                ("asas_variable_stars.parquet", "asas_training_set", "asas_training_set.tar.gz"),
                "sha256:6c66c4435b03576a3b20416fac9b7b9453d2a9189e1af745733816a0715e08fd",
                member="*",
            ),
            Source(
                f"{_BASE}asas_training_set_classes.dat",
                ("asas_training_set_classes.dat", "asas_variable_stars.parquet"),
                "sha256:572f628cccf3ce529326c085034ed310c79503fba3a9ac2447e2959ae540d85f",
            ),
        ),
        rows=490855,
        series=810,
        notes="`ds` is in days: heliocentric Julian date less 2450000. No published split; ours is by time.",
    )
}
