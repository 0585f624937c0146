"""What a value means in its channel: its place among all values there, and linear maps of each channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch
from ctsattn.nn.heads import normal_quantile

_KNOTS = 33  # values of a channel between which its normal scores are interpolated
_MOST = 2**18  # values of a channel from which they are learned


class Ranks(nn.Module):
    """Normal scores of values among all training values of their channel.

    A few wild values stretch the mean and the deviation of a channel until all others look alike. Scores are
    not moved by them: equal steps of the score hold equally many values.

    Args:
        channels: Channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.knots: Tensor
        self.levels: Tensor
        levels = normal_quantile((torch.arange(_KNOTS, dtype=torch.float64) + 0.5) / _KNOTS).float()
        self.register_buffer("levels", levels, persistent=False)
        self.register_buffer("knots", levels.repeat(channels, 1))

    def learn(self, batches: Sequence[Batch]) -> None:
        """Take the knots from the values that some windows show; a channel without any keeps its own."""
        shares = (torch.arange(_KNOTS, device=self.knots.device) + 0.5) / _KNOTS
        for channel, knots in enumerate(self.knots):
            seen = [b.past_values[:, channel][b.past_mask[:, channel]] for b in batches]
            values = torch.cat(seen)[:_MOST].float()
            if len(values):
                knots.copy_(torch.quantile(values, shares.to(values)))

    def forward(self, values: Tensor) -> Tensor:
        """Scores of `values` `[batch, channels, length]`, between those of the outermost knots."""
        flat = values.transpose(0, 1).flatten(1).contiguous()
        place = torch.searchsorted(self.knots, flat).clamp(1, _KNOTS - 1)
        low, high = self.knots.gather(1, place - 1), self.knots.gather(1, place)
        share = ((flat - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        scores = torch.lerp(self.levels[place - 1], self.levels[place], share)
        return scores.unflatten(1, (values.shape[0], values.shape[2])).transpose(0, 1)


class ChannelLinear(nn.Module):
    """A linear map shared by all channels plus what each channel adds to it, which starts at 0.

    Args:
        channels: Channels.
        inputs: Features in.
        outputs: Features out.
    """

    def __init__(self, channels: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.shared = nn.Linear(inputs, outputs)
        self.own = nn.Parameter(torch.zeros(channels, inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` `[batch, channels, length, inputs]` to `[batch, channels, length, outputs]`."""
        return self.shared(x) + torch.einsum("bcli,cio->bclo", x, self.own)


def channel_linear(channels: int, inputs: int, outputs: int, own_maps: bool) -> nn.Module:
    """A linear map of what channels show, shared by all or with what each adds to it."""
    return ChannelLinear(channels, inputs, outputs) if own_maps else nn.Linear(inputs, outputs)
