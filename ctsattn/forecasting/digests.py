"""Digests that tell whether two runs, or two forecasts, are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ctsattn.data.series import SeriesStore
from ctsattn.forecasting.checkpoint import as_bytes
from ctsattn.forecasting.state import Fitted
from ctsattn.forecasting.training import Training

_CHUNK = 1 << 22  # numbers that are hashed at once


def run_name(
    network: nn.Module, fitted: Fitted, stores: Iterable[SeriesStore | None], training: Training, seed: int
) -> str:
    """Twelve hex digits that name a run by what decides its result: data, options, seed and first weights.

    Callbacks, loggers and other objects among `training.trainer` do not count.
    """
    options = {k: v for k, v in asdict(training).items() if k not in ("checkpoint_dir", "trainer")}
    plain = {k: v for k, v in training.trainer.items() if isinstance(v, (str, int, float, bool, type(None)))}
    told = {
        "options": options,
        "trainer": plain,
        "seed": seed,
        "config": repr(fitted.config),
        "spec": asdict(fitted.spec),
        "schema": fitted.schema.to_json(),
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(as_bytes(value))
    for store in stores:
        digest.update(b"none" if store is None else store_digest(store).encode())
    return digest.hexdigest()[:12]


def store_digest(store: SeriesStore) -> str:
    """SHA-256 of all numbers and ids of a store, read piece by piece."""
    digest = hashlib.sha256(repr(store.source.clock).encode())
    arrays = [store.static, store.static_codes]
    for ragged in (store.past, store.known):
        arrays += [ragged.times, ragged.values, ragged.indptr]
    for array in arrays:
        _update(digest, array)
    for start in range(0, store.num_series, _CHUNK):
        digest.update("\0".join(map(str, store.source.ids[start : start + _CHUNK])).encode())
    return digest.hexdigest()


def _update(digest: Any, array: NDArray[Any]) -> None:
    digest.update(f"{array.dtype}{array.shape}".encode())
    flat = array.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        digest.update(np.ascontiguousarray(flat[start : start + _CHUNK]).view(np.uint8))
