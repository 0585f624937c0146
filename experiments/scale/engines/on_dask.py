"""Forecast a Dask frame, and cross-validate on it: `python experiments/scale/engines/on_dask.py`.

Needs `pip install 'ctsattn[distributed]'`. Give `Client` the address of a scheduler for a cluster.
"""

import sys

import dask.dataframe
from dask.distributed import Client

from ctsattn import Forecaster, datasets
from ctsattn.forecasting import Training, distributed

if __name__ == "__main__":
    client = Client(n_workers=2, threads_per_worker=1)
    df = datasets.load("sines", series=20, observations=80)
    frame = dask.dataframe.from_pandas(df, npartitions=4)  # or dask.dataframe.read_parquet("s3://...")
    forecaster = Forecaster(horizon=24, training=Training(max_steps=100), verbose=False).fit(df)
    forecast = distributed.predict(forecaster, frame, h=24, level=[80], engine=client)
    forecast.to_parquet("forecast-dask")
    folds = distributed.cross_validation(forecaster, frame, n_windows=2, engine=client)
    sys.stdout.write(f"{len(forecast)} rows of forecast, {len(folds)} of cross-validation\n")
