"""From windows to quantiles in the caller's units: batching, the network, calibration, cold starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctsattn.data.batch import Batch
from ctsattn.data.series import SeriesStore, spans
from ctsattn.data.windows import Windows
from ctsattn.forecasting.devices import collect, devices_of, on_devices, share_of
from ctsattn.forecasting.sampling import score_grid
from ctsattn.forecasting.state import Fitted

_BUDGET = 2**17  # tokens plus queries of a batch, padding included


@dataclass(frozen=True)
class Quantiles:
    """Quantiles at the queries of some windows, in the order of the queries.

    Attributes:
        values: `[queries, targets, levels]` float64, in the caller's units.
        elapsed: `[queries]` time since the cutoff, in model units.
        scale: `[queries, targets]` scale of the window.
    """

    values: NDArray[np.float64]
    elapsed: NDArray[np.float64]
    scale: NDArray[np.float64]


def predict_quantiles(
    fitted: Fitted,
    store: SeriesStore,
    windows: Windows,
    levels: NDArray[np.float64],
    *,
    accelerator: str = "auto",
    devices: int | str | Sequence[int] = 1,
    batch_size: int | None = None,
    share: bool = False,
) -> Quantiles:
    """Run the network over windows.

    Args:
        fitted: The trained model.
        store: Series that the windows point into.
        windows: What to ask; windows without queries are skipped.
        levels: Quantile levels in (0, 1), ascending.
        accelerator: Where to run, as in `Training`.
        devices: How many devices to run on, or which, as in `Training`.
        batch_size: Windows at once; None: as many as fit a fixed budget of memory.
        share: Whether the processes of a distributed run share the work; then all must make this call.

    Returns:
        Calibrated quantiles of all queries.

    Raises:
        ValueError: A forecast is not finite.
    """
    count, targets = len(windows.times), fitted.spec.num_targets
    values = np.zeros((count, targets, len(levels)))
    elapsed, scale = np.zeros(count), np.ones((count, targets))
    network = fitted.network.eval()

    def work(network: Any, device: torch.device, rows: NDArray[np.int64]) -> _Part:
        return _run(network, device, fitted.collator(store, windows.take(rows)), levels)

    jobs = list(_plan(fitted, store, windows, batch_size))
    places = devices_of(accelerator, devices)
    if share:
        parts = collect(list(on_devices(network, share_of(jobs), places, work)))
    else:
        parts = on_devices(network, jobs, places, work)
    for rows, part in zip(jobs, parts, strict=True):
        at, _ = spans(windows.indptr[rows], windows.indptr[rows + 1])
        values[at], elapsed[at], scale[at] = part
    _check_finite(values, store, windows)
    values = np.maximum.accumulate(values, axis=-1)
    if fitted.calibration is not None:
        spread = np.broadcast_to(elapsed[:, None], scale.shape)
        values = fitted.calibration.apply(values, levels, spread, scale)
    return Quantiles(_with_prior(fitted, store, windows, levels, values), elapsed, scale)


_Part = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _run(network: Any, device: torch.device, batch: Batch, levels: NDArray[np.float64]) -> _Part:
    """Values, elapsed times and scales at the queries of a batch, one after the other."""
    asked = torch.as_tensor(levels, dtype=torch.float32, device=device)
    with torch.inference_mode():
        moved = batch.to(device)
        found = network.head.quantiles(network(moved), asked).float().cpu().numpy()
    mask = batch.future_mask.numpy()
    values = np.moveaxis(batch.unscale(found), 1, 2)[mask]
    scale = np.repeat(batch.spread, mask.sum(1), axis=0)
    return values, batch.future_times.numpy()[mask].astype(np.float64), scale


def _plan(
    fitted: Fitted, store: SeriesStore, windows: Windows, batch_size: int | None
) -> Iterator[NDArray[np.int64]]:
    """Rows of each batch: a given number of windows, or as many of like length as memory allows."""
    asks = np.flatnonzero(np.diff(windows.indptr) > 0)
    if batch_size is not None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise ValueError(f"`batch_size` counts series, so it must be at least 1, got {batch_size!r}.")
        yield from np.array_split(asks, -(-len(asks) // batch_size))
        return
    if not len(asks):
        return
    counts = store.past.counts.reshape(-1, store.num_channels).max(axis=1)
    tokens = np.minimum(counts[windows.series], fitted.collator.max_tokens)
    cost = np.maximum(tokens, 1) * store.num_channels + np.diff(windows.indptr)
    order = asks[np.argsort(cost[asks], kind="stable")]
    while len(order):
        # costs ascend, so the last of a batch decides how wide all are padded
        padded = np.arange(1, len(order) + 1) * cost[order]
        size = max(1, int(np.searchsorted(padded, _BUDGET, side="right")))
        yield order[:size]
        order = order[size:]


def _check_finite(values: NDArray[np.float64], store: SeriesStore, windows: Windows) -> None:
    bad = ~np.isfinite(values).all(axis=(1, 2))
    if bad.any():
        series = windows.series[windows.queries.segment[bad]]
        raise ValueError(
            f"The forecast is not finite for {len(np.unique(series))} series, in {int(bad.sum())} rows: "
            f"{store.source.describe(series, windows.times[bad])}. Look at the values of these series; "
            f"numbers beyond 1e300 cannot be scaled."
        )


def _with_prior(
    fitted: Fitted,
    store: SeriesStore,
    windows: Windows,
    levels: NDArray[np.float64],
    values: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Give series without any history the distribution of the training data."""
    cold = ~store.has_history[windows.series[windows.queries.segment]]
    if cold.any():
        _, grid = score_grid()
        prior = np.stack([np.interp(levels, grid, row) for row in fitted.prior])
        values = np.where(cold[:, None, None], prior, values)
    return values
