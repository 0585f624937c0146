"""`Forecaster`: frames with any timestamps in, probabilistic forecasts at any timestamps out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ctsattn.data.frame import read_panel
from ctsattn.forecasting import evaluation, frames
from ctsattn.forecasting.answering import AnsweringEstimator
from ctsattn.forecasting.backtest import CrossValidation
from ctsattn.forecasting.training import TrainingWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Forecaster(AnsweringEstimator):
    """Probabilistic forecasts of irregular series, by attention on a real clock.

    Frames may come from pandas, polars or pyarrow, in long form with any column names (`unique_id, ds, y` and
    `item_id, timestamp, target` are recognised), or wide with the time as index. Without an id column a frame
    is one series. Time may be datetimes of any unit and zone, timedeltas, integers or floats, spaced as they
    happen to be. Answers come in the caller's library, names, zone and dtypes.

    Args:
        horizon: What training looks ahead: steps, a span ("36h", Timedelta, a number on a numeric clock), or
            None to choose from the data. Any other horizon can be asked after `fit`.
        model: A config from `ctsattn.models`; None: `ContinuousTransformer()`.
        training: A `Training`; None: `Training()`.
        quantiles: Levels that `predict` answers when neither `level` nor `quantiles` is given.
        id_col: Column that names the series.
        time_col: Column of timestamps.
        target_col: Column to forecast, or a list of columns.
        static_cols: Covariates that are constant within a series.
        past_cols: Covariates known up to the cutoff.
        future_cols: Covariates known ahead.
        random_state: An int, a `numpy.random.Generator`, or None for a new seed at each fit.
        verbose: Whether `fit` shows one progress line, on the standard error.
        lookback: What a window shows of the past, in the same words as `horizon`.
        calendar: Calendar features to add, names of `ctsattn.data.calendar.CALENDAR`; off by default.
        duplicates: What to do with several rows of a series at one time: "error", "mean" or "last".

    Attributes:
        features_: Frame of every column with its role, kind and the reason for it.
        feature_names_in_: Names of the covariates in use.
        n_features_in_: Their number.
        horizon_: Span that training looked ahead, in seconds or units of a numeric clock.
        training_log_: What happened in training; None for models without parameters.

    Examples:
        >>> import numpy as np, pandas as pd
        >>> from ctsattn import Forecaster
        >>> from ctsattn.forecasting import Training
        >>> days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.cumsum([1, 3, 2, 5, 1] * 12), "D")
        >>> df = pd.DataFrame({"ds": days, "y": np.sin(np.arange(60) / 5)})
        >>> forecaster = Forecaster(horizon="14D", training=Training(max_steps=5), verbose=False).fit(df)
        >>> forecaster.predict(times=["2024-07-01", "2024-07-04 12:00"], level=[80]).columns.tolist()
        ['ds', 'ctsattn', 'ctsattn-lo-80', 'ctsattn-hi-80']
    """

    def cross_validation(
        self,
        df: Any,
        n_windows: int | None = None,
        step: Any = None,
        cutoffs: Sequence[Any] | None = None,
        refit: bool = False,
        level: Sequence[float] | None = None,
        *,
        quantiles: Sequence[float] | None = None,
        span: Any = None,
        horizon: Any = None,
        static_df: Any = None,
        past_df: Any = None,
        future_df: Any = None,
    ) -> Any:
        """Forecast the past from earlier cutoffs.

        A copy is trained on what precedes the first cutoff, or before each one with `refit`; the estimator
        itself does not change. No training row is later than its cutoff. The copy is not calibrated.

        Args:
            df: Observations.
            n_windows: Cutoffs in each series, counted back from its end; 1 when nothing is said.
            step: Distance of cutoffs: a span or a number of steps; None: the horizon.
            cutoffs: Moments, the same for all series, instead of `n_windows`.
            refit: Whether to train anew for each cutoff.
            level: As in `predict`.
            quantiles: As in `predict`.
            span: Span at the end of each series to cover with cutoffs, instead of `n_windows`.
            horizon: What each window looks ahead; None: the horizon of training.
            static_df: As in `fit`.
            past_df: As in `fit`.
            future_df: As in `fit`.

        Returns:
            Frame of id, time, `cutoff`, forecasts as from `predict`, and the truth, at the true timestamps;
            `utilsforecast.evaluation.evaluate` takes it as it is.
        """
        self._check_options()
        if self.__sklearn_is_fitted__() and self._fitted.calibration is not None:
            warnings.warn(
                "`cross_validation` trains a copy, and the calibration is no part of it: these bands are not "
                "calibrated. To check calibrated ones, predict(df=history) of series that are new to it, and "
                "compare with what followed.",
                TrainingWarning,
                stacklevel=2,
            )
        names = frames.asked_quantiles(level, quantiles, self.quantiles)
        panel = read_panel(df, self._columns(), static_df=static_df, past_df=past_df, future_df=future_df)
        return CrossValidation(self, names, horizon, refit).run(
            panel, n_windows=n_windows, step=step, cutoffs=cutoffs, span=span
        )

    def score(self, df: Any, **context: Any) -> float:
        """Minus the weighted quantile loss on the last horizon of `df`; higher is better.

        Args:
            df: Observations; each series is forecast from one horizon before its end.
            context: `static_df`, `past_df`, `future_df` as in `predict`.

        Returns:
            The score, at most 0.
        """
        store = self._store(df, context.get("static_df"), context.get("past_df"), context.get("future_df"))
        return evaluation.score(self._fitted, store, self.accelerator)

    @property
    def losses_(self) -> pd.DataFrame:
        """Losses along the training: `step`, `train` (mean since the row before), `val`; NaN: no round.

        `plotting.plot_losses(forecaster)` draws them. Empty for models without parameters.
        """
        log = self._fitted.log
        rows = () if log is None else log.history
        return pd.DataFrame(rows, columns=["step", "train", "val"], dtype=float).astype({"step": int})

    def plot(
        self,
        forecast: Any = None,
        *,
        df: Any = None,
        truth: Any = None,
        ids: Sequence[Any] | None = None,
        max_series: int = 6,
        title: str | None = None,
        **asking: Any,
    ) -> Figure:
        """Draw history, forecast and bands at their own timestamps.

        Args:
            forecast: Result of `predict` or `cross_validation`; None: `predict(**asking)`.
            df: History; None: the training data.
            truth: What came afterwards.
            ids: Series to draw.
            max_series: Most panels.
            title: Title of the figure.
            asking: Arguments of `predict`.

        Returns:
            The figure; no window is opened.
        """
        if forecast is None:
            forecast = self.predict(df=df, **asking)
        return evaluation.plot(
            self, self._fitted, forecast, df=df, truth=truth, ids=ids, max_series=max_series, title=title
        )
