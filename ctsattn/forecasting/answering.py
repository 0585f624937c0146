"""The half of `Forecaster` that answers: `predict`, `impute`, `sample`, `missing_future`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np

from ctsattn._options import Within, check_option
from ctsattn.forecasting import evaluation, frames
from ctsattn.forecasting.asking import ask
from ctsattn.forecasting.learning import LearningEstimator
from ctsattn.forecasting.parts import Answer
from ctsattn.forecasting.progress import ProgressLine

_SEED = Optional[Annotated[int, Within(0)] | np.random.Generator]  # noqa: UP045 (pyright knows no `|` of it)


class AnsweringEstimator(LearningEstimator):
    """Adds to the learning estimator what reads its state and leaves it alone."""

    def predict(
        self,
        h: int | None = None,
        *,
        df: Any = None,
        times: Any = None,
        horizon: Any = None,
        future_df: Any = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
        static_df: Any = None,
        past_df: Any = None,
        cold_start: bool = True,
        batch_size: int | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Forecast.

        Args:
            h: Steps ahead, in the typical step of each series.
            df: History to forecast from, of known or new series, of any kind that `fit` takes; None: the
                training data.
            times: Timestamps for every series, or a frame of ids and times. Times at or before the last
                observation are answered too, and flagged in a column `in_sample`.
            horizon: Span to cover with steps: "36h", a Timedelta, or a number on a numeric clock.
            future_df: Known-future covariates; its rows are asked when nothing else is.
            level: Levels in percent of central bands, as columns `ctsattn-lo-80`, `ctsattn-hi-80`.
            quantiles: Levels in (0, 1), as columns `ctsattn-q0.1`.
            static_df: Static covariates of new series.
            past_df: Past covariates that go with `df`.
            cold_start: Whether series without any observation get the distribution of the training data,
                flagged in a column `cold_start`; otherwise they are an error.
            batch_size: Series at once; changes nothing but memory and speed.
            out: Folder to write the forecast to, in Parquet files of some series each, as they are ready. A
                call that was broken off goes on where it stopped when it is made again. The processes of
                a run share the files.

        Returns:
            Frame sorted by id (in order of first appearance) and time, with the median in `ctsattn`; the path
            of the folder where `out` names one.

        Raises:
            NotFittedError: Before `fit`.
            ValueError: Ways of asking are mixed, or a forecast is not finite.
        """
        fitted = self._fitted
        names = frames.asked_quantiles(level, quantiles, self.quantiles)
        store, future = self._context(df, static_df, past_df, future_df)
        queries = self._ask(store, future, h=h, times=times, span=horizon)
        frames.check_cold(store, queries, cold_start)
        frames.warn_beyond_known(store, fitted.schema, queries)
        flags = [flag for flag, rows in frames.flags_of(store, queries).items() if rows.any()]
        answer = Answer(fitted, names, flags, self._options, batch_size)
        if out is not None:
            return answer.write(store, queries, Path(out), ProgressLine() if self.verbose else None)
        return answer.frame(store, queries)

    def impute(
        self,
        times: Any = None,
        *,
        df: Any = None,
        level: Sequence[float] | None = None,
        quantiles: Sequence[float] | None = None,
        **context: Any,
    ) -> Any:
        """Estimate values between observations, from both sides.

        Args:
            times: Timestamps, or a frame of ids and times; None: rows of `df` whose target is missing.
            df: Observations; None: the training data.
            level: As in `predict`.
            quantiles: As in `predict`.
            context: `static_df`, `past_df`, `future_df` as in `predict`.

        Returns:
            Frame as from `predict`.

        Raises:
            ValueError: A time lies after the last observation, or nothing is missing.
        """
        if times is None:
            times = frames.missing_rows(df, self._columns())
        store, _ = self._context(
            df, context.get("static_df"), context.get("past_df"), context.get("future_df")
        )
        frames.check_inside(store, ask(store, self._fitted.schema, self.horizon_, times=times))
        return self.predict(df=df, times=times, level=level, quantiles=quantiles, **context)

    def sample(
        self,
        n: int,
        *,
        h: int | None = None,
        df: Any = None,
        times: Any = None,
        horizon: Any = None,
        future_df: Any = None,
        static_df: Any = None,
        past_df: Any = None,
        seed: int | np.random.Generator | None = None,
    ) -> Any:
        """Draw joint paths over the asked times.

        At each time the values follow the forecast's distribution; along a path they hang together as errors
        did on held-out data (`sampling.PathCorrelation`).

        Args:
            n: Paths.
            h: As in `predict`, as are the further arguments.
            df: As in `predict`.
            times: As in `predict`.
            horizon: As in `predict`.
            future_df: As in `predict`.
            static_df: As in `predict`.
            past_df: As in `predict`.
            seed: Seed of the paths; None: `random_state`.

        Returns:
            Frame of id, time, (variable,) `sample` from 0 to n - 1, and the value in `ctsattn`.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"`n` counts paths, so it must be an integer of at least 1, got {n!r}.")
        store, future = self._context(df, static_df, past_df, future_df)
        asked = self._ask(store, future, h=h, times=times, span=horizon)
        mended = "Leave it out to take `random_state`."
        check_option("seed", seed, _SEED, mended)
        rng = np.random.default_rng(self._seed() if seed is None else seed)
        return evaluation.sample_frame(self._fitted, store, asked, int(n), rng, self.accelerator)

    def missing_future(
        self, future_df: Any, *, h: int | None = None, times: Any = None, horizon: Any = None
    ) -> Any:
        """Compare a future frame with what a forecast would ask.

        Args:
            future_df: Known-future covariates.
            h: As in `predict`.
            times: As in `predict`.
            horizon: As in `predict`.

        Returns:
            Frame of id, time and `status`: "missing" for asked rows beyond the known covariates (with their
            names in `columns`), "extra" for rows that nothing asks.
        """
        store, future = self._context(None, None, None, future_df)
        asked = self._ask(store, None, h=h, times=times, span=horizon)
        return frames.missing_future_frame(store, self._fitted.schema, asked, future)
