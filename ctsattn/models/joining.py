"""Channels in one sequence: the observations of all of them in order of time, and questions one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.nn import QueryDecoder


@dataclass(frozen=True)
class Joined:
    """Tokens of all channels in one sequence, padded on the right.

    Attributes:
        tokens: `[batch, length, d_model]`.
        times: `[batch, length]`, ascending, the padding at the last real time.
        mask: `[batch, length]`, true at a token.
        place: `[batch, length]` where each stood when channels were laid end to end.
    """

    tokens: Tensor
    times: Tensor
    mask: Tensor
    place: Tensor


def join(tokens: Tensor, times: Tensor, mask: Tensor) -> Joined:
    """Bring tokens `[batch, channels, length, d_model]` with times and mask into one sequence."""
    flat, seen = tokens.flatten(1, 2), mask.flatten(1, 2)
    clock = times.flatten(1, 2).masked_fill(~seen, torch.inf)
    place = clock.argsort(dim=-1, stable=True)[:, : _longest(seen)]
    seen, clock = seen.gather(-1, place), clock.gather(-1, place)
    last = clock.masked_fill(~seen, -torch.inf).amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    return Joined(_take(flat, place), torch.where(seen, clock, last), seen, place)


def part(joined: Joined, encoded: Tensor, tokens: Tensor) -> Tensor:
    """The encoded sequence as channels again, in the shape of `tokens`; padding keeps what it holds."""
    where = joined.place.unsqueeze(-1).expand_as(encoded)
    return tokens.flatten(1, 2).scatter(1, where, encoded.to(tokens)).unflatten(1, tokens.shape[1:3])


def answer_one_by_one(
    decoder: QueryDecoder, asked: Tensor, at: Tensor, memory: Joined, wanted: Tensor
) -> Tensor:
    """Answers of a decoder whose questions hear the joined sequence and not each other.

    Args:
        decoder: Without mixing of channels.
        asked: Embedded questions `[batch, channels, queries, d_model]`.
        at: `[batch, queries]`.
        memory: The encoded sequence.
        wanted: `[batch, channels, queries]` which to answer. The cost is that of the wanted ones.

    Returns:
        `[batch, channels, queries, d_model]`, 0 where no answer is wanted.
    """
    flat, chosen = asked.flatten(1, 2), wanted.flatten(1, 2)
    place = chosen.long().argsort(dim=-1, descending=True, stable=True)[:, : _longest(chosen)]
    times = at.unsqueeze(1).expand(wanted.shape).flatten(1, 2).gather(-1, place)
    past = (x.unsqueeze(1) for x in (memory.tokens, memory.times, memory.mask))
    said = decoder(_take(flat, place).unsqueeze(1), times, *past).squeeze(1)
    said = said * chosen.gather(-1, place).unsqueeze(-1)
    where = place.unsqueeze(-1).expand_as(said)
    return said.new_zeros(flat.shape).scatter(1, where, said).unflatten(1, wanted.shape[1:])


@contextmanager
def only_observed(network: nn.Module) -> Iterator[None]:
    """Let networks that can (those with `only_observed`) answer nothing but what has a truth.

    Of sparse targets a truth is rare: to answer all to score a few would take many times as long. The other
    forecasts of the block are no forecasts.
    """
    able: list[Any] = [module for module in network.modules() if hasattr(module, "only_observed")]
    before = [module.only_observed for module in able]
    try:
        for module in able:
            module.only_observed = True
        yield
    finally:
        for module, value in zip(able, before, strict=True):
            module.only_observed = value


def _longest(mask: Tensor) -> int:
    """Most true places in a row, at least 1."""
    return max(int(mask.sum(dim=-1).amax()), 1)


def _take(rows: Tensor, place: Tensor) -> Tensor:
    """`[batch, length, features]` at places `[batch, some]`."""
    return rows.gather(1, place.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
