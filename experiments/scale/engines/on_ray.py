"""Forecast a Ray data set: `python experiments/scale/engines/on_ray.py`.

Needs `pip install 'ctsattn[distributed]' 'fugue[ray]'`. `ray.init(address="auto")` joins a cluster.
"""

import sys

import ray

from ctsattn import Forecaster, datasets
from ctsattn.forecasting import Training, distributed

if __name__ == "__main__":
    ray.init(num_cpus=2)
    df = datasets.load("sines", series=20, observations=80)
    data = ray.data.from_pandas(df)  # or ray.data.read_parquet("s3://...")
    forecaster = Forecaster(horizon=24, training=Training(max_steps=100), verbose=False).fit(df)
    forecast = distributed.predict(forecaster, data, h=24, level=[80], engine="ray")
    sys.stdout.write(f"{forecast.count()} rows of forecast\n")
