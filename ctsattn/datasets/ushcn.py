"""United States Historical Climatology Network as cut by GRU-ODE-Bayes: 1,114 stations, five variables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset, Source
from ctsattn.datasets.splits import SeriesSplit
from ctsattn.datasets.tables import categories, tidy

VARIABLES = ("SNOW", "SNWD", "PRCP", "TMAX", "TMIN")


def read_ushcn(path: Path) -> pd.DataFrame:
    """Read the sporadic table as a long frame of what was observed; `ds` counts 200 steps in four years.

    Args:
        path: A table with an id in front, `Time`, and for each variable `Value_i` and `Mask_i`.
    """
    rows = pd.read_csv(path, index_col=0)
    values = rows[[f"Value_{i}" for i in range(len(VARIABLES))]].to_numpy(np.float64)
    observed = rows[[f"Mask_{i}" for i in range(len(VARIABLES))]].to_numpy() == 1
    row, variable = np.nonzero(observed)
    station, names = pd.factorize(rows.index.astype("int64"), sort=True)
    frame = pd.DataFrame(
        {
            "unique_id": categories(station[row], names),
            "variable": categories(variable, VARIABLES),
            "ds": rows["Time"].to_numpy(np.float64)[row],
            "y": values[observed],
        }
    )
    return tidy(frame)


CARDS = {
    "ushcn": Dataset(
        name="ushcn",
        title="Daily climate of 1,114 stations, 1996 to 1999, made sporadic",
        origin="NOAA and CDIAC (US Historical Climatology Network), thinned by De Brouwer et al.; "
        "https://github.com/edebrouwer/gru_ode_bayes",
        license="not stated (US government work; repository: MIT)",
        citation='Menne et al., "Long-Term Daily and Monthly Climate Records from Stations Across the '
        "Contiguous "
        'United States", CDIAC (2015); De Brouwer et al., "GRU-ODE-Bayes", NeurIPS (2019)',
        sampling="irregular: about 60 days in four years, each variable on its own days",
        regular=False,
        split=SeriesSplit(seed=42),
        horizons=("1 month",),
        metric="MSE and MAE of the standardised values, 24 months observed and 1 asked, windows every "
        "month: the "
        "mean over variables of the mean over observations (t-PatchGNN)",
        read=read_ushcn,
        sources=(
            Source(
                "https://raw.githubusercontent.com/edebrouwer/gru_ode_bayes/master/gru_ode_bayes/datasets/Climate/"
                "small_chunked_sporadic.csv",
                ("small_chunked_sporadic.csv", "USHCN.csv"),
                "sha256:671eb8d121522e98891c84197742a6c9e9bb5015e42b328a93ebdf2cfd393ecf",
            ),
        ),
        rows=None,
        series=1114,
        variables=VARIABLES,
        notes="The values were standardised by the authors of the cut over all stations, the test included.",
    )
}
