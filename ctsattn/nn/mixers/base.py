"""What every mixer shares: its configuration, and attention with one operator left open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctsattn.nn.projections import AttentionProjections
from ctsattn.ops.continuous.request import Interval

SINKS = ("none", "zeros", "first", "learned")


@dataclass(frozen=True)
class MixerConfig:
    """Sizes and units of a mixer, the same for all of them.

    Attributes:
        d_model: Features of a token.
        num_heads: Heads; a divisor of `d_model`.
        num_kv_heads: Key and value heads of grouped-query attention; None: as many as heads.
        frequencies: Angular frequencies of the time-rotary angles; none: no positions.
        gap: Typical gap between tokens, in the clock's unit: the gap of the sink and the unit of recurrences.
        sink: What attention may look at besides the tokens: "none", "zeros" (key and value 0), "first" (copy
            of the first token) or "learned".
        dropout: Share of attention weights dropped in training.
        is_causal: Whether a token sees only itself and earlier tokens.
        interval: Where an integral over time begins and ends, as in `continuous_attention`: "left" or
            "symmetric"; a sum over tokens has no ends.
        learns_temperature: Whether each head learns the temperature of its scores; else it is that of
            `1 / sqrt(head_dim)`.
    """

    d_model: int
    num_heads: int = 4
    num_kv_heads: int | None = None
    frequencies: tuple[float, ...] = ()
    gap: float = 1.0
    sink: str = "none"
    dropout: float = 0.0
    is_causal: bool = True
    interval: Interval = "left"
    learns_temperature: bool = True

    def __post_init__(self) -> None:
        if self.sink not in SINKS:
            raise ValueError(f"`sink` must be one of {', '.join(SINKS)}, but got {self.sink!r}.")


def valid_first(mask: Tensor, backwards: bool = False) -> Tensor:
    """Order `[batch, length]` that brings tokens that exist to the left, in order or backwards."""
    if not backwards:
        return torch.argsort(~mask, dim=1, stable=True)
    rank = torch.arange(mask.shape[1], 0, -1, device=mask.device)
    return torch.argsort(torch.where(mask, rank, mask.shape[1] + rank), dim=1)


def take(x: Tensor, order: Tensor) -> Tensor:
    """Take `x` `[batch, length, ...]` in the `order` `[batch, length]` of each row."""
    return x.gather(1, order.reshape(*order.shape, *(1,) * (x.dim() - 2)).expand(*order.shape, *x.shape[2:]))


class SinkToken(NamedTuple):
    """A knot before the first token that every query sees.

    Attributes:
        key: `[batch, kv_heads, head_dim]`.
        value: `[batch, kv_heads, head_dim]`.
        gap: Time between it and the first token.
    """

    key: Tensor
    value: Tensor
    gap: float


class Heads(NamedTuple):
    """What an attention operator is applied to.

    Attributes:
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, length, head_dim]`.
        v: Values `[batch, kv_heads, length, head_dim]`.
        times: Times of the keys `[batch, length]`; None: they count as 1 apart.
        mask: `[batch, length]`, true where a key exists; None: all exist. For an operator that reads
            neighbours, keys that exist stand on the left.
        sink: The sink, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    times: Tensor | None
    mask: Tensor | None = None
    sink: SinkToken | None = None


class Sinks(nn.Module):
    """The key and value that attention may fall back on, of one of the kinds in `SINKS`."""

    def __init__(self, kind: str, kv_heads: int, head_dim: int, gap: float) -> None:
        super().__init__()
        self.kind, self.gap = kind, gap
        if kind == "learned":
            self.key = nn.Parameter(torch.zeros(kv_heads, head_dim))
            self.value = nn.Parameter(torch.zeros(kv_heads, head_dim))

    def forward(self, k: Tensor, v: Tensor, mask: Tensor | None) -> SinkToken | None:
        """The sink for keys and values `[batch, kv_heads, length, head_dim]`, `mask` `[batch, length]`."""
        if self.kind == "none":
            return None
        if self.kind == "learned":
            key = self.key.to(k.dtype).expand(len(k), -1, -1)
            value = self.value.to(v.dtype).expand(len(v), -1, -1)
        elif self.kind == "zeros":
            key, value = torch.zeros_like(k[:, :, 0]), torch.zeros_like(v[:, :, 0])
        else:
            first = mask.int().argmax(dim=1) if mask is not None else k.new_zeros(len(k), dtype=torch.long)
            rows = torch.arange(len(k), device=k.device)
            key, value = k[rows, :, first], v[rows, :, first]
        return SinkToken(key, value, self.gap)


class Mixer(nn.Module, ABC):
    """Mix the tokens of a sequence along time."""

    @abstractmethod
    def forward(self, x: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix along `length`.

        Args:
            x: Tokens `[batch, length, d_model]`.
            times: Their times `[batch, length]`, ascending.
            mask: `[batch, length]`, true where a token exists; None: everywhere.

        Returns:
            `[batch, length, d_model]`; rows of missing tokens hold no meaning, but are finite.
        """


class AttentionMixer(Mixer):
    """Attention along time, to tokens of the same sequence or from queries at times of their own.

    Args:
        config: Sizes and units.

    Attributes: reads_neighbours: Whether the operator looks at a token's neighbours itself; then tokens
            that exist are brought to the left first, so that missing tokens are no neighbours.
    """

    reads_neighbours = False

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.config = config
        self.projections = AttentionProjections(
            config.d_model,
            config.num_heads,
            config.num_kv_heads,
            config.frequencies,
            config.learns_temperature,
        )
        kv_heads, head_dim = self.projections.num_kv_heads, self.projections.head_dim
        self.sink = Sinks(config.sink, kv_heads, head_dim, config.gap)

    @property
    def dropout(self) -> float:
        """Share of weights to drop now: none outside training."""
        return self.config.dropout if self.training else 0.0

    @abstractmethod
    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Apply the operator.

        Args:
            heads: Queries, keys, values and where the keys stand in time.
            is_causal: Whether query i, at key i, sees keys up to i only.

        Returns:
            `[batch, heads, queries, head_dim]`, finite; 0 for a query that sees nothing.
        """

    def attend_apart(self, heads: Heads) -> Tensor:
        """Apply the operator for queries that are no tokens and know nothing of each other; see `attend`."""
        return self.attend(heads, is_causal=False)

    def forward(self, x: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix `x` along `length`; see `Mixer.forward`."""
        order = None
        if self.reads_neighbours and mask is not None:
            order = valid_first(mask)
            x, times, mask = (take(part, order) for part in (x, times, mask))
        heads = self._heads(x, times, x, times, mask)
        out = self.projections.merge(self.attend(heads, self.config.is_causal))
        return out if order is None else take(out, order.argsort(dim=1))

    def read(
        self, queries: Tensor, query_times: Tensor, memory: Tensor, times: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Read a sequence from queries at times of their own; each query sees all of it and no other query.

        Args:
            queries: `[batch, queries, d_model]`.
            query_times: `[batch, queries]`, in any order.
            memory: Tokens to read, `[batch, length, d_model]`.
            times: `[batch, length]`.
            mask: `[batch, length]`, true where a token exists; None: everywhere.

        Returns:
            `[batch, queries, d_model]`.
        """
        if self.reads_neighbours and mask is not None:
            memory, times, mask = (take(part, valid_first(mask)) for part in (memory, times, mask))
        heads = self._heads(queries, query_times, memory, times, mask)
        return self.projections.merge(self.attend_apart(heads))

    def _heads(
        self, queries: Tensor, query_times: Tensor, memory: Tensor, times: Tensor, mask: Tensor | None
    ) -> Heads:
        angles = self.projections.rotary.angles(times)
        k, v = self.projections.keys_values(memory, times, angles)
        q = self.projections.queries(queries, query_times, angles if query_times is times else None)
        return Heads(q, k, v, times, mask, self.sink(k, v, mask))
