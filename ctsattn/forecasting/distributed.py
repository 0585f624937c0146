"""Forecasts and cross-validation of frames that an engine holds in pieces: Dask, Ray or Spark, through fugue.

    from ctsattn.forecasting import distributed
    forecast = distributed.predict(forecaster, spark_frame, horizon="36h", level=[80])

Series are dealt to buckets by a hash of their id, and each bucket is answered as one frame by `Forecaster`,
so the rows are those that it gives here. The model travels in its file, without the training data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ctsattn.data.building import learn_schema
from ctsattn.data.frame import read_panel
from ctsattn.forecasting.backtest import CrossValidation, Reach, choose_cutoffs
from ctsattn.forecasting.frames import asked_quantiles
from ctsattn.forecasting.reading import store_of

if TYPE_CHECKING:
    from ctsattn.forecasting.forecaster import Forecaster

_BUCKET = "ctsattn_bucket"
_FLAGS = ["in_sample", "cold_start"]


def predict(forecaster: Forecaster, df: Any, *, engine: Any = None, buckets: int = 32, **asking: Any) -> Any:
    """`Forecaster.predict(df=...)` on the engine that holds a frame.

    Args:
        forecaster: A fitted model.
        df: History in a frame that fugue knows, with an id column.
        engine: What fugue calls an execution engine: "dask", "ray", a SparkSession; None: what `df` suggests.
        buckets: Parts that the series are dealt to; at least as many as the engine has workers.
        asking: `h`, `horizon`, `times` (a list), `level`, `quantiles`, `batch_size`, as in
            `Forecaster.predict`.

    Returns:
        Frame of the engine, its rows in no certain order, without the columns of flags.

    Raises:
        ImportError: fugue is not installed.
        ValueError: The frame has no id column.
    """
    content = _content(forecaster)

    def answer(part: pd.DataFrame) -> pd.DataFrame:
        model = _model(content)
        found = model.predict(df=part.drop(columns=_BUCKET, errors="ignore"), **asking)
        return found.drop(columns=_FLAGS, errors="ignore")

    return _each_bucket(forecaster, df, answer, engine, buckets)


def cross_validation(
    forecaster: Forecaster,
    df: Any,
    n_windows: int | None = None,
    step: Any = None,
    cutoffs: Sequence[Any] | None = None,
    level: Sequence[float] | None = None,
    *,
    quantiles: Sequence[float] | None = None,
    horizon: Any = None,
    engine: Any = None,
    buckets: int = 32,
) -> Any:
    """`Forecaster.cross_validation` on the engine that holds a frame.

    The copy is trained in this process, on the rows before the first cutoffs, which are brought here;
    forecasts are made where the series are.

    Args:
        forecaster: An estimator; it does not change. It, or `horizon`, says what windows look ahead.
        df: As in `predict`.
        n_windows: As in `Forecaster.cross_validation`.
        step: As there.
        cutoffs: As there.
        level: As there.
        quantiles: As there.
        horizon: As there.
        engine: As in `predict`.
        buckets: As in `predict`.

    Returns:
        As from `predict`, with `cutoff` and the truth.
    """
    ahead = horizon if horizon is not None else forecaster.horizon
    if ahead is None:
        raise ValueError(
            "Say what the windows look ahead, horizon=..., because no process sees the whole frame to choose."
        )
    chosen = {"n_windows": n_windows, "cutoffs": cutoffs, "span": None}
    columns, duplicates = forecaster._columns(), forecaster.duplicates

    def earlier(part: pd.DataFrame) -> pd.DataFrame:
        panel = read_panel(part, columns)
        _, store = learn_schema(panel, duplicates=duplicates)
        reach = Reach.of(ahead, store, 0.0)
        steps = reach if step is None else Reach.of(step, store, 0.0)
        first = choose_cutoffs(store, reach, steps, **chosen)[0]
        kept = part[panel.rows.ticks <= first[panel.rows.series]]
        return kept.drop(columns=_BUCKET, errors="ignore")

    import fugue.api as engines  # pyright: ignore[reportMissingImports]

    kept = engines.as_pandas(_each_bucket(forecaster, df, earlier, engine, buckets))
    keys = [forecaster.id_col, forecaster.time_col]
    copy = _unfitted(forecaster).fit(kept.sort_values(keys, ignore_index=True))
    content, names = _content(copy), asked_quantiles(level, quantiles, forecaster.quantiles)

    def answer(part: pd.DataFrame) -> pd.DataFrame:
        folds = _Folds(_model(content), names, ahead, False)
        panel = read_panel(part.drop(columns=_BUCKET, errors="ignore"), columns)
        return folds.run(panel, step=step, **chosen)

    return _each_bucket(forecaster, df, answer, engine, buckets)


class _Folds(CrossValidation):
    """Forecasts of a model that was trained before, elsewhere."""

    def _train(self, panel: Any, cutoff: Any) -> Any:
        fitted = self.estimator.fitted_
        return fitted, store_of(panel, fitted.schema, duplicates=self.estimator.duplicates)


def _unfitted(forecaster: Forecaster) -> Forecaster:
    return type(forecaster)(**forecaster.get_params(deep=False))


def _content(forecaster: Forecaster) -> bytes:
    """The file of a model, without its data."""
    with tempfile.TemporaryDirectory() as folder:
        forecaster.save(Path(folder, "model"), data=False)
        return Path(folder, "model").read_bytes()


@lru_cache(maxsize=2)
def _model(content: bytes) -> Forecaster:
    """The model of a file, read once in each process."""
    from ctsattn.forecasting.forecaster import Forecaster

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_bytes(content)
        return Forecaster.load(Path(folder, "model"))


def _each_bucket(forecaster: Forecaster, df: Any, work: Any, engine: Any, buckets: int) -> Any:
    """Do `work` on the series of each bucket, and join what it gives."""
    try:
        import fugue.api as engines  # pyright: ignore[reportMissingImports]
        import pyarrow
        from fugue import Schema, make_execution_engine  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "Distributed work needs fugue, which is not installed: pip install 'ctsattn[distributed]'."
        ) from error
    name, df = forecaster.id_col, _decoded(df)
    engine = make_execution_engine(engine, infer_by=[df])
    if name not in engines.get_column_names(df):
        raise ValueError(
            f"Series are dealt to workers by their id, but the frame has no column {name!r}; it has "
            f"{', '.join(map(repr, engines.get_column_names(df)))}. Name it: Forecaster(id_col=...)."
        )

    def with_bucket(part: pd.DataFrame) -> pd.DataFrame:
        return part.assign(**{_BUCKET: _bucket_of(part[name], buckets)})

    sample = work(_first_series(engines, df, name, engine))
    schema = Schema(pyarrow.Schema.from_pandas(sample, preserve_index=False))
    dealt = engines.transform(df, with_bucket, schema=f"*,{_BUCKET}:int", engine=engine, as_fugue=True)
    return engines.transform(dealt, work, schema=schema, partition={"by": _BUCKET}, engine=engine)


def _decoded(df: Any) -> Any:
    """A Ray data set without dictionaries, as pandas' categories are in Arrow; fugue's schemas have none."""
    if not type(df).__module__.startswith("ray.data"):
        return df
    import pyarrow

    kinds = df.schema().base_schema.types  # of Arrow or of pandas, as the blocks are
    if not any(isinstance(kind, (pd.CategoricalDtype, pyarrow.DictionaryType)) for kind in kinds):
        return df

    def decode(table: pyarrow.Table) -> pyarrow.Table:
        for place, field in enumerate(table.schema):
            if pyarrow.types.is_dictionary(field.type):
                table = table.set_column(place, field.name, table[field.name].cast(field.type.value_type))
        return table

    return df.map_batches(decode, batch_format="pyarrow")


def _bucket_of(ids: pd.Series, buckets: int) -> np.ndarray:
    """The same bucket for an id on every machine."""
    hashed = pd.util.hash_array(ids.astype(str).to_numpy(object), categorize=False)
    return (hashed % buckets).astype(np.int32)


def _first_series(engines: Any, df: Any, name: Any, engine: Any) -> pd.DataFrame:
    """One whole series, from which the columns of the answer are read off."""
    first = engines.as_pandas(engines.head(df, 1))[name].iloc[0]

    def of_first(part: pd.DataFrame) -> pd.DataFrame:
        return part[part[name] == first]

    found = engines.transform(df, of_first, schema="*", engine=engine)
    return engines.as_pandas(found).reset_index(drop=True)
