"""Decoder: asks the encoded channels at arbitrary times; no query sees another query."""

from __future__ import annotations

from torch import Tensor, nn

from ctsattn._checks import named
from ctsattn.nn.dropout import Dropout
from ctsattn.nn.encoder import StochasticDepth
from ctsattn.nn.feedforward import FEEDFORWARDS
from ctsattn.nn.mixers import MIXERS, AttentionMixer, MixerConfig
from ctsattn.nn.mixers.softmax import softmax_attention
from ctsattn.nn.projections import AttentionProjections


def reader(mixer: str, config: MixerConfig) -> AttentionMixer:
    """The attention that reads a sequence at query times: the mixer's own, or softmax for a recurrence."""
    asked = named("mixer", mixer, MIXERS)
    kind = asked if issubclass(asked, AttentionMixer) else MIXERS["softmax"]
    built = kind(config)
    assert isinstance(built, AttentionMixer)
    return built


class ChannelMixing(nn.Module):
    """Attention between the channels of one query; channels have no order.

    Args:
        d_model: Features of a token.
        num_heads: Heads; a divisor of `d_model`.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.projections = AttentionProjections(d_model, num_heads)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """Mix `x` `[batch, channels, queries, d_model]` over the channels `present` `[batch, channels]`."""
        batch, channels, queries, _ = x.shape
        tokens = x.transpose(1, 2).flatten(0, 1)
        no_times = tokens.new_zeros(tokens.shape[:2])
        k, v = self.projections.keys_values(tokens, no_times)
        visible = present[:, None].expand(batch, queries, channels).reshape(-1, 1, 1, channels)
        mixed = softmax_attention(self.projections.queries(tokens, no_times), k, v, visible)
        return self.projections.merge(mixed).unflatten(0, (batch, queries)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """One layer: each query reads its channel's past, then the channels of the query confer.

    Args:
        mixer: Name in `MIXERS` of the operator that reads the past.
        config: Sizes and units of that operator.
        d_ff: Width of the feed-forward network.
        feedforward: Name in `FEEDFORWARDS`.
        dropout: Share of features dropped after each part in training.
        drop_path: Share of rows whose branch is dropped in training.
        mix_channels: Whether channels confer.
    """

    def __init__(
        self,
        mixer: str,
        config: MixerConfig,
        d_ff: int,
        feedforward: str = "swiglu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        mix_channels: bool = True,
    ) -> None:
        super().__init__()
        d_model = config.d_model
        self.read_norm, self.feedforward_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.reader = reader(mixer, config)
        self.channel_norm = nn.LayerNorm(d_model) if mix_channels else None
        self.channels = ChannelMixing(d_model, config.num_heads) if mix_channels else None
        self.feedforward = named("feedforward", feedforward, FEEDFORWARDS)(d_model, d_ff, dropout)
        self.drop = nn.Sequential(Dropout(dropout), StochasticDepth(drop_path))

    def forward(self, x: Tensor, query_times: Tensor, memory: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Decode one layer; shapes as in `QueryDecoder.forward`."""
        batch, channels, queries, _ = x.shape
        asked = query_times[:, None].expand(batch, channels, queries).flatten(0, 1)
        flat = self.read_norm(x).flatten(0, 1)
        read = self.reader.read(flat, asked, memory.flatten(0, 1), times.flatten(0, 1), mask.flatten(0, 1))
        x = x + self.drop(read.unflatten(0, (batch, channels)))
        if self.channels is not None and self.channel_norm is not None:
            x = x + self.drop(self.channels(self.channel_norm(x), mask.any(dim=-1)))
        return x + self.drop(self.feedforward(self.feedforward_norm(x)))


class QueryDecoder(nn.Module):
    """A stack of `DecoderLayer`s; arguments as there."""

    def __init__(
        self,
        num_layers: int,
        mixer: str,
        config: MixerConfig,
        d_ff: int,
        feedforward: str = "swiglu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        mix_channels: bool = True,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(mixer, config, d_ff, feedforward, dropout, drop_path, mix_channels)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor, query_times: Tensor, memory: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Answer the queries.

        Args:
            x: Embedded queries, one for each channel, `[batch, channels, queries, d_model]`.
            query_times: `[batch, queries]`, in any order.
            memory: Encoded tokens `[batch, channels, length, d_model]`.
            times: Their times `[batch, channels, length]`.
            mask: `[batch, channels, length]`, true where a token exists.

        Returns:
            `[batch, channels, queries, d_model]`.
        """
        for layer in self.layers:
            x = layer(x, query_times, memory, times, mask)
        return self.norm(x)
