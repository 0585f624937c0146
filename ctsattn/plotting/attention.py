"""Attention over real time as numbers: which past moments a query looked at, as a density or as shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctsattn.nn import MIXERS
from ctsattn.ops import Sink
from ctsattn.phi import phi1


@dataclass(frozen=True)
class AttentionDensity:
    """How a query spreads its attention over real time.

    Attributes:
        times: `[points]` moments, ascending; piece borders appear twice.
        values: `[..., points]` density per unit of time; it integrates to `1 - on_sink`.
        on_sink: `[...]` share that fell on the sink instead of any moment.
    """

    times: NDArray[np.float64]
    values: NDArray[np.float64]
    on_sink: NDArray[np.float64]


@dataclass(frozen=True)
class AttentionShares:
    """How a query spreads its attention over observations, where attention is a sum and not an integral.

    Attributes:
        times: `[keys]` times of the observations, ascending.
        values: `[..., keys]` share of each; they add up to `1 - on_sink`.
        on_sink: `[...]` share that fell on the sink instead of any observation.
    """

    times: NDArray[np.float64]
    values: NDArray[np.float64]
    on_sink: NDArray[np.float64]


def attention_density(
    q: Tensor,
    k: Tensor,
    times: Tensor,
    *,
    scale: float | None = None,
    sink: Sink | None = None,
    points: int = 12,
) -> AttentionDensity:
    r"""Density of continuous attention over real time, of queries that see all keys.

    $$\rho(s) = e^{q \cdot k(s)} \Big/ \int e^{q \cdot k(s')}\, ds'$$

    with keys joined by straight lines, so the output of the operator is $\int \rho(s)\, v(s)\, ds$.

    Args:
        q: `[heads, queries, head_dim]`.
        k: `[kv_heads, keys, head_dim]`; each serves `heads / kv_heads` query heads.
        times: `[keys]`, ascending, not all equal.
        scale: Factor on the scores; None: `1 / sqrt(head_dim)`.
        sink: The knot before the first, its key `[kv_heads, head_dim]`; None: none. Its value is not used.
        points: Moments in each piece at which the curve is given, both ends included.

    Returns:
        The density of each head and query, `[heads, queries, points]`.

    Raises:
        ValueError: If all keys are at one time: there is no time to spread attention over.

    Examples:
        >>> times = torch.tensor([0.0, 1.0, 3.0])
        >>> density = attention_density(torch.zeros(1, 1, 2), torch.randn(1, 3, 2), times)
        >>> bool(np.allclose(density.values, 1 / 3))
        True
    """
    clock = times.detach().double()
    if not bool((clock.diff() > 0).any()):
        raise ValueError("All keys are at one time, so attention has no time to spread over.")
    scores, clock = _scores(q, k, clock, scale, sink)
    return _density(scores, clock, points, has_sink=sink is not None)


def attention_shares(
    q: Tensor, k: Tensor, times: Tensor, *, scale: float | None = None, sink: Sink | None = None
) -> AttentionShares:
    """Shares of softmax attention, of queries that see all keys; arguments as in `attention_density`.

    Returns:
        The shares of each head and query, `[heads, queries, keys]`.

    Examples:
        >>> times = torch.tensor([0.0, 1.0, 3.0])
        >>> shares = attention_shares(torch.zeros(1, 1, 2), torch.randn(1, 3, 2), times)
        >>> bool(np.allclose(shares.values, 1 / 3))
        True
    """
    clock = times.detach().double()
    scores, _ = _scores(q, k, clock, scale, sink)
    weights = scores.softmax(dim=-1).numpy()
    if sink is None:
        return AttentionShares(clock.numpy(), weights, np.zeros(weights.shape[:-1]))
    return AttentionShares(clock.numpy(), weights[..., 1:], weights[..., 0])


def _scores(
    q: Tensor, k: Tensor, clock: Tensor, scale: float | None, sink: Sink | None
) -> tuple[Tensor, Tensor]:
    """Scores `[heads, queries, knots]` and times `[knots]`, those of the sink in front if there is one."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys = k.detach().double()
    if sink is not None:
        key, gap = _sink_knot(sink, keys, clock)
        keys = torch.cat([key.unsqueeze(-2), keys], dim=-2)
        clock = torch.cat([clock[:1] - gap, clock])
    keys = keys.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    return q.detach().double() @ keys.mT * factor, clock


def _sink_knot(sink: Sink, keys: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
    """Key `[kv_heads, head_dim]` and gap `[]` of a sink, whichever way they were given."""
    first = keys[..., 0, :]
    key = first if isinstance(sink.key, str) else torch.as_tensor(sink.key).detach().double().expand_as(first)
    gap = clock.diff().median() if isinstance(sink.gap, str) else torch.as_tensor(sink.gap).detach().double()
    return key, gap.reshape(())


def _density(scores: Tensor, clock: Tensor, points: int, *, has_sink: bool) -> AttentionDensity:
    """The density of scores `[..., knots]` at knots `[knots]`, the first of which may be the sink."""
    scores = scores - scores.amax(dim=-1, keepdim=True)
    left, rise, gap = scores[..., :-1], scores.diff(dim=-1), clock.diff()
    mass = gap * torch.where(
        rise > 0, (left + rise).exp() * phi1(-rise.abs()), left.exp() * phi1(-rise.abs())
    )
    total = mass.sum(dim=-1, keepdim=True)
    inside = torch.linspace(0, 1, points, dtype=torch.float64)
    pieces = (gap > 0).nonzero().flatten()
    pieces = pieces[pieces > 0] if has_sink else pieces
    at = clock[pieces, None] + gap[pieces, None] * inside
    height = (left[..., pieces, None] + rise[..., pieces, None] * inside).exp() / total[..., None]
    on_sink = mass[..., 0] / total[..., 0] if has_sink else torch.zeros_like(total[..., 0])
    return AttentionDensity(at.flatten().numpy(), height.flatten(-2).numpy(), on_sink.numpy())


@dataclass(frozen=True)
class Reading:
    """What one attention layer was asked: the operands of its operator, row by row.

    Attributes:
        q: `[rows, heads, queries, head_dim]`.
        k: `[rows, kv_heads, keys, head_dim]`.
        times: `[rows, keys]`.
        mask: `[rows, keys]`, true where a key exists, or None.
        sink: The sink of all rows, or None.
        is_sum: Whether the operator sums over keys; else it integrates over time.
    """

    q: Tensor
    k: Tensor
    times: Tensor
    mask: Tensor | None
    sink: Sink | None
    is_sum: bool = False

    def density(self, row: int = 0) -> AttentionDensity | AttentionShares:
        """Density, or shares, of the heads and queries of one row, over its keys that exist."""
        there = slice(None) if self.mask is None else self.mask[row]
        sink = self.sink
        if sink is not None and isinstance(sink.key, Tensor) and sink.key.dim() == 3:
            sink = sink._replace(key=sink.key[row])
        if sink is not None and isinstance(sink.gap, Tensor) and sink.gap.dim() == 1:
            sink = sink._replace(gap=sink.gap[row])
        read = attention_shares if self.is_sum else attention_density
        return read(self.q[row], self.k[row][:, there], self.times[row][there], sink=sink)


@contextmanager
def watch_attention(network: nn.Module, under: str = "decoder") -> Iterator[list[Reading]]:
    """Record what the attention layers of a network are asked while the context is open.

    Args:
        network: Any module with mixers that have a method `attend`.
        under: Only layers whose name holds this word: the decoder's read the past for each query time.

    Yields:
        A list that fills with one `Reading` for each call of a layer, in order.
    """
    readings: list[Reading] = []
    layers = [part for name, part in network.named_modules() if under in name and hasattr(part, "attend")]
    for layer in layers:
        layer.__dict__["attend"] = _recorder(layer, readings)
    try:
        yield readings
    finally:
        for layer in layers:
            del layer.__dict__["attend"]


def _recorder(layer: Any, readings: list[Reading]) -> Any:
    attend, is_sum = layer.attend, isinstance(layer, MIXERS["softmax"])

    def recorded(heads: Any, is_causal: bool) -> Tensor:
        sink = None if heads.sink is None else Sink(heads.sink.key, heads.sink.value, heads.sink.gap)
        readings.append(Reading(heads.q, heads.k, heads.times, heads.mask, sink, is_sum))
        return attend(heads, is_causal)

    return recorded
