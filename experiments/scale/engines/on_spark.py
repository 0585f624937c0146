"""Forecast a Spark frame, and cross-validate on it: `spark-submit experiments/scale/engines/on_spark.py`.

Needs `pip install 'ctsattn[distributed]' 'fugue[spark]'` on the driver and the workers, and Java.
"""

import sys

from pyspark.sql import SparkSession

from ctsattn import Forecaster, datasets
from ctsattn.forecasting import Training, distributed

if __name__ == "__main__":
    spark = SparkSession.builder.appName("ctsattn").getOrCreate()
    df = datasets.load("sines", series=20, observations=80)
    frame = spark.createDataFrame(df)  # or spark.read.parquet("s3://...")
    forecaster = Forecaster(horizon=24, training=Training(max_steps=100), verbose=False).fit(df)
    forecast = distributed.predict(forecaster, frame, h=24, level=[80], engine=spark)
    forecast.write.mode("overwrite").parquet("forecast-spark")
    folds = distributed.cross_validation(forecaster, frame, n_windows=2, engine=spark)
    sys.stdout.write(f"{forecast.count()} rows of forecast, {folds.count()} of cross-validation\n")
