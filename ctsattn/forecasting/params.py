"""scikit-learn's parameter rules for an estimator whose options are frozen dataclasses."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

from sklearn.base import BaseEstimator


class ConfiguredEstimator(BaseEstimator):
    """An estimator whose parameters may be frozen configs, reached as `name__field`.

    A parameter that is None stands for the default that `_defaults` names, so `training__max_steps` can be
    read and set before anybody made a `Training`.
    """

    def _defaults(self) -> dict[str, Any]:
        """Configs that stand for parameters left at None."""
        return {}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name.

        Args:
            deep: Whether to list the fields of configs too, as `name__field`.

        Returns:
            Name to value.
        """
        params = super().get_params(deep=False)
        if not deep:
            return params
        defaults = self._defaults()
        for name, value in list(params.items()):
            config = defaults.get(name) if value is None else value
            if is_dataclass(config) and not isinstance(config, type):
                params |= {f"{name}__{f.name}": getattr(config, f.name) for f in fields(config)}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and fields of configs as `name__field`; configs are replaced, never changed.

        Args:
            params: New values by name.

        Returns:
            The estimator.

        Raises:
            ValueError: A name is unknown; the text lists those that exist.
        """
        valid = super().get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, _, field = key.partition("__")
            if name not in valid:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(valid)}."
                )
            if field:
                nested.setdefault(name, {})[field] = value
            else:
                setattr(self, name, value)
        for name, changes in nested.items():
            setattr(self, name, self._changed(name, changes))
        return self

    def _changed(self, name: str, changes: dict[str, Any]) -> Any:
        config = getattr(self, name)
        config = self._defaults().get(name) if config is None else config
        if not is_dataclass(config) or isinstance(config, type):
            raise ValueError(f"Parameter {name!r} is {config!r}, which has no fields to set.")
        known = [f.name for f in fields(config)]
        unknown = [field for field in changes if field not in known]
        if unknown:
            raise ValueError(
                f"{type(config).__name__} has no option {unknown[0]!r}; it has {', '.join(known)}."
            )
        # set_params(**get_params()) must not turn None into a copy of the default.
        if getattr(self, name) is None and all(getattr(config, f) == v for f, v in changes.items()):
            return None
        return replace(config, **changes)
