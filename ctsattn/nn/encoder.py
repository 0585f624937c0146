"""Encoder: layers of a mixer along time and a feed-forward network, pre-normalised."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctsattn._checks import named
from ctsattn.nn.dropout import Dropout
from ctsattn.nn.feedforward import FEEDFORWARDS
from ctsattn.nn.mixers import MIXERS, MixerConfig


class StochasticDepth(nn.Module):
    """Drop a whole residual branch, for some rows of the batch, in training.

    Args:
        rate: Probability that a row's branch is dropped; kept branches grow by `1 / (1 - rate)`.

    References:
        Huang et al., "Deep networks with stochastic depth" (2016).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """Drop rows of `branch` `[batch, ...]`."""
        if not self.training or self.rate == 0.0:
            return branch
        shape = (len(branch),) + (1,) * (branch.dim() - 1)
        keep = torch.empty(shape, device=branch.device, dtype=branch.dtype).bernoulli_(1 - self.rate)
        return branch * keep / (1 - self.rate)


class EncoderLayer(nn.Module):
    """One layer: tokens mix along time, then each passes a feed-forward network.

    Args:
        mixer: Name in `MIXERS`.
        config: Sizes and units of the mixer.
        d_ff: Width of the feed-forward network.
        feedforward: Name in `FEEDFORWARDS`.
        dropout: Share of features dropped after each part in training.
        drop_path: Share of rows whose branch is dropped in training.
    """

    def __init__(
        self,
        mixer: str,
        config: MixerConfig,
        d_ff: int,
        feedforward: str = "swiglu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.mixer_norm, self.feedforward_norm = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.mixer = named("mixer", mixer, MIXERS)(config)
        self.feedforward = named("feedforward", feedforward, FEEDFORWARDS)(config.d_model, d_ff, dropout)
        self.drop = nn.Sequential(Dropout(dropout), StochasticDepth(drop_path))

    def forward(self, x: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens `[batch, length, d_model]` at `times` `[batch, length]` to the same shape."""
        x = x + self.drop(self.mixer(self.mixer_norm(x), times, mask))
        return x + self.drop(self.feedforward(self.feedforward_norm(x)))


class Encoder(nn.Module):
    """A stack of `EncoderLayer`s; arguments as there, `drop_path` growing linearly to the last layer."""

    def __init__(
        self,
        num_layers: int,
        mixer: str,
        config: MixerConfig,
        d_ff: int,
        feedforward: str = "swiglu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(mixer, config, d_ff, feedforward, dropout, drop_path * (i + 1) / num_layers)
            for i in range(num_layers)
        )
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode tokens `[batch, length, d_model]` at `times` `[batch, length]`."""
        for layer in self.layers:
            x = layer(x, times, mask)
        return self.norm(x)
