"""What `fit` leaves behind, and what of it goes into a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctsattn.data.batch import TaskSpec
from ctsattn.data.clock import Clock
from ctsattn.data.collate import Collator
from ctsattn.data.frame import Source
from ctsattn.data.schema import Columns, Schema
from ctsattn.data.series import Ragged, SeriesStore
from ctsattn.data.tables import Library
from ctsattn.forecasting.calibration import Calibration
from ctsattn.forecasting.checkpoint import decode_config, encode_config, tensor_to_text, text_to_tensor
from ctsattn.forecasting.sampling import PathCorrelation
from ctsattn.forecasting.training import TrainingLog
from ctsattn.models import MODELS

_RAGGED = ("past", "known")
_SIZES = ("num_targets", "num_channels", "num_known")


@dataclass(frozen=True)
class Fitted:
    """A trained model with all that a forecast needs.

    Attributes:
        config: Config of the model.
        schema: Columns and their roles.
        spec: Sizes and units.
        network: The trained network.
        prior: Quantiles of each target over the training data `[targets, grid]`, on `sampling.score_grid`.
        log: How training went; None when there was nothing to train.
        correlation: Law of joint paths.
        calibration: Corrections of quantiles, None before `calibrate`.
        store: The training series, None in a model saved without them.
    """

    config: Any
    schema: Schema
    spec: TaskSpec
    network: nn.Module
    prior: NDArray[np.float64]
    log: TrainingLog | None = None
    correlation: PathCorrelation = field(default_factory=PathCorrelation)
    calibration: Calibration | None = None
    store: SeriesStore | None = None

    @property
    def collator(self) -> Collator:
        """Makes batches as the model wants them."""
        return Collator(self.schema, self.spec, self.config.scaler)


def to_file(fitted: Fitted, *, data: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a fitted model into what JSON holds and arrays."""
    tensors = {f"network/{k}": v for k, v in fitted.network.state_dict().items()}
    tensors["prior"] = torch.from_numpy(np.array(fitted.prior))
    header = {
        "model": encode_config(fitted.config, MODELS),
        "schema": fitted.schema.to_json(),
        "spec": asdict(fitted.spec),
        "log": None if fitted.log is None else asdict(fitted.log),
        "correlation": asdict(fitted.correlation),
        "calibrated": fitted.calibration is not None,
    }
    if fitted.calibration is not None:
        parts = asdict(fitted.calibration)
        tensors |= {f"calibration/{name}": torch.from_numpy(np.array(part)) for name, part in parts.items()}
    if data and fitted.store is not None:
        header["data"], arrays = _store_to_file(fitted.store)
        tensors |= {f"data/{name}": array for name, array in arrays.items()}
    return header, tensors


def from_file(header: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    """Inverse of `to_file`."""
    config = decode_config(header["model"], MODELS)
    sizes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in header["spec"].items()}
    spec = TaskSpec(**sizes)
    network = config.build(spec)
    network.load_state_dict(_under(tensors, "network/"))
    network.eval()
    log = header["log"]
    calibration = _under(tensors, "calibration/")
    return Fitted(
        config=config,
        schema=Schema.from_json(header["schema"]),
        spec=spec,
        network=network,
        prior=tensors["prior"].numpy(),
        log=None if log is None else TrainingLog.of(log),
        correlation=PathCorrelation(**header["correlation"]),
        calibration=Calibration(**{k: v.numpy() for k, v in calibration.items()}) if calibration else None,
        store=_store_from_file(header["data"], _under(tensors, "data/")) if "data" in header else None,
    )


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _store_to_file(store: SeriesStore) -> tuple[dict[str, Any], dict[str, Tensor]]:
    source = store.source
    ids, kind = _ids_to_json(source.ids)
    header = {
        "columns": asdict(source.columns),
        "clock": source.clock.to_json(),
        "library": source.library.to_json(),
        "ids_dtype": kind,
        "calendar": list(store.calendar),
        **{name: getattr(store, name) for name in _SIZES},
    }
    arrays: dict[str, Any] = {"ids": text_to_tensor(ids)}
    for name in _RAGGED:
        ragged = getattr(store, name)
        parts = {"times": ragged.times, "values": ragged.values, "indptr": ragged.indptr}
        arrays |= {f"{name}/{part}": torch.from_numpy(np.array(a)) for part, a in parts.items()}
    arrays["static"] = torch.from_numpy(np.array(store.static))
    arrays["static_codes"] = torch.from_numpy(np.array(store.static_codes))
    return header, arrays


def _store_from_file(header: dict[str, Any], arrays: dict[str, Tensor]) -> SeriesStore:
    columns = {k: tuple(v) if isinstance(v, list) else v for k, v in header["columns"].items()}
    source = Source(
        Columns(**columns),
        Clock(**header["clock"]),
        Library.from_json(header["library"]),
        _ids_from_json(tensor_to_text(arrays["ids"]), header["ids_dtype"]),
    )
    ragged = {
        name: Ragged(*(arrays[f"{name}/{part}"].numpy() for part in ("times", "values", "indptr")))
        for name in _RAGGED
    }
    return SeriesStore(
        source=source,
        **ragged,
        **{name: header[name] for name in _SIZES},
        static=arrays["static"].numpy(),
        static_codes=arrays["static_codes"].numpy(),
        calendar=tuple(header["calendar"]),
    )


def _ids_to_json(ids: pd.Index) -> tuple[Any, str]:
    """Ids as JSON values, and the dtype that makes ids of them again.

    Raises:
        ValueError: JSON has no form for them that leads back.
    """
    if isinstance(ids, pd.CategoricalIndex):
        values, dtype = _ids_to_json(ids.categories)
        parts = {"codes": ids.codes.tolist(), "categories": values, "dtype": dtype, "ordered": ids.ordered}
        return parts, "category"
    values, dtype = ids.tolist(), str(ids.dtype)
    if all(isinstance(v, (str, int, float, bool)) for v in values):
        return values, dtype
    if getattr(ids.dtype, "kind", "O") in "Mm":
        return [*map(str, values)], dtype
    if all(type(v) is date for v in values):
        return [v.isoformat() for v in values], "date"
    raise ValueError(
        f"Data with ids of type {type(values[0]).__name__}, for example {values[0]!r}, cannot be saved. Make "
        f"them text before fitting, df[id] = df[id].astype(str), or save the model without its data: "
        f"save(path, data=False)."
    )


def _ids_from_json(values: Any, dtype: str) -> pd.Index:
    """Inverse of `_ids_to_json`."""
    if dtype == "category":
        categories = _ids_from_json(values["categories"], values["dtype"])
        kind = pd.CategoricalDtype(categories, ordered=values["ordered"])
        return pd.CategoricalIndex(pd.Categorical.from_codes(values["codes"], dtype=kind))
    if dtype == "date":
        return pd.Index([date.fromisoformat(v) for v in values], dtype=object)
    return pd.Index(values, dtype=dtype)


def without_data(fitted: Fitted) -> Fitted:
    """The same model without its training series."""
    return replace(fitted, store=None)
