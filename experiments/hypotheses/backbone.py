"""The network of the study: the same for all arms but for the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ctsattn.nn.decoder import QueryDecoder
from ctsattn.nn.encoder import Encoder
from ctsattn.nn.mixers import MixerConfig
from ctsattn.nn.rotary import frequency_ladder
from experiments.hypotheses.imputation import imputed
from experiments.hypotheses.tasks import Windows

VALUE_FEATURES = 3  # value, log(1 + gap), whether the token exists


@dataclass(frozen=True)
class Design:
    """Everything of the network that the plan fixes.

    Attributes:
        d_model: Features of a token.
        num_layers: Encoder layers; the decoder has one.
        num_heads: Heads.
        dropout: Share of features dropped in training.
        positions: "time" turns queries and keys by elapsed time, "partial" half of their features, "none"
            leaves them. "index" has observations counted, as if they were 1 apart, wherever the operator or
            the angles look at times.
        max_angle: Angle that the fastest rotation turns by within one median gap.
        sink: Kind of the sink, the same in all arms.
        is_causal: Whether the encoder is causal.
        interval: Where integrals begin and end, "left" or "symmetric".
        learns_temperature: Whether each head learns the temperature of its scores.
    """

    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    dropout: float = 0.1
    positions: str = "time"
    max_angle: float = 0.5
    sink: str = "zeros"
    is_causal: bool = True
    interval: Literal["left", "symmetric"] = "left"
    learns_temperature: bool = True


class Backbone(nn.Module):
    """One token per observation; the future is read by queries that carry their times.

    Args:
        mixer: Name in `MIXERS`.
        design: What the plan fixes.
        lookback: Observations shown; in median gaps about the span that must be told apart.
        imputes: Whether what is shown is first interpolated to a regular grid of `lookback` points.
    """

    def __init__(self, mixer: str, design: Design, lookback: int, imputes: bool = False) -> None:
        super().__init__()
        self.imputes, self.is_causal = imputes, design.is_causal
        head_dim = design.d_model // design.num_heads
        ladder = frequency_ladder(head_dim // 2, float(lookback), 1.0, max_angle=design.max_angle)
        self.counts = design.positions == "index"
        turning = {"none": (), "partial": ladder[::2]}.get(design.positions, ladder)
        config = MixerConfig(
            design.d_model,
            design.num_heads,
            frequencies=turning,
            sink=design.sink,
            is_causal=design.is_causal,
            interval=design.interval,
            learns_temperature=design.learns_temperature,
        )
        self.rates: Tensor
        self.register_buffer("rates", torch.tensor(ladder), persistent=False)
        self.embed = nn.Linear(VALUE_FEATURES, design.d_model)
        self.ask = nn.Linear(2 * len(ladder) + 1, design.d_model)
        d_ff = 2 * design.d_model
        self.encoder = Encoder(design.num_layers, mixer, config, d_ff, "gelu", design.dropout)
        self.decoder = QueryDecoder(1, mixer, config, d_ff, "gelu", design.dropout, mix_channels=False)
        self.answer = nn.Linear(design.d_model, 1)

    def forward(self, shown: Windows) -> Tensor:
        """Forecast `[batch, horizon]` from windows of shapes `[batch, lookback]`."""
        shown = imputed(shown) if self.imputes else shown
        times, mask = shown.past_times, shown.past_mask
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = (shown.past_values * mask).sum(-1, keepdim=True) / count
        spread = (((shown.past_values - mean) * mask).square().sum(-1, keepdim=True) / count + 1e-4).sqrt()
        values = (shown.past_values - mean) / spread * mask
        gaps = torch.diff(times, dim=-1, prepend=times[..., :1])
        tokens = self.embed(torch.stack([values, torch.log1p(gaps), mask.to(values.dtype)], dim=-1))
        asked = shown.future_times
        if self.counts:
            times, asked = _counted(mask, asked)
        # padding stands on the right, where no causal token sees it; without a mask nothing looks for it
        memory = self.encoder(tokens, times, None if self.is_causal else mask)
        angles = shown.future_times.unsqueeze(-1) * self.rates
        wait = torch.log1p(shown.future_times).unsqueeze(-1)
        queries = self.ask(torch.cat([angles.sin(), angles.cos(), wait], dim=-1))
        read = self.decoder(
            queries.unsqueeze(1), asked, memory.unsqueeze(1), times.unsqueeze(1), mask.unsqueeze(1)
        )
        return self.answer(read[:, 0]).squeeze(-1) * spread + mean


def _counted(mask: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Places of observations in place of times: the last shown is at 0, the first asked for at 1."""
    place = mask.cumsum(-1) - mask.sum(-1, keepdim=True)
    ahead = torch.arange(1, asked.shape[-1] + 1, device=asked.device)
    return place.to(asked.dtype), ahead.expand(asked.shape).to(asked.dtype)
