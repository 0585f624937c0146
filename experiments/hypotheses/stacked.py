"""A causal network whose parameters carry a leading seed axis, for the controls.

All seeds run in one product of matrices, and the operator can be exchanged in the middle of training, as
the switch experiment needs it. Seed s draws its weights from a generator that knows only s, so all arms begin
with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctsattn.nn.mixers import MIXERS, AttentionMixer, MixerConfig
from ctsattn.nn.mixers.base import Heads, SinkToken
from ctsattn.nn.rotary import TimeRotary


@dataclass(frozen=True)
class Size:
    """Sizes of the network.

    Attributes:
        d_model: Features of a token.
        num_layers: Layers.
        num_heads: Heads.
        dropout: Share of features dropped after each branch in training.
    """

    d_model: int = 128
    num_layers: int = 4
    num_heads: int = 4
    dropout: float = 0.0

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.d_model // self.num_heads


class StackedLinear(nn.Module):
    """One linear map for each seed, drawn as `nn.Linear` draws its own.

    Args:
        draws: A generator for each seed.
        inputs: Features that come in.
        outputs: Features that go out.
    """

    def __init__(self, draws: Sequence[torch.Generator], inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        weights = [torch.rand(inputs, outputs, generator=g) * 2 - 1 for g in draws]
        self.weight = nn.Parameter(torch.stack(weights) * bound)
        self.bias = nn.Parameter(torch.zeros(len(draws), 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` `[seeds, batch, length, inputs]`."""
        return torch.baddbmm(self.bias, x.flatten(1, 2), self.weight).unflatten(1, x.shape[1:3])


class StackedNorm(nn.Module):
    """One layer norm for each seed."""

    def __init__(self, seeds: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(seeds, 1, 1, width))
        self.bias = nn.Parameter(torch.zeros(seeds, 1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` `[seeds, batch, length, width]`."""
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class StackedEmbedding(nn.Module):
    """One table of token vectors for each seed."""

    def __init__(self, draws: Sequence[torch.Generator], vocabulary: int, width: int) -> None:
        super().__init__()
        tables = [torch.randn(vocabulary, width, generator=g) for g in draws]
        self.weight = nn.Parameter(torch.stack(tables) * 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look `tokens` `[seeds, batch, length]` up."""
        seeds, vocabulary, width = self.weight.shape
        shift = torch.arange(seeds, device=tokens.device)[:, None, None] * vocabulary
        return F.embedding(tokens + shift, self.weight.reshape(-1, width))


def operator(mixer: str, size: Size) -> AttentionMixer:
    """An attention operator without learned parts of its own, for `StackedNetwork.operator`.

    Raises:
        ValueError: The mixer has parameters in its operator, so seeds cannot share it.
    """
    built = MIXERS[mixer](MixerConfig(size.d_model, size.num_heads))
    own = [name for name, _ in built.named_parameters() if not name.startswith("projections.")]
    if own or not isinstance(built, AttentionMixer):
        raise ValueError(f"The operator `{mixer}` has parameters of its own; give one that has none.")
    return built.eval()


class StackedLayer(nn.Module):
    """Causal attention and a feed-forward network, pre-normalised, for all seeds.

    Args:
        draws: A generator for each seed.
        size: Sizes.
        frequencies: Angular frequencies of the rotary positions; none: no positions.
    """

    def __init__(
        self, draws: Sequence[torch.Generator], size: Size, frequencies: Sequence[float] = ()
    ) -> None:
        super().__init__()
        seeds, width = len(draws), size.d_model
        self.size = size
        self.mixer_norm, self.feedforward_norm = (StackedNorm(seeds, width) for _ in range(2))
        self.project = StackedLinear(draws, width, 3 * width)
        self.merge = StackedLinear(draws, width, width)
        self.log_temperature = nn.Parameter(torch.zeros(seeds, 1, size.num_heads, 1, 1))
        self.up, self.down = StackedLinear(draws, width, 4 * width), StackedLinear(draws, 4 * width, width)
        self.rotary = TimeRotary(size.head_dim, frequencies)

    def forward(self, x: Tensor, times: Tensor, mixer: AttentionMixer) -> Tensor:
        """Map tokens `[seeds, batch, length, d_model]` at `times` `[seeds, batch, length]`."""
        x = x + self._drop(self.merge(self._attend(self.mixer_norm(x), times, mixer)))
        return x + self._drop(self.down(F.gelu(self.up(self.feedforward_norm(x)))))

    def _attend(self, x: Tensor, times: Tensor, mixer: AttentionMixer) -> Tensor:
        shape, clock = x.shape, times.flatten(0, 1)
        parts = self.project(x).flatten(0, 1).unflatten(-1, (3, self.size.num_heads, self.size.head_dim))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q, clock), self.rotary(k, clock)
        sharp = torch.exp(-self.log_temperature)
        q = (q.unflatten(0, shape[:2]) * sharp).flatten(0, 1)
        zero = torch.zeros_like(k[:, :, 0])
        out = mixer.attend(Heads(q, k, v, clock, None, SinkToken(zero, zero, 1.0)), is_causal=True)
        return out.transpose(1, 2).flatten(-2).unflatten(0, shape[:2])

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.size.dropout, self.training)


class StackedNetwork(nn.Module):
    """Embedding, layers and a linear answer, for all seeds; every arm has the same sink, of key and value 0.

    Args:
        seeds: The seeds.
        size: Sizes.
        inputs: Features of an input, or the size of the vocabulary.
        outputs: Numbers answered for each token.
        frequencies: Angular frequencies of the rotary positions; none: no positions.
        tokens: Whether inputs are tokens of a vocabulary.

    Attributes: operator: The attention operator; it may be exchanged at any time.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        size: Size,
        inputs: int,
        outputs: int,
        frequencies: Sequence[float] = (),
        tokens: bool = False,
    ) -> None:
        super().__init__()
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        embed = StackedEmbedding if tokens else StackedLinear
        self.embed = embed(draws, inputs, size.d_model)
        self.layers = nn.ModuleList(StackedLayer(draws, size, frequencies) for _ in range(size.num_layers))
        self.norm = StackedNorm(len(draws), size.d_model)
        self.answer = StackedLinear(draws, size.d_model, outputs)
        self.size = size
        self.switch("softmax")

    def switch(self, mixer: str) -> None:
        """Attend with the operator of `mixer` from now on; parameters stay."""
        # in a tuple, so that projections that the operator does not need are no part of this network
        self.mixer, self._operator = mixer, (operator(mixer, self.size),)

    def forward(self, inputs: Tensor, times: Tensor) -> Tensor:
        """Answer `[seeds, batch, length, outputs]` at each token.

        Args:
            inputs: Tokens `[seeds, batch, length]`, or features `[seeds, batch, length, inputs]`.
            times: Times of the tokens `[seeds, batch, length]`.
        """
        x = self.embed(inputs)
        for layer in self.layers:
            x = layer(x, times, self._operator[0])
        return self.answer(self.norm(x))
