"""From a batch to tokens: one for each observation, or one for each stretch of real time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models.path import resample
from ctsattn.models.ranks import Ranks, channel_linear

_MAX_OBSERVATIONS = 64  # tokens up to which each observation gets its own
_PATCHES = 48  # tokens of a longer window


class Codes(nn.Module):
    """Sum of the embeddings of several categorical columns, each with codes of its own.

    Args:
        counts: Number of codes of each column.
        features: Width of the embedding.
    """

    def __init__(self, counts: tuple[int, ...], features: int) -> None:
        super().__init__()
        offsets = [0]
        for count in counts[:-1]:
            offsets.append(offsets[-1] + count)
        self.offsets: Tensor
        self.register_buffer(
            "offsets", torch.tensor(offsets[: len(counts)], dtype=torch.long), persistent=False
        )
        self.table = nn.Embedding(max(sum(counts), 1), features)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, codes: Tensor) -> Tensor:
        """Embed `codes` `[..., columns]` as `[..., features]`."""
        return self.table(codes + self.offsets).sum(dim=-2)


class Covariates(nn.Module):
    """Embedding of what is known of a series or of a moment: numbers and categories together.

    Args:
        numbers: Numeric columns.
        counts: Number of codes of each categorical column.
        features: Width of the embedding.
    """

    def __init__(self, numbers: int, counts: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.numbers = nn.Linear(numbers, features, bias=False) if numbers else None
        self.codes = Codes(counts, features) if counts else None
        self.features = features

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Embed `[..., numbers]` and `[..., columns]` as `[..., features]`; zeros where there is neither.

        Where there is no column at all, all places share one zero: `[1, ..., features]`.
        """
        nothing = self.numbers is None and self.codes is None
        shape = [1] * (numbers.ndim - 1) if nothing else numbers.shape[:-1]
        out = numbers.new_zeros(*shape, self.features)
        if self.numbers is not None:
            out = out + self.numbers(numbers)
        if self.codes is not None:
            out = out + self.codes(codes)
        return out


class ChannelIdentity(nn.Module):
    """Embedding of a channel, and of the codes that a categorical channel takes.

    Args:
        spec: Task.
        d_model: Width of the embedding.
        start: Standard deviation that the embeddings of channels start with.
    """

    def __init__(self, spec: TaskSpec, d_model: int, start: float = 0.02) -> None:
        super().__init__()
        self.channel = nn.Embedding(spec.num_channels, d_model)
        nn.init.normal_(self.channel.weight, std=start)
        counts = tuple(max(count, 1) for count in spec.channel_codes)
        self.codes = Codes(counts, d_model) if any(spec.channel_codes) else None

    def forward(self, codes: Tensor) -> Tensor:
        """Embed the past `codes` `[batch, channels, length]` as `[batch, channels, length or 1, d_model]`."""
        identity = self.channel.weight[:, None]
        if self.codes is None:
            return identity.unsqueeze(0)
        return identity + self.codes.table(codes + self.codes.offsets[:, None])


class ObservationTokens(nn.Module):
    """One token for each observation: its value, the change since the one before, and the gap.

    Args:
        spec: Task.
        d_model: Width of a token.
        own_maps: Whether each channel adds to the map of the features one of its own.
        ranks: Normal scores of the values, one more feature; None: not shown.
    """

    def __init__(
        self, spec: TaskSpec, d_model: int, own_maps: bool = False, ranks: Ranks | None = None
    ) -> None:
        super().__init__()
        self.gap = spec.median_gap
        self.token_gap = spec.median_gap
        self.ranks = ranks
        self.embed = channel_linear(spec.num_channels, 4 + (ranks is not None), d_model, own_maps)

    def forward(self, batch: Batch, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens `[batch, channels, length, d_model]`, their times and mask; `context` is added to each."""
        values, times, mask = batch.past_values, batch.past_times, batch.past_mask
        change = nn.functional.pad(values.diff(dim=-1), (1, 0))
        gap = nn.functional.pad(times.diff(dim=-1), (1, 0))
        is_first = nn.functional.pad(torch.zeros_like(values[..., 1:]), (1, 0), value=1.0)
        shown = [values, change, torch.log1p(gap / self.gap), is_first]
        shown += [] if self.ranks is None else [self.ranks(values)]
        return self.embed(torch.stack(shown, dim=-1)) + context, times, mask


class PatchTokens(nn.Module):
    """One token for each stretch of real time, from all that was observed in it.

    The past is brought to evenly spaced nodes (`path.resample`), each with a value and a weight that says
    how much was observed there; a patch is the nodes of a stretch. On a regular series the nodes are the
    observations and the tokens are those of PatchTST. A stretch without an observation gives no token.

    Args:
        spec: Task.
        d_model: Width of a token.
        length: Nodes of a patch.
        stride: Nodes from one patch to the next.

    References:
        Nie et al., "A time series is worth 64 words" (2023).
    """

    def __init__(self, spec: TaskSpec, d_model: int, length: int, stride: int) -> None:
        super().__init__()
        self.length, self.stride, gap = length, stride, spec.median_gap
        patches = max(1, math.ceil((round(spec.lookback / gap) - length) / stride) + 1)
        count = (patches - 1) * stride + length
        self.nodes: Tensor
        self.register_buffer("nodes", gap * torch.arange(1.0 - count, 1.0), persistent=False)
        self.token_gap = stride * gap
        self.embed = nn.Linear(2 * length, d_model)

    def forward(self, batch: Batch, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens `[batch, channels, patches, d_model]`, their times (ends of the patches) and mask."""
        values, times, mask = batch.past_values, batch.past_times, batch.past_mask
        nodes = self.nodes.to(times)
        path, weight = resample(times, values, mask, nodes)
        path, weight = (x.unfold(-1, self.length, self.stride) for x in (path, weight))
        tokens = self.embed(torch.cat([path, weight.clamp(max=2.0)], dim=-1))
        ends = nodes[self.length - 1 :: self.stride].expand(*values.shape[:2], -1)
        observed = weight.sum(dim=-1) > 0
        return tokens + self._at_ends(times, mask, context, ends), ends, observed

    def _at_ends(self, times: Tensor, mask: Tensor, context: Tensor, ends: Tensor) -> Tensor:
        """The context of the last observation at or before each patch's end."""
        if context.shape[2] == 1:
            return context
        clock = times.masked_fill(~mask, torch.inf).contiguous()
        index = (torch.searchsorted(clock, ends.contiguous(), right=True) - 1).clamp(min=0)
        return context.gather(2, index.unsqueeze(-1).expand(*index.shape, context.shape[-1]))


def make_tokens(config: Any, spec: TaskSpec) -> ObservationTokens | PatchTokens:
    """The tokenisation that the config of a model asks for, or that suits the look-back of the task.

    Raises:
        ValueError: Ranks are to be shown where tokens are patches.
    """
    steps, patch = round(spec.lookback / spec.median_gap), config.patch
    if patch == "auto":
        patch = None if steps <= _MAX_OBSERVATIONS else 2 * math.ceil(steps / _PATCHES)
    if patch is None:
        ranks = Ranks(spec.num_channels) if config.show_ranks else None
        return ObservationTokens(spec, config.d_model, config.own_maps, ranks)
    if config.show_ranks:
        raise ValueError(
            f"`show_ranks` shows observations, but with `patch={config.patch!r}` and {steps} steps of past "
            "the tokens are patches. Give `patch=None`."
        )
    return PatchTokens(spec, config.d_model, patch, config.stride or max(1, patch // 2))
