"""`Forecaster` in sktime's clothes; needs the extra `sktime`.

sktime gives targets and covariates as indexed frames and asks by a forecasting horizon; here they become long
frames of ids, times and numbered columns, and answers go back under the caller's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pandas as pd

try:
    from sktime.forecasting.base import BaseForecaster  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "The sktime adapter needs sktime. Install it: pip install 'ctsattn[sktime]'."
    ) from error

from ctsattn.forecasting.forecaster import Forecaster
from ctsattn.forecasting.frames import MODEL, asked_quantiles
from ctsattn.forecasting.training import Training
from ctsattn.models import MODELS, ContinuousTransformer

_ID, _TIME = "series", "time"


class SktimeForecaster(BaseForecaster):
    """ctsattn as a forecaster of sktime.

    One model is trained for all instances of a panel or hierarchy. Columns of `X` are covariates known ahead.
    Any horizon may be asked after `fit`, in sample and out of sample, relative or absolute; absolute horizons
    need no regular index.

    Args:
        horizon: What training looks ahead, as in `Forecaster`.
        model: A config from `ctsattn.models`; None: the default one.
        training: A `Training`; None: the default one.
        lookback: What a window shows of the past, as in `Forecaster`.
        calendar: Calendar features to add.
        random_state: Seed of training.
        verbose: Whether `fit` shows a line of progress.

    Examples:
        >>> from sktime.datasets import load_airline  # doctest: +SKIP
        >>> forecaster = SktimeForecaster(horizon=12).fit(load_airline())  # doctest: +SKIP
        >>> interval = forecaster.predict_interval(fh=[1, 2, 3], coverage=0.9)  # doctest: +SKIP
    """

    _tags = {  # noqa: RUF012
        "authors": "The ctsattn authors",
        "maintainers": "The ctsattn authors",
        "python_dependencies": "torch",
        "y_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "X_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:insample": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:missing_values": True,
        "capability:update": True,
        "capability:categorical_in_X": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": False,
        "X-y-must-have-same-index": False,
    }

    def __init__(
        self,
        horizon: Any = None,
        model: Any = None,
        training: Training | None = None,
        lookback: Any = None,
        calendar: Sequence[str] = (),
        random_state: int | None = 0,
        verbose: bool = False,
    ) -> None:
        self.horizon = horizon
        self.model = model
        self.training = training
        self.lookback = lookback
        self.calendar = calendar
        self.random_state = random_state
        self.verbose = verbose
        super().__init__()

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: Any) -> Self:
        self._seen_y: Any = y
        self._seen_X: Any = X
        names = _numbered("target", y)
        self.forecaster_ = Forecaster(
            horizon=self.horizon,
            model=self.model,
            training=self.training,
            lookback=self.lookback,
            calendar=self.calendar,
            random_state=self.random_state,
            verbose=self.verbose,
            id_col=_ID if y.index.nlevels > 1 else None,
            time_col=_TIME,
            target_col=names,
            future_cols=_numbered("covariate", X),
        ).fit(_long(y, names), future_df=_covariates(X))
        return self

    def _update(self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True) -> Self:
        self._seen_y, self._seen_X = _joined(self._seen_y, y), _joined(self._seen_X, X)
        if update_params and self.forecaster_.training_log_ is not None:
            self.forecaster_.partial_fit(_long(y, _numbered("target", y)), future_df=_covariates(X))
        return self

    def _predict(self, fh: Any, X: pd.DataFrame | None) -> pd.DataFrame:
        index, parts = self._answer(fh, X)
        values = {number: part[MODEL].to_numpy() for number, part in enumerate(parts)}
        return pd.DataFrame(values, index=index).set_axis(self._seen_y.columns, axis=1)

    def _predict_quantiles(self, fh: Any, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:
        index, parts = self._answer(fh, X, alpha)
        columns = dict(asked_quantiles(None, alpha))
        found = {round(level, 12): name for name, level in columns.items()}
        values = [part[found[round(a, 12)]].to_numpy() for part in parts for a in alpha]
        names = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        return pd.DataFrame(dict(enumerate(values)), index=index).set_axis(names, axis=1)

    def _answer(
        self, fh: Any, X: pd.DataFrame | None, quantiles: list[float] | None = None
    ) -> tuple[pd.Index, list[pd.DataFrame]]:
        """Asked rows under the index that sktime expects, and for each target the answers in this order."""
        index = fh.get_expected_pred_idx(y=self._seen_y, cutoff=self.cutoff)
        asked, names = _long(pd.DataFrame(index=index), []), _numbered("target", self._seen_y)
        answer = self.forecaster_.predict(
            df=_long(self._seen_y, names),
            times=asked,
            future_df=_covariates(_joined(self._seen_X, X)),
            quantiles=quantiles,
        )
        answer = answer if "variable" in answer else answer.assign(variable=names[0])
        keys = [*asked.columns]
        return index, [asked.merge(answer[answer["variable"] == name], on=keys, how="left") for name in names]

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small models that sktime's test suite is run with."""
        quick = Training(max_steps=2, batch_size=4, accelerator="cpu", patience=None)
        small = ContinuousTransformer(d_model=8, num_layers=1, num_heads=2, dropout=0.0)
        return [
            {"horizon": 3, "model": small, "training": quick},
            {"horizon": 3, "model": MODELS["seasonal_naive"]()},
        ]


def _numbered(what: str, frame: pd.DataFrame | None) -> list[str]:
    """Names of columns that no name of an answer meets."""
    return [] if frame is None else [f"{what}_{number}" for number in range(frame.shape[1])]


def _long(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Index levels become an id, where there are instances, and a time; columns get plain names."""
    times = frame.index.get_level_values(-1)
    head: dict[str, Any] = {_TIME: pd.Series(times)}
    if frame.index.nlevels > 1:
        head = {_ID: [repr(instance) for instance in frame.index.droplevel(-1)]} | head
    return pd.concat([pd.DataFrame(head), frame.set_axis(names, axis=1).reset_index(drop=True)], axis=1)


def _covariates(X: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if X is None else _long(X, _numbered("covariate", X))


def _joined(old: pd.DataFrame | None, new: pd.DataFrame | None) -> pd.DataFrame | None:
    """Rows of both; where both have one, the newer."""
    if old is None or new is None:
        return old if new is None else new
    both = pd.concat([old, new])
    return both[~both.index.duplicated(keep="last")].sort_index()
