"""Gaps of thinned windows: moved out of the way, or filled by kriging, the mean given what was seen.

The covariance is stationary and learned from the training windows: what they show of their past, and their
future, which training knows. Nothing of validation or test is learned from, and a window is filled from its
own past alone.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ctsattn.datasets.protocols import RowWindows

_LEARNED = 20_000  # training windows and channels that the covariance is learned from
_NOISE, _UNSEEN = 0.02, 1e5  # variances in scaled units, of an observation and of a place without one
_FLOOR = 0.05  # of the scale of a window, in standard deviations of the training rows
_VALUES = 2**27  # in a batch of matrices


def left_justified(
    values: np.ndarray, times: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move what is kept to the left, cut the padding that all share, repeat the last time in the rest."""
    order = np.argsort(~mask, axis=-1, kind="stable")[..., : mask.sum(-1).max()]
    values, times, mask = (np.take_along_axis(a, order, -1) for a in (values, times, mask))
    last = np.take_along_axis(times, mask.sum(-1, keepdims=True) - 1, -1)
    return np.where(mask, values, 0.0), np.where(mask, times, last), mask


def scaled(past: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values by mean and deviation of what is seen, 0 elsewhere; location and scale `[..., 1]`."""
    count = seen.sum(-1, keepdim=True)
    loc = (past * seen).sum(-1, keepdim=True) / count
    scale = (((past - loc) * seen).square().sum(-1, keepdim=True) / count).sqrt().clamp(min=_FLOOR)
    return (past - loc) / scale * seen, loc, scale


def autocovariance(values: Tensor, seen: Tensor, lookback: int) -> Tensor:
    """Stationary covariance `[lookback, lookback]` from pairs that are seen in windows `[rows, length]`."""
    length = values.shape[-1]
    size = 2 * length
    products, pairs = (
        torch.fft.irfft(torch.fft.rfft(x, size).abs().square(), size)[:, :length].sum(0)
        for x in (values * seen, seen.to(values))
    )
    lags = torch.arange(lookback, device=values.device)
    table = (products / pairs.clamp(min=1.0))[(lags[:, None] - lags).abs()]
    found, vectors = torch.linalg.eigh(table)
    return (vectors * found.clamp(min=0.0)) @ vectors.mT  # estimates from pairs need not be a covariance


def learn(cut: RowWindows, keep: np.ndarray, device: torch.device) -> Tensor:
    """The covariance of the training windows, channels pooled."""
    channels = keep.shape[1]
    rows = np.linspace(0, len(cut) * channels - 1, _LEARNED).astype(np.int64)
    past, seen = _windows(cut, keep, rows // channels, device)
    column = torch.tensor(rows % channels, device=device)[:, None, None].expand(-1, 1, past.shape[-1])
    past, seen = past.gather(1, column).squeeze(1), seen.gather(1, column).squeeze(1)
    values, loc, scale = scaled(past, seen)
    ahead = cut.origins[rows // channels][:, None] + np.arange(cut.horizon)
    future = torch.tensor(cut.table.values[ahead, (rows % channels)[:, None]], device=device)
    whole = torch.cat([values, (future.double() - loc) / scale], dim=-1)
    return autocovariance(
        whole, torch.cat([seen, torch.ones_like(future, dtype=torch.bool)], -1), cut.lookback
    )


def _windows(
    cut: RowWindows, keep: np.ndarray, chosen: np.ndarray, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Past and what is seen of it `[windows, channels, lookback]`; at least the last two are."""
    at = cut.origins[chosen][:, None] + np.arange(-cut.lookback, 0)
    past = torch.tensor(cut.table.values[at].swapaxes(1, 2), dtype=torch.float64, device=device)
    seen = torch.tensor(keep[at].swapaxes(1, 2).copy(), device=device)
    seen[..., -2:] |= seen.sum(-1, keepdim=True) < 2
    return past, seen


def conditional(values: Tensor, seen: Tensor, covariance: Tensor) -> Tensor:
    """Conditional means `[windows, channels, lookback]` of scaled windows.

    Channels that share their gaps share a matrix.
    """
    shared = bool((seen == seen[:, :1]).all())
    masks = seen[:, :1] if shared else seen
    noise = torch.where(masks, _NOISE, _UNSEEN).to(covariance)
    factors = torch.linalg.cholesky(covariance + torch.diag_embed(noise))
    right = values.mT.unsqueeze(1) if shared else values.unsqueeze(-1)
    solved = covariance @ torch.cholesky_solve(right, factors)
    return solved.squeeze(1).mT if shared else solved.squeeze(-1)


def fill(cut: RowWindows, keep: np.ndarray, covariance: Tensor) -> np.ndarray:
    """The past of all windows without gaps, `[windows, channels, lookback]` in the units of the table."""
    channels = keep.shape[1]
    size = max(1, _VALUES // (cut.lookback**2 * channels))
    filled = np.empty((len(cut), channels, cut.lookback), dtype=np.float32)
    for start in range(0, len(cut), size):
        chosen = np.arange(start, min(start + size, len(cut)))
        past, seen = _windows(cut, keep, chosen, covariance.device)
        values, loc, scale = scaled(past, seen)
        filled[chosen] = (conditional(values, seen, covariance) * scale + loc).float().cpu().numpy()
    return filled


def filled_parts(windows: dict[str, RowWindows], keep: np.ndarray, data: str) -> dict[str, np.ndarray]:
    """Filled windows of all parts, made once for what is kept of a table and left among temporary files."""
    from filelock import FileLock

    sizes = f"{data}-{windows['train'].lookback}-{windows['train'].horizon}"
    name = f"{sizes}-{hashlib.sha256(np.packbits(keep).tobytes()).hexdigest()[:12]}"

    folder = Path(os.environ.get("CTSATTN_FILLED", Path(tempfile.gettempdir(), "ctsattn-filled")))
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        paths = {part: folder / f"{name}-{part}.npy" for part in windows}
        if not all(path.exists() for path in paths.values()):
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            covariance = learn(windows["train"], keep, device)
            for part, path in paths.items():
                temporary = path.with_suffix(".tmp.npy")
                np.save(temporary, fill(windows[part], keep, covariance))
                os.replace(temporary, path)
    return {part: np.load(path, mmap_mode="r") for part, path in paths.items()}
