"""The main job as one function: weekly CO2 with weeks missing, forecast at its real dates and compared.

Weekly means of atmospheric CO2 at Mauna Loa, 1958 to 2001, as statsmodels has them: 59 weeks are missing,
and 30 % more are removed at random here. The last three years are forecast from what came before.

References:
    Keeling and Whorf, "Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO
    network", Carbon Dioxide Information Analysis Center (2004).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn import metrics
from ctsattn.forecasting import Forecaster, Training
from ctsattn.models import ContinuousTransformer

_YEAR = pd.Timedelta("365.2425D")
_HELD_OUT = 3 * _YEAR
_REMOVED = 0.3
_LEVEL = 80
_QUARTER = 0.25  # years between the cutoffs at which a naive forecast is tried out for its band

Values = NDArray[np.float64]
Naive = Callable[[Values, Values, Values], Values]


def load_co2(seed: int = 0) -> pd.DataFrame:
    """Load the series with its missing weeks left out, and 30 % more.

    Args:
        seed: Of the choice of weeks.

    Returns:
        Columns `ds` and `y` (parts per million).
    """
    from statsmodels.datasets import co2

    series = co2.load_pandas().data["co2"].dropna()
    kept = np.random.default_rng(seed).random(len(series)) >= _REMOVED
    return pd.DataFrame({"ds": series.index[kept], "y": series.to_numpy()[kept]})


def split(df: pd.DataFrame, ahead: pd.Timedelta = _HELD_OUT) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Divide a series into its history and the last span of it."""
    later = df["ds"] > df["ds"].iloc[-1] - ahead
    return df[~later].reset_index(drop=True), df[later].reset_index(drop=True)


def make_forecaster(seed: int = 0, *, verbose: bool = True) -> Forecaster:
    """The forecaster of the demo; chosen on the years before those that the demo forecasts."""
    return Forecaster(
        horizon=_HELD_OUT,
        model=ContinuousTransformer.small(patch=12),
        training=Training(max_steps=150, learning_rate=1e-3, batch_size=16, accelerator="cpu"),
        random_state=seed,
        verbose=verbose,
    )


def last_value(times: Values, values: Values, asked: Values) -> Values:
    """Repeat the last value."""
    return np.full(len(asked), values[-1])


def seasonal_naive(times: Values, values: Values, asked: Values) -> Values:
    """Repeat the last year, read off the straight lines between its observations."""
    return np.interp(asked - np.ceil(asked - times[-1]), times, values)


def seasonal_naive_with_drift(times: Values, values: Values, asked: Values) -> Values:
    """Repeat the last year, raised by the mean yearly change of the whole history."""
    a_year_on = times > times[0] + 1
    change = values[a_year_on] - np.interp(times[a_year_on] - 1, times, values)
    return seasonal_naive(times, values, asked) + np.ceil(asked - times[-1]) * change.mean()


NAIVE: dict[str, Naive] = {
    "last value": last_value,
    "seasonal naive": seasonal_naive,
    "seasonal naive with drift": seasonal_naive_with_drift,
}


def years(times: pd.Series) -> Values:
    """Times as years, from an arbitrary origin."""
    return ((times - pd.Timestamp("2000-01-01")) / _YEAR).to_numpy(float)


def naive_forecast(method: Naive, history: pd.DataFrame, asked: pd.Series) -> dict[str, Values]:
    """A naive forecast with an 80 % band: quantiles of the errors it made in the past, as far ahead.

    Args:
        method: Times and values of the past, asked times, to values.
        history: Columns `ds` and `y`.
        asked: Times to forecast.

    Returns:
        Median, low and high.
    """
    times, values, future = years(history["ds"]), history["y"].to_numpy(), years(asked)
    ahead = future.max() - times[-1]
    errors, elapsed = [], []
    for cutoff in np.arange((times[0] + times[-1]) / 2, times[-1] - ahead, _QUARTER):
        past, next_ones = times <= cutoff, (times > cutoff) & (times <= cutoff + ahead)
        errors.append(values[next_ones] - method(times[past], values[past], times[next_ones]))
        elapsed.append(np.ceil(times[next_ones] - cutoff))
    error, year = np.concatenate(errors), np.concatenate(elapsed)
    point = method(times, values, future)
    tails = (0.5 - _LEVEL / 200, 0.5 + _LEVEL / 200)
    bands = {y: np.quantile(error[year == y], tails) for y in np.unique(year)}
    nearest = np.clip(np.ceil(future - times[-1]), min(bands), max(bands))
    low, high = np.array([bands[y] for y in nearest]).T
    return {"": point, f"-lo-{_LEVEL}": point + low, f"-hi-{_LEVEL}": point + high}


def compare(history: pd.DataFrame, future: pd.DataFrame, forecast: pd.DataFrame) -> pd.DataFrame:
    """Scores of our forecast and of the naive ones on the same dates.

    Returns:
        One row for each forecast, best first: MAE, pinball loss at 10, 50 and 90 %, coverage of the band.
    """
    frame = future.assign(**forecast.drop(columns="ds"))
    for name, method in NAIVE.items():
        columns = naive_forecast(method, history, future["ds"])
        frame = frame.assign(**{name + suffix: values for suffix, values in columns.items()})
    names = ["ctsattn", *NAIVE]
    scores = metrics.evaluate(frame, ["mae", "pinball", "coverage"], models=names, by=(), level=[_LEVEL])
    return scores.set_index("metric")[names].T.rename_axis("forecast").sort_values("mae")


def run(picture: str | os.PathLike[str], seed: int = 0, *, verbose: bool = True) -> str:
    """Fit, forecast, compare, draw.

    Args:
        picture: Where to save the picture.
        seed: Of the model; the removed weeks stay the same.
        verbose: Whether to show the progress of training.

    Returns:
        The table and where the picture is, as text.
    """
    from ctsattn import plotting

    history, future = split(load_co2())
    forecaster = make_forecaster(seed, verbose=verbose).fit(history)
    forecast = forecaster.predict(times=future["ds"], level=[_LEVEL])
    table = compare(history, future, forecast)
    title = "CO2 at Mauna Loa, ppm: three years ahead with an 80 % band"
    figure = plotting.plot_forecast(history, forecast, truth=future, last=250, title=title)
    figure.savefig(picture, dpi=150)
    shown = table.to_string(float_format=lambda x: f"{x:.3f}")
    return (
        f"Weekly CO2: {len(future)} dates of the last three years, forecast from {len(history)} earlier "
        f"weeks with real gaps.\n\n{shown}\n\nAll dates are forecast from one cutoff, so their errors go "
        f"together, and a coverage far from {_LEVEL} % may be chance.\nPicture: {os.fspath(picture)}"
    )
