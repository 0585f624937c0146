"""Localization Data for Person Activity: four tags on the body, positions some 150 ms apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import SeriesSplit
from ctsattn.datasets.tables import categories, tidy

_TAGS = {  # number of the tag to the place where it is worn
    "010-000-024-033": "ankle_left",
    "010-000-030-096": "ankle_right",
    "020-000-033-111": "chest",
    "020-000-032-221": "belt",
}
VARIABLES = tuple(f"{place}_{axis}" for place in _TAGS.values() for axis in "xyz")
_COLUMNS = ["record", "tag", "ticks", "date", "x", "y", "z", "activity"]
_TICKS = 10_000  # the clock counts tenths of a microsecond; this many are a millisecond


def read_activity(path: Path) -> pd.DataFrame:
    """Read the recordings as a long frame; `ds` is the time since the recording began, in whole milliseconds.

    Readings of a tag that fall into one millisecond are averaged, as t-PatchGNN does.
    """
    rows = pd.read_csv(path, header=None, names=_COLUMNS, skipinitialspace=True)
    place = pd.Index(list(_TAGS)).get_indexer(rows["tag"])
    if (place < 0).any():
        raise ValueError(f"Unknown tag `{rows['tag'][place < 0].iloc[0]}` in {path.name}.")
    record, names = pd.factorize(rows["record"])
    begins = rows.groupby(record, sort=False)["ticks"].transform("first")
    milliseconds = np.rint((rows["ticks"] - begins).to_numpy() / _TICKS).astype("timedelta64[ms]")
    frame = pd.DataFrame(
        {
            "unique_id": categories(np.tile(record, 3), names),
            "variable": categories(np.concatenate([3 * place + axis for axis in range(3)]), VARIABLES),
            "ds": np.tile(milliseconds, 3),
            "y": rows[["x", "y", "z"]].to_numpy(np.float64).T.ravel(),
        }
    )
    return tidy(frame)


CARDS = {
    "activity": Dataset(
        name="activity",
        title="Positions of four tags on five people who walk, fall, lie, sit and stand up",
        origin="Jozef Stefan Institute; "
        "https://archive.ics.uci.edu/dataset/196/localization+data+for+person+activity",
        license="CC BY 4.0",
        citation='Kaluza et al., "An Agent-Based Approach to Care in Independent Living", Ambient '
        "Intelligence (2010)",
        sampling="irregular: milliseconds, one tag at a time",
        regular=False,
        split=SeriesSplit(seed=42),
        horizons=("1000ms",),
        metric="MSE and MAE of values scaled to [0, 1] by the extremes of training and validation, 3000 "
        "ms observed "
        "and 1000 ms asked, windows every 1000 ms: the mean over variables of the mean over observations "
        "(t-PatchGNN)",
        read=read_activity,
        sources=(
            Source(
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00196/ConfLongDemo_JSI.txt",
                ("ConfLongDemo_JSI.txt",),
                "md5:280a677ae0d673ec9a50ada480d8a529",
            ),
        ),
        rows=None,
        series=25,
        variables=VARIABLES,
    )
}
