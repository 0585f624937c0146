"""Batches for tests of models: several channels with times of their own, covariates of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from ctsattn.data.batch import Batch, TaskSpec

SPEC = TaskSpec(
    num_targets=2,
    num_channels=4,
    channel_codes=(0, 0, 0, 5),
    num_static=2,
    static_codes=(3,),
    num_known=3,
    known_codes=(4, 2),
    median_gap=1.0,
    lookback=24.0,
    horizon=12.0,
    periods=(7.0,),
)


def codes(counts: tuple[int, ...], *shape: int) -> Tensor:
    """Random codes, one column for each count."""
    columns = [torch.randint(0, count, shape) for count in counts]
    return torch.stack(columns, dim=-1) if columns else torch.zeros(*shape, 0, dtype=torch.long)


def make_batch(spec: TaskSpec = SPEC, rows: int = 3, length: int = 20, queries: int = 6) -> Batch:
    """Random windows: asynchronous channels of unequal lengths, queries before and after the cutoff."""
    shape = (rows, spec.num_channels, length)
    times = torch.rand(shape).add(0.3).cumsum(dim=-1)
    count = torch.randint(3, length + 1, shape[:2])
    mask = torch.arange(length) < count[..., None]
    last = times.gather(-1, count[..., None] - 1)
    times = torch.where(mask, times, last) - last - torch.rand(rows, spec.num_channels, 1)
    numeric = torch.tensor([number == 0 for number in spec.channel_codes])[:, None]
    channel = torch.stack([torch.randint(0, max(n, 1), (rows, length)) for n in spec.channel_codes], dim=1)
    asked = (torch.rand(rows, queries) * (spec.horizon + 4) - 4).sort(dim=-1).values
    targets = (rows, spec.num_targets)
    return Batch(
        past_times=times,
        past_values=torch.randn(shape) * (mask & numeric),
        past_codes=channel * mask,
        past_mask=mask,
        past_known=torch.randn(*shape, spec.num_known),
        past_known_codes=codes(spec.known_codes, *shape),
        static=torch.randn(rows, spec.num_static),
        static_codes=codes(spec.static_codes, rows),
        future_times=asked,
        future_mask=torch.ones(rows, queries, dtype=torch.bool),
        future_known=torch.randn(rows, queries, spec.num_known),
        future_known_codes=codes(spec.known_codes, rows, queries),
        future_values=torch.randn(*targets, queries),
        future_observed=torch.rand(*targets, queries) < 0.8,
        loc=torch.zeros(targets, dtype=torch.float64),
        scale=torch.ones(targets, dtype=torch.float64),
        series=torch.arange(rows),
        cutoff=torch.zeros(rows, dtype=torch.float64),
    )


def change(batch: Batch, prefix: str, how: Callable[[str, Tensor], Tensor]) -> Batch:
    """Apply `how(name, tensor)` to all fields of a batch whose name starts with `prefix`."""
    names = [field.name for field in fields(batch) if field.name.startswith(prefix)]
    return replace(batch, **{name: how(name, getattr(batch, name)) for name in names})


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Some windows of a batch."""
    return change(batch, "", lambda _, x: x[rows])


def pad_past(batch: Batch, extra: int) -> Batch:
    """Add padding to the past as the collator does: the last time repeated, zeros elsewhere."""

    def longer(name: str, x: Tensor) -> Tensor:
        tail = x[:, :, -1:] if name == "past_times" else torch.zeros_like(x[:, :, -1:])
        return torch.cat([x, tail.expand(*x.shape[:2], extra, *x.shape[3:])], dim=2)

    return change(batch, "past", longer)


QUERY_AXIS = {"future_values": 2, "future_observed": 2}


def ask(batch: Batch, queries: list[int]) -> Batch:
    """Some of the queries, in any order."""
    return change(
        batch, "future", lambda name, x: x.index_select(QUERY_AXIS.get(name, 1), torch.tensor(queries))
    )
