"""The half of `Forecaster` that learns: `fit`, `partial_fit`, `calibrate`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from ctsattn.data.frame import Panel
from ctsattn.data.schema import Schema
from ctsattn.data.series import SeriesStore
from ctsattn.data.task import infer_task
from ctsattn.forecasting import evaluation, frames
from ctsattn.forecasting.base import StoredEstimator
from ctsattn.forecasting.fitting import fit_network, new_network
from ctsattn.forecasting.reading import Stream, learn_from, read_history, store_of
from ctsattn.forecasting.state import Fitted


class LearningEstimator(StoredEstimator):
    """Adds to the stored estimator what changes its state."""

    def fit(
        self,
        df: Any,
        val: Any = None,
        static_df: Any = None,
        *,
        past_df: Any = None,
        future_df: Any = None,
        warm_start: bool = False,
    ) -> Self:
        """Train on the history of some series.

        Args:
            df: Observations, one row for each series and time. More than memory holds may come as a Parquet
                file or folder, a list of files, or an iterator of frames, series in any order; rows then go
                to a temporary folder (TMPDIR says where), and from there batch by batch to the network.
            val: Later observations to stop on, with the same columns; None: the end of each series is held
                out, when `training.patience` says so and the data allow it.
            static_df: Static covariates, one row for each id.
            past_df: Past covariates at times of their own.
            future_df: Known-future covariates at times of their own.
            warm_start: Whether to go on from the present weights instead of starting afresh.

        Returns:
            The estimator itself.

        Raises:
            ValueError: Data or options cannot be used; the text names what, where and how to mend it.
            TypeError: Something is of a wrong kind.
        """
        self._check_options()
        frames.asked_quantiles(None, None, self.quantiles)
        extra = {"static_df": static_df, "past_df": past_df, "future_df": future_df}
        history = read_history(df, self._columns(), **extra)
        start = self.fitted_ if warm_start and self.__sklearn_is_fitted__() else None
        self._keep(self.learn(history, start=start, val=val, extra=extra))
        return self

    def learn(
        self,
        history: Panel | Stream,
        *,
        start: Fitted | None = None,
        val: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> Fitted:
        """Train on a history that was read, without changing the estimator.

        Args:
            history: Observations.
            start: State to go on from; None: a new network.
            val: Later observations, a frame as in `fit`.
            extra: Frames of covariates that go with `val`.

        Returns:
            The trained state.
        """
        seed, fresh = self._seed(), start is None
        if start is not None:
            # A copy, so that a failure leaves the estimator as it was.
            start = replace(start, network=copy.deepcopy(start.network))
            store = store_of(history, start.schema, duplicates=self.duplicates)
        else:
            schema, store = learn_from(history, calendar=self._calendar(), duplicates=self.duplicates)
            frames.check_observed(store)
            spec = infer_task(store.sample(), schema, horizon=self.horizon, lookback=self.lookback)
            start = new_network(self.config, schema, spec, seed)
        later = None
        if val is not None:
            both = read_history(val, self._columns(), **(extra or {}))
            later = store.append(store_of(both, start.schema, duplicates=self.duplicates))
        return self._train(start, store, seed, later, fresh=fresh)

    def _train(
        self, start: Fitted, store: SeriesStore, seed: int, val: SeriesStore | None, *, fresh: bool
    ) -> Fitted:
        verbose = bool(self.verbose)
        return fit_network(
            start.network, start, store, self._options, seed=seed, verbose=verbose, val=val, fresh=fresh
        )

    def default_horizon(self, store: SeriesStore, schema: Schema) -> float:
        """Span that training looks ahead on a store, in seconds or units of a numeric clock."""
        spec = infer_task(store, schema, horizon=self.horizon, lookback=self.lookback, detect=False)
        return spec.horizon * spec.time_unit

    def partial_fit(
        self, df: Any, static_df: Any = None, *, past_df: Any = None, future_df: Any = None
    ) -> Self:
        """Train on with new data; what was learned of columns, units and scales stays.

        New rows of known series are added to their history, new series to the others.

        Args:
            df: New observations.
            static_df: As in `fit`.
            past_df: As in `fit`.
            future_df: As in `fit`.

        Returns:
            The estimator itself.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(df, static_df=static_df, past_df=past_df, future_df=future_df)
        self._check_options()
        extra = {"static_df": static_df, "past_df": past_df, "future_df": future_df}
        history = read_history(df, self._columns(), **extra)
        new = store_of(history, self.fitted_.schema, duplicates=self.duplicates)
        store = new if self.fitted_.store is None else self.fitted_.store.append(new)
        start = replace(self.fitted_, network=copy.deepcopy(self.fitted_.network))
        self._keep(self._train(start, store, self._seed(), None, fresh=False))
        return self

    def calibrate(
        self,
        df: Any,
        level: Sequence[float] | None = None,
        static_df: Any = None,
        *,
        past_df: Any = None,
        future_df: Any = None,
    ) -> Self:
        """Make bands cover as often as they claim, separately for near and far horizons.

        Conformalised quantile regression: each quantile is moved by an order statistic of its errors on data
        that training did not see. For series of the training data only cutoffs after their end count.

        Args:
            df: History and held-out observations of known or new series.
            level: Levels in percent that shall be exact; all others are interpolated between a fixed grid.
            static_df: As in `fit`.
            past_df: As in `fit`.
            future_df: As in `fit`.

        Returns:
            The estimator itself.

        Raises:
            ValueError: There are no held-out observations.
        """
        store = self._store(df, static_df, past_df, future_df)
        levels = tuple(q for _, q in frames.asked_quantiles(level, None))
        calibration = evaluation.learn_calibration(self._fitted, store, levels, self.accelerator)
        self.fitted_ = replace(self._fitted, calibration=calibration)
        return self
