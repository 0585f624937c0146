"""From windows to quantiles in the caller's units: batching, the network, calibration, cold starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctsattn.data.series import SeriesStore, spans
from ctsattn.data.windows import Windows
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


def device_of(accelerator: str) -> torch.device:
    """Where to predict, by the accelerator of the training options."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def predict_quantiles(
    fitted: Fitted,
    store: SeriesStore,
    windows: Windows,
    levels: NDArray[np.float64],
    *,
    accelerator: str = "auto",
    batch_size: int | None = None,
) -> Quantiles:
    """Run the network over windows.

    Args:
        fitted: The trained model.
        store: Series that the windows point into.
        windows: What to ask; windows without queries are skipped.
        levels: Quantile levels in (0, 1), ascending.
        accelerator: Where to run, as in `Training`.
        batch_size: Windows at once; None: as many as fit a fixed budget of memory.

    Returns:
        Calibrated quantiles of all queries.

    Raises:
        ValueError: A forecast is not finite.
    """
    count, targets = len(windows.times), fitted.spec.num_targets
    values = np.zeros((count, targets, len(levels)))
    elapsed, scale = np.zeros(count), np.ones((count, targets))
    device = device_of(accelerator)
    network = fitted.network.to(device).eval()
    head: Any = network.head
    asked = torch.as_tensor(levels, dtype=torch.float32, device=device)
    try:
        for rows in _plan(fitted, store, windows, batch_size):
            part = windows.take(rows)
            batch = fitted.collator(store, part)
            with torch.inference_mode():
                moved = batch.to(device)
                found = head.quantiles(network(moved), asked).float().cpu().numpy()
            mask = batch.future_mask.numpy()
            at, _ = spans(windows.indptr[rows], windows.indptr[rows + 1])
            values[at] = np.moveaxis(batch.unscale(found), 1, 2)[mask]
            elapsed[at] = batch.future_times.numpy()[mask]
            scale[at] = np.repeat(batch.scale.numpy(), mask.sum(1), axis=0)
    finally:
        network.to("cpu")
    _check_finite(values, store, windows)
    values = np.maximum.accumulate(values, axis=-1)
    if fitted.calibration is not None:
        spread = np.broadcast_to(elapsed[:, None], scale.shape)
        values = fitted.calibration.apply(values, levels, spread, scale)
    return Quantiles(_with_prior(fitted, store, windows, levels, values), elapsed, scale)


def _plan(
    fitted: Fitted, store: SeriesStore, windows: Windows, batch_size: int | None
) -> Iterator[NDArray[np.int64]]:
    """Rows of each batch: a given number of windows, or as many of like length as memory allows."""
    asks = np.flatnonzero(np.diff(windows.indptr) > 0)
    if batch_size is not None:
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
