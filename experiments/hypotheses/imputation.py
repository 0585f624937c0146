"""Impute, then attend: what is shown becomes a regular grid by straight lines between observations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from experiments.hypotheses.tasks import Windows


def imputed(shown: Windows) -> Windows:
    """As many points as the window has places, evenly from its first observation to the cutoff.

    Between observations the value is on the straight line, after the last it stays.
    """
    times, values, mask = shown.past_times, shown.past_values, shown.past_mask
    length = times.shape[-1]
    share = torch.linspace(1.0, 0.0, length, device=times.device)
    grid = times[..., :1] * share  # times are relative to the cutoff, the first is the lowest
    last = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    right = torch.searchsorted(times.contiguous(), grid.contiguous()).clamp(min=1, max=length - 1)
    right = torch.minimum(right, last)
    left = (right - 1).clamp(min=0)
    value = _on_line(grid, *(x.gather(-1, i) for i in (left, right) for x in (times, values)))
    return replace(shown, past_times=grid, past_values=value, past_mask=torch.ones_like(mask))


def _on_line(at: Tensor, t0: Tensor, y0: Tensor, t1: Tensor, y1: Tensor) -> Tensor:
    """Value at `at` on the line through two points, held beyond them."""
    gap = t1 - t0
    share = torch.where(gap > 0, (at - t0) / torch.where(gap > 0, gap, 1.0), 1.0).clamp(0.0, 1.0)
    return y0 + share * (y1 - y0)
