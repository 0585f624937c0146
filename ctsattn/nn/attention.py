"""Continuous attention as a module of its own, with a cache for decoding step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ctsattn._checks import check_rows, check_tensor
from ctsattn.nn.rotary import TimeRotary
from ctsattn.ops import Sink
from ctsattn.ops.continuous.api import attend_from

SinkKind = Literal["none", "zeros", "first", "learned"]


@dataclass
class KeyValueCache:
    """Keys, values and times that causal attention has seen; it grows by each call that it is given to.

    Decoding step by step with a cache gives the outputs of one pass over everything. One cache belongs to one
    module and one batch of sequences. A deep copy has the same tokens on the same graph, so that sequences
    that go on differently from one past train what made that past.

    Attributes:
        k: Keys `[batch, kv_heads, length, head_dim]`; None: nothing was seen yet.
        v: Values `[batch, kv_heads, length, head_dim]`.
        times: Times `[batch, length]`; None: the gaps are all 1.
        mask: `[batch, length]`, true where a token exists; None: everywhere.
    """

    k: Tensor | None = None
    v: Tensor | None = None
    times: Tensor | None = None
    mask: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def __deepcopy__(self, memo: dict[int, object]) -> KeyValueCache:
        """Copy the tokens; torch by itself copies no tensor that is on a graph."""
        del memo
        rows = (None if x is None else x.clone() for x in (self.k, self.v, self.times, self.mask))
        return KeyValueCache(*rows)

    def append(self, k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None) -> None:
        """Add tokens at the end; arguments as the attributes.

        Raises:
            ValueError: Times are given now but were not before, or the other way round.
        """
        seen = len(self)
        if self.k is not None and len(self.k) != len(k):
            raise ValueError(
                f"The cache holds a batch of {len(self.k)}, but the new tokens are a batch of {len(k)}. "
                f"Begin a new cache for another batch."
            )
        if seen and (times is None) != (self.times is None):
            old, new = ("without" if x is None else "with" for x in (self.times, times))
            raise ValueError(
                f"The cache holds {seen} tokens {old} times, but the new ones come {new} times. Give times "
                f"at every step or at none."
            )
        if mask is None and self.mask is not None:
            mask = torch.ones((k.shape[0], k.shape[2]), dtype=torch.bool, device=k.device)
        if mask is not None and self.mask is None and seen:
            self.mask = torch.ones((k.shape[0], seen), dtype=torch.bool, device=k.device)
        self.k, self.v = _join(self.k, k, dim=2), _join(self.v, v, dim=2)
        self.times = None if times is None else _join(self.times, times, dim=1)
        self.mask = None if mask is None else _join(self.mask, mask, dim=1)


def _join(seen: Tensor | None, new: Tensor, dim: int) -> Tensor:
    return new if seen is None else torch.cat([seen, new], dim=dim)


class ContinuousAttention(nn.Module):
    """Multi-head attention as an integral over real time; it stands where `nn.MultiheadAttention` stood.

    Queries, keys and values are linear maps of the tokens; keys and values are joined by straight lines in
    time, and
    softmax is integrated over them: see `ctsattn.ops.continuous_attention`.

    Args:
        d_model: Features of a token.
        num_heads: Query heads; a divisor of `d_model`.
        num_kv_heads: Key and value heads; a divisor of `num_heads`. None: as many as query heads.
        bias: Whether the linear maps add a bias.
        is_causal: Whether a token sees only itself and earlier tokens, when it attends to its own sequence.
        sink: What attention may look at besides the tokens: "none", "zeros" (key and value 0, the post's
            choice), "first" (copy of the first token) or "learned".
        sink_gap: Time between the sink and the first token, in the unit of the clock.
        dropout: Share of attention weights dropped in training.
        frequencies: Angular frequencies of rotary positions; none: no positions.
        backend: As in `continuous_attention`.

    Raises:
        ValueError: Sizes do not divide each other, or the sink's kind is unknown.

    References:
        Su, "Continuous Softmax Attention", Scientific Spaces, archives/11980.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        bias: bool = True,
        is_causal: bool = False,
        sink: SinkKind = "none",
        sink_gap: float = 1.0,
        dropout: float = 0.0,
        frequencies: Sequence[float] = (),
        backend: str | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if min(d_model, num_heads, num_kv_heads) < 1 or d_model % num_heads or num_heads % num_kv_heads:
            raise ValueError(
                f"`num_heads` must divide `d_model` and `num_kv_heads` must divide `num_heads`, all at least "
                f"1, but got d_model={d_model}, num_heads={num_heads}, num_kv_heads={num_kv_heads}."
            )
        if sink not in ("none", "zeros", "first", "learned"):
            raise ValueError(f"`sink` must be one of none, zeros, first, learned, but got {sink!r}.")
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.head_dim, self.is_causal, self.dropout = d_model // num_heads, is_causal, dropout
        self.sink_kind, self.sink_gap, self.backend = sink, sink_gap, backend
        self.to_query = nn.Linear(d_model, d_model, bias=bias)
        self.to_key, self.to_value = (
            nn.Linear(d_model, num_kv_heads * self.head_dim, bias=bias) for _ in range(2)
        )
        self.to_model = nn.Linear(d_model, d_model, bias=bias)
        self.rotary = TimeRotary(self.head_dim, frequencies)
        if sink == "learned":
            self.sink_key = nn.Parameter(torch.zeros(num_kv_heads, self.head_dim))
            self.sink_value = nn.Parameter(torch.zeros(num_kv_heads, self.head_dim))

    @classmethod
    def from_multihead(cls, attention: nn.MultiheadAttention, **options: object) -> ContinuousAttention:
        """A module with the weights of a softmax attention, copied.

        Args:
            attention: Its queries, keys and values must be of one width.
            **options: Arguments of `ContinuousAttention` beside the sizes.
        """
        if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
            raise ValueError(
                "Only an `nn.MultiheadAttention` with one width for queries, keys and values, and without "
                "`add_bias_kv` and `add_zero_attn`, can be copied: an appended key has no time."
            )
        has_bias = attention.in_proj_bias is not None
        options = {"bias": has_bias, "dropout": attention.dropout} | options
        copy = cls(attention.embed_dim, attention.num_heads, **options)  # type: ignore[arg-type]
        copy.to(attention.in_proj_weight.device, attention.in_proj_weight.dtype).train(attention.training)
        maps = (copy.to_query, copy.to_key, copy.to_value)
        with torch.no_grad():
            copy.to_model.load_state_dict(attention.out_proj.state_dict())
            for part, weight in zip(maps, attention.in_proj_weight.chunk(3), strict=True):
                part.weight.copy_(weight)
            if attention.in_proj_bias is not None:
                for part, bias in zip(maps, attention.in_proj_bias.chunk(3), strict=True):
                    part.bias.copy_(bias)
        return copy

    def forward(
        self,
        x: Tensor,
        times: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        query_times: Tensor | None = None,
        tail: Literal["observed", "hold", "cut"] = "observed",
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attend to the tokens of `x` itself, or to those of `memory`.

        Args:
            x: Tokens that ask, `[batch, queries, d_model]`.
            times: Times of the tokens that are asked, `[batch, keys]` or `[keys]`: those of `memory` if it is
                given, else of `x`. None: they are 1 apart.
            mask: `[batch, keys]`, true where such a token exists; None: everywhere.
            memory: Tokens that are asked, `[batch, keys, d_model]`; None: `x`.
            query_times: Times of `x`, `[batch, queries]` or `[queries]`, for `memory` only. A causal module
                then lets a query see what is not later than itself.
            tail: Where the interval of such a query ends, as in `continuous_attention`.
            cache: What a causal module saw before `x`; `x` is added to it.

        Returns:
            `[batch, queries, d_model]`.

        Raises:
            TypeError: Times or a mask that are no tensors.
            ValueError: Arguments that do not go together, or that do not fit the tokens; the message says
                which.
        """
        for name, given in (("times", times), ("mask", mask)):
            if given is not None:
                check_tensor(name, given)
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(
                f"`x` must have the shape [batch, queries, {self.d_model}], but its shape is {list(x.shape)}."
            )
        self._check(times, memory, query_times, cache)
        source = x if memory is None else memory
        q = self._heads(self.to_query(x), self.num_heads)
        k, v = (self._heads(to(source), self.num_kv_heads) for to in (self.to_key, self.to_value))
        batch, keys, device = source.shape[0], source.shape[1], source.device
        times = None if times is None else check_rows("times", times, batch, keys, device)
        mask = None if mask is None else check_rows("mask", mask, batch, keys, device)
        if self.rotary.frequencies.numel() and times is not None:
            own = times if memory is None else query_times
            q = q if own is None else self.rotary(q, own.expand(x.shape[0], -1))
            k = self.rotary(k, times)
        start = 0
        if cache is not None:
            start = len(cache)
            cache.append(k, v, times, mask)
            k, v, times, mask = cache.k, cache.v, cache.times, cache.mask
            assert k is not None and v is not None
        out = attend_from(
            start,
            q,
            k,
            v,
            times,
            query_times=query_times,
            key_mask=mask,
            is_causal=self.is_causal and (memory is None or query_times is not None),
            sink=self._sink(),
            tail=tail,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=True,
            backend=self.backend,
        )
        return self.to_model(out.transpose(1, 2).flatten(-2))

    def _check(
        self,
        times: Tensor | None,
        memory: Tensor | None,
        query_times: Tensor | None,
        cache: KeyValueCache | None,
    ) -> None:
        """Check that arguments of `forward` go together."""
        if memory is None and query_times is not None:
            raise ValueError("`query_times` go with `memory`; where there is none, `times` are those of `x`.")
        if cache is not None and not (self.is_causal and memory is None):
            raise ValueError(
                "A `cache` is for a causal module that attends to its own sequence: build the module with "
                "`is_causal=True`, and give no `memory`."
            )
        turns = self.rotary.frequencies.numel() > 0
        if turns and (times is None or (memory is not None and query_times is None)):
            raise ValueError(
                "Rotary positions need the time of every token: give `times`, and beside `memory` also "
                "`query_times`."
            )

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """Split `[batch, length, heads * head_dim]` into `[batch, heads, length, head_dim]`."""
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def _sink(self) -> Sink | None:
        """The sink of this module."""
        match self.sink_kind:
            case "none":
                return None
            case "zeros":
                return Sink(0.0, 0.0, self.sink_gap)
            case "first":
                return Sink("first", "first", self.sink_gap)
        return Sink(self.sink_key, self.sink_value, self.sink_gap)

    def extra_repr(self) -> str:
        """Sizes and what else tells one module from another."""
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"is_causal={self.is_causal}, sink={self.sink_kind!r}"
        )
