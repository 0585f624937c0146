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
from torch.func import functional_call, vmap
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
        rows = tokens.flatten(1).unsqueeze(-1).expand(-1, -1, self.weight.shape[-1])
        return self.weight.gather(1, rows).unflatten(1, tokens.shape[1:])


class Operator(nn.Module):
    """The attention operator of a mixer, on heads, without the mixer's projections.

    Args:
        mixer: Name in `MIXERS`.
        size: Sizes.

    Raises:
        ValueError: The mixer is no attention.
    """

    def __init__(self, mixer: str, size: Size) -> None:
        super().__init__()
        built = MIXERS[mixer](MixerConfig(size.d_model, size.num_heads))
        if not isinstance(built, AttentionMixer):
            raise ValueError(f"`{mixer}` is no attention. Give one of those that derive from AttentionMixer.")
        built.projections = nn.Identity()  # type: ignore[assignment]
        self.mixer = built.eval()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, clock: Tensor) -> Tensor:
        """Attend causally, with a sink of key and value 0; `[batch, heads, length, head_dim]` each."""
        zero = torch.zeros_like(k[:, :, 0])
        heads = Heads(q, k, v, clock, None, SinkToken(zero, zero, 1.0))
        return self.mixer.attend(heads, is_causal=True)


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
        self.own = nn.ParameterDict()  # parameters of the operator, where it has some

    def give(self, operator: Operator) -> None:
        """Take in what an operator has to learn, for each seed."""
        seeds = len(self.project.weight)
        for name, value in operator.named_parameters():
            copies = value.detach().expand(seeds, *value.shape).clone()
            self.own[name.replace(".", "_")] = nn.Parameter(copies)

    def forward(self, x: Tensor, times: Tensor, operator: Operator) -> Tensor:
        """Map tokens `[seeds, batch, length, d_model]` at `times` `[seeds, batch, length]`."""
        x = x + self._drop(self.merge(self._attend(self.mixer_norm(x), times, operator)))
        return x + self._drop(self.down(F.gelu(self.up(self.feedforward_norm(x)))))

    def _attend(self, x: Tensor, times: Tensor, operator: Operator) -> Tensor:
        shape, clock = x.shape, times.flatten(0, 1)
        parts = self.project(x).flatten(0, 1).unflatten(-1, (3, self.size.num_heads, self.size.head_dim))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q, clock), self.rotary(k, clock)
        sharp = torch.exp(-self.log_temperature)
        q = (q.unflatten(0, shape[:2]) * sharp).flatten(0, 1)
        own = {name: self.own[name.replace(".", "_")] for name, _ in operator.named_parameters()}
        out = _for_each_seed(operator, own, shape[0], q, k, v, clock) if own else operator(q, k, v, clock)
        return out.transpose(1, 2).flatten(-2).unflatten(0, shape[:2])

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.size.dropout, self.training)


def _for_each_seed(operator: Operator, own: dict[str, Tensor], seeds: int, *parts: Tensor) -> Tensor:
    """Apply an operator whose parameters each seed has its own of; `parts` `[seeds * batch, ...]`."""

    def one(state: dict[str, Tensor], *parts: Tensor) -> Tensor:
        return functional_call(operator, state, parts)

    return vmap(one)(own, *(part.unflatten(0, (seeds, -1)) for part in parts)).flatten(0, 1)


class StackedNetwork(nn.Module):
    """Embedding, layers and a linear answer, for all seeds; every arm has the same sink, of key and value 0.

    Args:
        seeds: The seeds.
        size: Sizes.
        inputs: Features of an input, or the size of the vocabulary.
        outputs: Numbers answered for each token.
        frequencies: Angular frequencies of the rotary positions; none: no positions.
        tokens: Whether inputs are tokens of a vocabulary.
        mixer: Name in `MIXERS` of the operator to begin with.

    Attributes: mixer: Name of the present operator.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        size: Size,
        inputs: int,
        outputs: int,
        frequencies: Sequence[float] = (),
        tokens: bool = False,
        mixer: str = "softmax",
    ) -> None:
        super().__init__()
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        embed = StackedEmbedding if tokens else StackedLinear
        self.embed = embed(draws, inputs, size.d_model)
        self.layers = nn.ModuleList(StackedLayer(draws, size, frequencies) for _ in range(size.num_layers))
        self.norm = StackedNorm(len(draws), size.d_model)
        self.answer = StackedLinear(draws, size.d_model, outputs)
        self.size = size
        for layer in self.layers:
            layer.give(Operator(mixer, size))
        self.switch(mixer)

    def switch(self, mixer: str) -> None:
        """Attend with the operator of `mixer` from now on; parameters stay.

        Raises:
            ValueError: The operator has parameters that this network was not built with.
        """
        operator = Operator(mixer, self.size).to(self.norm.weight.device)
        wanted, had = (len(list(x.parameters())) for x in (operator, self.layers[0].own))
        if wanted > had:
            raise ValueError(f"`{mixer}` has parameters of its own. Build the network with it.")
        # in a tuple, so that its parameters, which the layers hold for each seed, are no part of this network
        self.mixer, self._operator = mixer, (operator,)

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
