"""Attention over real time as numbers: which past moments a query looked at, as a density."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys = k.detach().double()
    if sink is not None:
        key, gap = _sink_knot(sink, keys, clock)
        keys = torch.cat([key.unsqueeze(-2), keys], dim=-2)
        clock = torch.cat([clock[:1] - gap, clock])
    keys = keys.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    scores = q.detach().double() @ keys.mT * factor
    return _density(scores, clock, points, has_sink=sink is not None)


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
    """

    q: Tensor
    k: Tensor
    times: Tensor
    mask: Tensor | None
    sink: Sink | None

    def density(self, row: int = 0) -> AttentionDensity:
        """Density of the heads and queries of one row, over its keys that exist."""
        there = slice(None) if self.mask is None else self.mask[row]
        sink = self.sink
        if sink is not None and isinstance(sink.key, Tensor) and sink.key.dim() == 3:
            sink = sink._replace(key=sink.key[row])
        if sink is not None and isinstance(sink.gap, Tensor) and sink.gap.dim() == 1:
            sink = sink._replace(gap=sink.gap[row])
        return attention_density(self.q[row], self.k[row][:, there], self.times[row][there], sink=sink)


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
        layer.__dict__["attend"] = _recorder(layer.attend, readings)
    try:
        yield readings
    finally:
        for layer in layers:
            del layer.__dict__["attend"]


def _recorder(attend: Any, readings: list[Reading]) -> Any:
    def recorded(heads: Any, is_causal: bool) -> Tensor:
        sink = None if heads.sink is None else Sink(heads.sink.key, heads.sink.value, heads.sink.gap)
        readings.append(Reading(heads.q, heads.k, heads.times, heads.mask, sink))
        return attend(heads, is_causal)

    return recorded
