"""Search for good parameters with Optuna; needs the extra `tune`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from sklearn.base import clone

from ctsattn import metrics
from ctsattn.forecasting.forecaster import Forecaster
from ctsattn.forecasting.frames import MODEL

_DECILES = tuple(q / 10 for q in range(1, 10))
_LOGARITHMIC = 10.0  # ranges that span this factor are searched on a logarithmic scale

Choices = Sequence[Any] | tuple[float, float]


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        forecaster: Unfitted, with the best parameters set; fit it on all data.
        params: These parameters.
        score: Their weighted quantile loss, lower is better.
        trials: Frame with a row for each trial: number, score, parameters.
    """

    forecaster: Forecaster
    params: dict[str, Any]
    score: float
    trials: pd.DataFrame


def tune(
    forecaster: Forecaster,
    df: Any,
    space: Mapping[str, Choices],
    *,
    n_trials: int = 20,
    random_state: int = 0,
    path: str | os.PathLike[str] | None = None,
    callback: Callable[[int, float, dict[str, Any]], None] | None = None,
    **validation: Any,
) -> Tuned:
    """Search for the parameters with the least weighted quantile loss in a cross-validation.

    Trial `k` depends on the seed and the trials before it alone. So a search that was broken off and is
    called again with the same `path` goes on as if it had not been.

    Args:
        forecaster: Where to start from; it is not changed.
        df: Observations, as in `Forecaster.cross_validation`.
        space: Parameters by name, `training__learning_rate` or `model__d_model`, and for each a list of
            choices or a tuple `(low, high)` of two integers or two floats. Ranges over a factor of ten or
            more are searched on a logarithmic scale.
        n_trials: Trials in all, those found under `path` included.
        random_state: Seed of the search.
        path: File that keeps the trials; None keeps them in memory.
        callback: Called after each trial with its number, score and parameters.
        validation: Arguments of `Forecaster.cross_validation`, such as `n_windows`, `static_df`, `future_df`.

    Returns:
        The best parameters and all trials.

    Raises:
        ValueError: The space is empty, a range is not one, or no parameter has such a name.

    Examples:
        >>> space = {"model__d_model": [32, 64], "training__learning_rate": (1e-4, 1e-2)}
        >>> tuned = tune(Forecaster(horizon="7D"), df, space, path="search.log")  # doctest: +SKIP
        >>> tuned.forecaster.fit(df)  # doctest: +SKIP

    References:
        Akiba et al., "Optuna: A next-generation hyperparameter optimization framework" (2019); the sampler is
        its tree-structured Parzen estimator.
    """
    optuna = _optuna()
    _check(forecaster, space, n_trials)
    with _quiet(optuna):
        study = _open(optuna, path)
        for number in range(len(_complete(study)), n_trials):
            study.sampler = optuna.samplers.TPESampler(seed=_seed(random_state, number))
            trial = study.ask()
            params = {name: _suggest(trial, name, choices) for name, choices in space.items()}
            score = _score(clone(forecaster).set_params(**params), df, validation)
            study.tell(trial, score)
            if callback is not None:
                callback(number, score, params)
        return _result(forecaster, space, _complete(study))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("`tune` needs Optuna. Install it: pip install 'ctsattn[tune]'.") from error
    return optuna


def _check(forecaster: Forecaster, space: Mapping[str, Choices], n_trials: int) -> None:
    if isinstance(n_trials, bool) or not isinstance(n_trials, (int, np.integer)) or n_trials < 1:
        raise ValueError(f"`n_trials` must be an integer of at least 1, got {n_trials!r}.")
    if not space:
        raise ValueError(
            "`space` names no parameter. Give at least one: {'training__learning_rate': (1e-4, 1e-2)}."
        )
    clone(forecaster).set_params(**{name: _first(name, choices) for name, choices in space.items()})


def _first(name: str, choices: Choices) -> Any:
    """First choice of a parameter, once its form is checked."""
    is_range = isinstance(choices, tuple)
    if is_range and (len(choices) != 2 or not all(map(_is_number, choices)) or not choices[0] < choices[1]):
        raise ValueError(
            f"The range of {name!r} must be (low, high) with low < high, got {choices!r}. Choices are a list."
        )
    if not is_range and (isinstance(choices, str) or not len(choices)):
        raise ValueError(f"The choices of {name!r} must be a list with at least one entry, got {choices!r}.")
    return choices[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Silence Optuna's notes, and give back the caller's level."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def _open(optuna: Any, path: str | os.PathLike[str] | None) -> Any:
    """The study under a path, or a new one."""
    if path is None:
        return optuna.create_study()
    if not Path(path).parent.is_dir():
        raise ValueError(f"The folder {str(Path(path).parent)!r} does not exist. Make it first.")
    journal = optuna.storages.journal
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
    return optuna.create_study(storage=storage, study_name=MODEL, load_if_exists=True)


def _complete(study: Any) -> list[Any]:
    """Trials that have a score; one that was broken off is made again."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]


def _seed(random_state: int, number: int) -> int:
    return int(np.random.SeedSequence([random_state, number]).generate_state(1)[0])


def _suggest(trial: Any, name: str, choices: Choices) -> Any:
    """Let the sampler choose; choices go by their place in the list, so that they may be any objects."""
    if not isinstance(choices, tuple):
        return choices[trial.suggest_categorical(name, list(range(len(choices))))]
    low, high = choices
    wide = low > 0 and high >= _LOGARITHMIC * low
    if all(isinstance(end, (int, np.integer)) for end in choices):
        return trial.suggest_int(name, int(low), int(high), log=wide)
    return trial.suggest_float(name, float(low), float(high), log=wide)


def _score(forecaster: Forecaster, df: Any, validation: Mapping[str, Any]) -> float:
    """Weighted quantile loss over the deciles, each row of the cross-validation counted once."""
    cv = forecaster.cross_validation(df, quantiles=_DECILES, **validation)
    names = nw.from_native(cv).columns  # id, time, cutoff, forecasts, truth
    scores = metrics.evaluate(
        cv,
        ["wql"],
        models=[MODEL],
        by=(),
        quantiles=_DECILES,
        time_col=names[names.index("cutoff") - 1],
        target_col=names[-1],
    )
    return float(scores[MODEL][0])


def _result(forecaster: Forecaster, space: Mapping[str, Choices], trials: list[Any]) -> Tuned:
    rows = [
        {"trial": number, "score": trial.value, **_params(trial, space)}
        for number, trial in enumerate(trials)
    ]
    best = min(trials, key=lambda trial: trial.value)
    params = _params(best, space)
    return Tuned(clone(forecaster).set_params(**params), params, float(best.value), pd.DataFrame(rows))


def _params(trial: Any, space: Mapping[str, Choices]) -> dict[str, Any]:
    return {
        name: trial.params[name] if isinstance(choices, tuple) else choices[trial.params[name]]
        for name, choices in space.items()
    }
