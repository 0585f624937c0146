"""Projections of attention: queries, grouped keys and values, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ctsattn.nn.rotary import TimeRotary


class AttentionProjections(nn.Module):
    """Linear maps to queries, keys and values with time-rotary angles, and from heads back to the model.

    Each head has a learned temperature on its queries, so that an operator whose weights cannot be as sharp
    as another's at equal scores can make up for it.

    Args:
        d_model: Features of a token.
        num_heads: Query heads; a divisor of `d_model`.
        num_kv_heads: Key and value heads; a divisor of `num_heads`. None: as many as query heads.
        frequencies: Angular frequencies of the rotary angles; none: no positions.
        learns_temperature: Whether the temperature is learned; else it stays 1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        frequencies: Sequence[float] = (),
        learns_temperature: bool = True,
    ) -> None:
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        if d_model % num_heads or num_heads % num_kv_heads:
            raise ValueError(
                f"`num_heads` must divide `d_model` and `num_kv_heads` must divide `num_heads`, but got "
                f"d_model={d_model}, num_heads={num_heads}, num_kv_heads={num_kv_heads}."
            )
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, d_model // num_heads
        self.to_query = nn.Linear(d_model, d_model, bias=False)
        self.to_key_value = nn.Linear(d_model, 2 * num_kv_heads * self.head_dim, bias=False)
        self.to_model = nn.Linear(d_model, d_model, bias=False)
        self.log_temperature: Tensor
        if learns_temperature:
            self.log_temperature = nn.Parameter(torch.zeros(num_heads))
        else:
            self.register_buffer("log_temperature", torch.zeros(num_heads), persistent=False)
        self.rotary = TimeRotary(self.head_dim, frequencies)

    def queries(self, x: Tensor, times: Tensor, angles: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Queries `[batch, heads, queries, head_dim]` of `x` `[batch, queries, d_model]` at their `times`.

        `angles` are those of `TimeRotary.angles` at the times, where they are known.
        """
        angles = self.rotary.angles(times) if angles is None else angles
        # the temperatures scale the small map instead of all queries
        sharpness = torch.exp(-self.log_temperature).repeat_interleave(self.head_dim)
        q = nn.functional.linear(x, self.to_query.weight * sharpness[:, None])
        return self.rotary.turn(q.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2), angles)

    def keys_values(
        self, x: Tensor, times: Tensor, angles: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values `[batch, kv_heads, length, head_dim]` of `x` `[batch, length, d_model]`.

        `angles` as for `queries`.
        """
        angles = self.rotary.angles(times) if angles is None else angles
        both = self.to_key_value(x).unflatten(-1, (2, self.num_kv_heads, self.head_dim))
        k, v = both.permute(2, 0, 3, 1, 4)
        return self.rotary.turn(k, angles), v

    def merge(self, heads: Tensor) -> Tensor:
        """Bring heads `[batch, heads, queries, head_dim]` back to `[batch, queries, d_model]`."""
        return self.to_model(heads.transpose(1, 2).flatten(-2))
