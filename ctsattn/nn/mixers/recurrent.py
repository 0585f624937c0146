"""Recurrent mixers: one pass along time, or, where tokens may see later ones, one in each direction."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from ctsattn.nn.mixers.base import Mixer, MixerConfig, take, valid_first


class Recurrence(nn.Module):
    """A causal pass over tokens that stand without holes; built by a `RecurrentMixer`.

    Args:
        config: Sizes and units of the mixer.
        width: Features of the result.
        heads: Heads of the result; a divisor of `width`.
    """

    def __init__(self, config: MixerConfig, width: int, heads: int) -> None:
        super().__init__()
        self.config, self.width, self.heads = config, width, heads

    @abstractmethod
    def forward(self, x: Tensor, gaps: Tensor, mask: Tensor) -> Tensor:
        """Run over `x` `[batch, length, d_model]` and return `[batch, length, width]`.

        Args:
            x: Tokens.
            gaps: Time before each token in units of `config.gap` `[batch, length]`; 1 before the first.
            mask: `[batch, length]`, true where a token exists; padding stands on the right.
        """


class RecurrentMixer(Mixer):
    """Recurrence along time; in both directions, with half of the heads each, unless causal.

    Args:
        config: Sizes and units.
    """

    recurrence: type[Recurrence]

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.config = config
        directions = 1 if config.is_causal else 2
        width, heads = config.d_model // directions, max(1, config.num_heads // directions)
        if width * directions != config.d_model or width % heads:
            raise ValueError(
                f"`d_model` must be a multiple of {directions} directions of {heads} heads, but is "
                f"{config.d_model}."
            )
        self.passes = nn.ModuleList(self.recurrence(config, width, heads) for _ in range(directions))
        self.to_model = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix `x` along `length`; see `Mixer.forward`."""
        mask = torch.ones(times.shape, dtype=torch.bool, device=x.device) if mask is None else mask
        outputs = []
        for direction, run in zip((1, -1), self.passes, strict=False):
            order = valid_first(mask, backwards=direction < 0)
            outputs.append(
                take(self._run(run, take(x, order), take(times, order), mask), order.argsort(dim=1))
            )
        return self.to_model(torch.cat(outputs, dim=-1))

    def _run(self, run: nn.Module, x: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum(dim=1, keepdim=True)
        exists = torch.arange(mask.shape[1], device=mask.device) < count
        gaps = times.diff(dim=1).abs() / self.config.gap
        gaps = nn.functional.pad(gaps, (1, 0), value=1.0) * exists
        return run(x * exists.unsqueeze(-1), gaps.to(x.dtype), exists)
