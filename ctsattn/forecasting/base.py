"""The estimator's parameters, its trained state, and its file."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError

import ctsattn
from ctsattn._options import check_option, check_options
from ctsattn.data.errors import examples
from ctsattn.data.frame import Rows, read_rows
from ctsattn.data.schema import Columns
from ctsattn.data.series import SeriesStore
from ctsattn.forecasting import checkpoint, frames
from ctsattn.forecasting.asking import Queries, ask, with_known
from ctsattn.forecasting.params import ConfiguredEstimator
from ctsattn.forecasting.reading import read_history, store_of
from ctsattn.forecasting.state import Fitted, from_file, to_file
from ctsattn.forecasting.training import Training
from ctsattn.models import MODELS, ContinuousTransformer


class StoredEstimator(ConfiguredEstimator):
    """Parameters and trained state of `Forecaster`, without any method that learns or answers."""

    def __init__(
        self,
        horizon: Any = None,
        model: Any = None,
        training: Training | None = None,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        id_col: Hashable | None = "unique_id",
        time_col: Hashable = "ds",
        target_col: Hashable | Sequence[Hashable] = "y",
        static_cols: Sequence[Hashable] = (),
        past_cols: Sequence[Hashable] = (),
        future_cols: Sequence[Hashable] = (),
        random_state: int | np.random.Generator | None = 0,
        verbose: bool | int = True,
        lookback: Any = None,
        calendar: Sequence[str] = (),
        duplicates: str = "error",
    ) -> None:
        self.horizon = horizon
        self.model = model
        self.training = training
        self.quantiles = quantiles
        self.id_col = id_col
        self.time_col = time_col
        self.target_col = target_col
        self.static_cols = static_cols
        self.past_cols = past_cols
        self.future_cols = future_cols
        self.random_state = random_state
        self.verbose = verbose
        self.lookback = lookback
        self.calendar = calendar
        self.duplicates = duplicates

    def _defaults(self) -> dict[str, Any]:
        return {"model": ContinuousTransformer(), "training": Training()}

    # What the methods of the subclasses share.

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    @property
    def _fitted(self) -> Fitted:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted. Call `fit(df)` first, or `load` a saved model."
            )
        return self.fitted_

    @property
    def accelerator(self) -> str:
        """Where training and forecasts run, as `lightning.Trainer` names it."""
        return self._options.accelerator

    @property
    def _options(self) -> Training:
        if self.training is None or isinstance(self.training, Training):
            return self.training or Training()
        raise TypeError(
            f"`training` must be a Training or None, got {self.training!r}. Write training=Training(...), or "
            f"set_params(training__max_steps=...)."
        )

    @property
    def config(self) -> Any:
        """Config of the model in use."""
        if self.model is None:
            return ContinuousTransformer()
        if isinstance(self.model, type) or not hasattr(self.model, "build"):
            raise TypeError(
                f"`model` must be a config of ctsattn.models or None, got {self.model!r}. Configs are "
                f"{examples(kind.__name__ for kind in MODELS.values())}: write model=ContinuousTransformer()."
            )
        return self.model

    def _check_options(self) -> None:
        """Check model and training, before any data is read."""
        self._options.check()
        check_options(self.config, "model")
        check_option("verbose", self.verbose, bool | int, "Write set_params(verbose=False).")

    def _calendar(self) -> tuple[str, ...]:
        """Names of calendar features; one needs no tuple."""
        return (self.calendar,) if isinstance(self.calendar, str) else tuple(self.calendar)

    def _columns(self) -> Columns:
        """Columns as the caller named them; those of the training frame once they are known."""
        frames.check_names(self.id_col, self.time_col, self.target_col)
        return Columns.of(
            self.id_col,
            self.time_col,
            self.target_col,
            self.static_cols,
            self.past_cols,
            self.future_cols,
        )

    def _seed(self) -> int:
        """A seed drawn from `random_state`; global generators are not touched."""
        state = self.random_state
        if isinstance(state, (int, np.integer)) and not isinstance(state, bool):
            return int(state) % 2**32
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        if state is not None and not isinstance(state, np.random.Generator):
            raise TypeError(
                f"`random_state` must be an integer, a numpy.random.Generator or None, got {state!r}."
            )
        return int(np.random.default_rng(state).integers(2**32))

    def _store(
        self, df: Any, static_df: Any, past_df: Any, future_df: Any, *, cold: bool = False
    ) -> SeriesStore:
        """Read a history by the rules that training learned."""
        extra = {"static_df": static_df, "past_df": past_df, "future_df": future_df}
        history = read_history(df, self._columns(), **extra, cold_start=cold)
        return store_of(history, self._fitted.schema, duplicates=self.duplicates)

    def _context(
        self, df: Any, static_df: Any, past_df: Any, future_df: Any
    ) -> tuple[SeriesStore, Rows | None]:
        """The history to forecast from, with what is known ahead, and the rows of the future frame."""
        fitted = self._fitted
        if df is not None:
            store = self._store(df, static_df, past_df, future_df, cold=True)
            return store, read_rows(future_df, store.source)
        if fitted.store is None:
            raise ValueError(
                "This model was saved without its data, so it needs a history: predict(df=history, ...)."
            )
        for name, frame in (("static_df", static_df), ("past_df", past_df)):
            if frame is not None:
                raise ValueError(f"`{name}` goes with a history. Pass both: predict(df=history, {name}=...).")
        future = read_rows(future_df, fitted.store.source)
        return with_known(fitted.store, fitted.schema, future), future

    def _ask(self, store: SeriesStore, future: Rows | None, **asking: Any) -> Queries:
        return ask(store, self._fitted.schema, self.horizon_, future=future, **asking)

    def _keep(self, fitted: Fitted) -> None:
        """Take on a trained state, and show of it what users look at."""
        schema, spec = fitted.schema, fitted.spec
        covariates = [f.name for f in schema.features if f.role not in ("target", "ignored")]
        self.fitted_ = fitted
        self.features_ = frames.describe_features(schema)
        self.feature_names_in_ = np.array(covariates, dtype=object)
        self.n_features_in_ = len(covariates)
        self.horizon_ = spec.horizon * spec.time_unit
        self.training_log_ = fitted.log

    def save(self, path: str | os.PathLike[str], *, data: bool = True) -> None:
        """Save to one file of JSON and safetensors, atomically.

        Args:
            path: File name; its folder must exist. An older file is replaced.
            data: Whether to store the training series too, which `predict` needs when it gets no `df`.
        """
        header, tensors = to_file(self._fitted, data=data)
        header["params"] = checkpoint.encode_params(self.get_params(deep=False))
        header["ctsattn_version"] = ctsattn.__version__
        checkpoint.write(path, header, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load what `save` wrote.

        Args:
            path: File name.

        Returns:
            A fitted estimator.

        Raises:
            ValueError: Nothing is there, or it is no such file, or of another schema version.
        """
        header, tensors = checkpoint.read(path)
        fitted = from_file(header, tensors)
        params = checkpoint.decode_params(header["params"])
        training = Training(**params.pop("training")) if params["training"] is not None else None
        model = fitted.config if params.pop("model") else None
        loaded = cls(**{**params, "model": model, "training": training})
        loaded._keep(fitted)
        return loaded
