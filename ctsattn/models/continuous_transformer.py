"""ContinuousTransformer: channels encoded along real time, read at any query time, mixed across channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ctsattn._checks import named
from ctsattn._options import Count, LostShare, NotNegative, OneOf, Share, Within
from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.scalers import FIXED, SCALERS
from ctsattn.models.balance import target_weights
from ctsattn.models.groups import make_path
from ctsattn.models.joining import answer_one_by_one, join, part
from ctsattn.models.linear_path import FILLS, Spread, TimeFeatures
from ctsattn.models.ranks import Ranks, channel_linear
from ctsattn.models.stretches import make_stretches
from ctsattn.models.tokens import ChannelIdentity, Covariates, make_tokens
from ctsattn.nn import (
    FEEDFORWARDS,
    HEADS,
    MIXERS,
    Encoder,
    Head,
    MixerConfig,
    QueryDecoder,
    WeightedHead,
    frequency_ladder,
)
from ctsattn.nn.mixers import SINKS

_APART, _JOINED = 0.02, 0.5  # deviation of the embeddings that tell channels apart, at the start


@dataclass(frozen=True)
class ContinuousTransformer:
    """Transformer over real time for forecasts from any timestamps at any timestamps.

    Attributes:
        d_model: Features of a token.
        num_layers: Layers of the encoder, which mix along time within each channel.
        num_decoder_layers: Layers of the decoder, which read the past at query times and mix channels.
        num_heads: Attention heads; a divisor of `d_model`.
        num_kv_heads: Key and value heads of grouped-query attention; None: as many as heads.
        d_ff: Width of feed-forward networks; None: twice `d_model`.
        mixer: Name in `ctsattn.nn.MIXERS`. "softmax", with positions that turn with real time, is what the
            study in `experiments/hypotheses` leads to: "continuous", the integral over real time, is
            not shown to be better on 21 data sets. Try it where the validation error of your own series says
            so.
        sink: What attention may look at besides tokens: "none", "zeros", "first" or "learned".
        rotary: Share of each head's features that turn with time; 0: no positions.
        patch: Median gaps in one token; None: one token for each observation; "auto": that for windows of up
            to 64 median gaps, else patches that make about 48 tokens.
        stride: Median gaps from one patch to the next; None: half a patch.
        query_patch: Median gaps of the future that are one question, answered at each of them and by straight
            lines between. It makes steps a good deal cheaper, and wants the data to learn each gap's answer
            from. None: each asked time is a question of its own; "auto": as long as a token where tokens are
            patches, nothing is known of the future and channels are not joined, else None.
        is_causal: Whether the encoder's tokens see only earlier ones.
        mix_channels: Whether the channels of a query attend to each other.
        join_channels: Whether the tokens of all channels stand in one sequence in the encoder, so that an
            observation is seen by later ones of every channel. For many sparse channels. With `mix_channels`
            off, a question reads the whole sequence and no other question, and training answers only what
            was observed, at a fraction of the cost.
        own_maps: Whether each channel has a map of its own, besides the shared one, from what it shows to
            features. For channels that mean different things.
        show_ranks: Whether tokens show the place of a value among all of its channel, which wild values do
            not blur. For tokens that are observations.
        show_level: Whether questions know the last value and the mean of their channel.
        feedforward: Name in `ctsattn.nn.FEEDFORWARDS`.
        dropout: Share of features dropped in training.
        attention_dropout: Share of attention weights dropped in training; the exact operator then keeps all
            weights in memory.
        token_dropout: Share of tokens that a window hides from encoder and decoder in training.
        drop_path: Share of residual branches dropped in training.
        linear_share: Share of training windows that are forecast by the linear path alone, so that it stands
            on its own and the network learns what it cannot say.
        train_linear: Whether the linear path is trained on after its start in closed form.
        choose_targets: Whether targets that the linear path alone forecasts better on the validation windows
            are left to it after training. For targets so rare that the network learns them by heart.
        anchors: As in `Linear`.
        by_phase: As in `Linear`.
        by_target: As in `Linear`.
        by_level: As in `Linear`.
        fill: As in `Linear`; the tokens of the network show what was observed.
        average_lookbacks: As in `Linear`.
        groups: As in `Linear`.
        head: Name in `ctsattn.nn.HEADS`.
        scaler: Name in `ctsattn.data.scalers.SCALERS`.
        balance: How the loss weighs targets. None: every observed query counts alike, in scaled units. A
            number: with a scaler that is the same for all windows errors count in the caller's units, and
            the weight of a target falls with its observations to this power; at 1 the loss is the mean over
            targets of their mean errors, however seldom they are observed.
    """

    d_model: Count = 64
    num_layers: Annotated[int, Within(0)] = 2
    num_decoder_layers: Count = 1
    num_heads: Count = 4
    num_kv_heads: Count | None = None
    d_ff: Count | None = None
    mixer: Annotated[str, OneOf(MIXERS)] = "softmax"
    sink: Annotated[str, OneOf(SINKS)] = "zeros"
    rotary: Share = 1.0
    patch: Count | Literal["auto"] | None = "auto"
    stride: Count | None = None
    query_patch: Count | Literal["auto"] | None = None
    is_causal: bool = False
    mix_channels: bool = True
    join_channels: bool = False
    own_maps: bool = False
    show_ranks: bool = False
    show_level: bool = False
    feedforward: Annotated[str, OneOf(FEEDFORWARDS)] = "swiglu"
    dropout: LostShare = 0.1
    attention_dropout: LostShare = 0.0
    token_dropout: LostShare = 0.0
    drop_path: LostShare = 0.0
    linear_share: Share = 0.0
    train_linear: bool = True
    choose_targets: bool = False
    anchors: tuple[str, ...] = ()
    by_phase: bool = False
    by_target: bool = False
    by_level: bool | Literal["shared"] = False
    fill: Annotated[str, OneOf(FILLS)] = "lines"
    average_lookbacks: bool = True
    groups: Count = 1
    head: Annotated[str, OneOf(HEADS)] = "quantile"
    scaler: Annotated[str, OneOf(SCALERS)] = "standard"
    balance: NotNegative | None = None

    @classmethod
    def small(cls, **changes: Any) -> ContinuousTransformer:
        """For short series and a CPU."""
        return cls(**{"d_model": 32, "num_layers": 1, "num_heads": 4, "dropout": 0.2, **changes})

    @classmethod
    def base(cls, **changes: Any) -> ContinuousTransformer:
        """For many or long series and a GPU."""
        return cls(**{"d_model": 128, "num_layers": 3, "num_heads": 8, "dropout": 0.2, **changes})

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task."""
        return ContinuousTransformerNetwork(self, spec)


class ContinuousTransformerNetwork(nn.Module):
    """Network of `ContinuousTransformer`: a linear path plus what encoder and decoder add to it.

    Args:
        config: Sizes and parts.
        spec: Task.
    """

    trainable = True

    def __init__(self, config: ContinuousTransformer, spec: TaskSpec) -> None:
        super().__init__()
        self.spec, self.linear_share, self.balance = spec, config.linear_share, config.balance
        self.join_channels, self.mix_channels = config.join_channels, config.mix_channels
        self.token_dropout, self.only_observed = config.token_dropout, False
        self.heard_targets: Tensor | None
        self.register_buffer("heard_targets", torch.ones(spec.num_targets) if config.choose_targets else None)
        self.in_own_units = config.scaler in FIXED
        d_model = config.d_model
        self.tokens = make_tokens(config, spec)
        self.stretches = make_stretches(config, spec, self.tokens)
        self.identity = ChannelIdentity(spec, d_model, _JOINED if config.join_channels else _APART)
        self.static = Covariates(spec.num_static, spec.static_codes, d_model)
        self.known = Covariates(spec.num_known, spec.known_codes, d_model)
        has_known = bool(spec.num_known or spec.known_codes)
        self.effect = nn.Linear(d_model, spec.num_targets, bias=False) if has_known else None
        self.linear = make_path(config, spec, fixed=not config.train_linear)
        mixer = self._mixer_config(config)
        d_ff = config.d_ff or 2 * d_model
        parts = (config.mixer, mixer, d_ff, config.feedforward, config.dropout, config.drop_path)
        self.encoder = Encoder(config.num_layers, *parts)
        self.decoder = QueryDecoder(
            config.num_decoder_layers, *parts, config.mix_channels and spec.num_channels > 1
        )
        self.features = TimeFeatures(spec)
        self.show_level = config.show_level
        shown = TimeFeatures.num_features + 3 + self._levels_shown()
        self.ask = channel_linear(spec.num_channels, shown, d_model, config.own_maps)
        head = named("head", config.head, HEADS)()
        self.head: Head = head if config.balance is None else WeightedHead(head, spec.num_targets)
        self.spread = Spread(spec, self.head.num_params - 1)
        nodes = 1 if self.stretches is None else self.stretches.length
        self.gate = nn.Linear(d_model, nodes * self.linear.num_anchors)
        self.out = nn.Linear(d_model, nodes * self.head.num_params)
        for layer in (self.effect, self.gate, self.out):
            for start in () if layer is None else layer.parameters():
                nn.init.zeros_(start)

    def _mixer_config(self, config: ContinuousTransformer) -> MixerConfig:
        pairs = int(config.rotary * (config.d_model // config.num_heads) / 2)
        span = self.spec.lookback + self.spec.horizon
        frequencies = frequency_ladder(pairs, span, self.tokens.token_gap, self.spec.periods) if pairs else ()
        return MixerConfig(
            d_model=config.d_model,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            frequencies=frequencies,
            gap=self.tokens.token_gap,
            sink=config.sink,
            dropout=config.attention_dropout,
            is_causal=config.is_causal,
        )

    def warm_up(self, batches: Iterable[Batch]) -> None:
        """Learn weights, linear path and spread from windows with truths; called once, before training."""
        ranks = self._ranks()
        if ranks is not None:
            batches = list(batches)
            ranks.learn(batches)
        if isinstance(self.head, WeightedHead) and self.balance is not None:
            batches = list(batches)
            self.head.set_weights(target_weights(batches, self.balance, self.in_own_units))
        self.linear.start(batches, self.head, self.spread)

    def forward(self, batch: Batch) -> Tensor:
        """Raw parameters of the head, `[batch, targets, queries, params]`, in scaled units."""
        targets = self.spec.num_targets
        known_past = self.known(batch.past_known, batch.past_known_codes)
        known_future = self.known(batch.future_known, batch.future_known_codes)
        static = self.static(batch.static, batch.static_codes)[:, None, None]
        answers = self._read(batch, known_past, known_future, static)[:, :targets]
        heard = self._heard(answers)
        gate, params = (self._at_queries(layer(answers), batch) for layer in (self.gate, self.out))
        line = self._linear(batch, known_past, known_future, gate * heard)
        location = params[..., :1] * heard + line.unsqueeze(-1)
        return torch.cat([location, params[..., 1:] + self.spread(batch.future_times)], dim=-1)

    def _heard(self, answers: Tensor) -> Tensor:
        """Whether locations listen to the network, `[batch, targets or 1, 1, 1]`."""
        heard = answers.new_ones(len(answers), 1, 1, 1)
        if self.training and self.linear_share:
            heard.bernoulli_(1 - self.linear_share)
        return heard if self.heard_targets is None else heard * self.heard_targets[:, None, None]

    def _at_queries(self, said: Tensor, batch: Batch) -> Tensor:
        """What the decoder's answers say, `[batch, targets, queries, features]`."""
        return said if self.stretches is None else self.stretches.read(said, batch.future_times)

    def _asked_times(self, batch: Batch) -> Tensor:
        """Times of the questions `[batch, questions]`: those of the queries, or middles of stretches."""
        if self.stretches is None:
            return batch.future_times
        return self.stretches.asked(batch.future_times, batch.future_mask)

    def _read(self, batch: Batch, known_past: Tensor, known_future: Tensor, static: Tensor) -> Tensor:
        """Answers of encoder and decoder, `[batch, channels, questions, d_model]`."""
        at = self._asked_times(batch)
        context = self.identity(batch.past_codes) + static + known_past
        # bfloat16 would tell 256 times apart
        with torch.autocast(batch.past_times.device.type, enabled=False):
            tokens, times, mask = self.tokens(batch, context)
            mask = self._shown(mask)
            asked = self._questions(batch, at) + static + known_future[:, None]
        if not self.join_channels:
            memory = self.encoder(tokens.flatten(0, 1), times.flatten(0, 1), mask.flatten(0, 1))
            memory = memory.unflatten(0, tokens.shape[:2])
            return self.decoder(asked, at, memory, times, mask)
        joined = join(tokens, times, mask)
        encoded = self.encoder(joined.tokens, joined.times, joined.mask)
        if self.mix_channels:
            memory = part(joined, encoded, tokens)
            return self.decoder(asked, at, memory, times, mask)
        memory = replace(joined, tokens=encoded)
        asked = asked[:, : self.spec.num_targets]
        return answer_one_by_one(self.decoder, asked, at, memory, self._wanted(batch, at))

    def _shown(self, mask: Tensor) -> Tensor:
        """The tokens that stay `[batch, channels, length]`: in training a share of them goes."""
        if not (self.training and self.token_dropout):
            return mask
        return mask & (torch.rand(mask.shape, device=mask.device) >= self.token_dropout)

    def _wanted(self, batch: Batch, at: Tensor) -> Tensor:
        """Which answers are computed, `[batch, targets, questions]`: for a loss, times that have a truth."""
        if self.stretches is None and (self.training or self.only_observed):
            return batch.future_observed
        shape = (len(at), self.spec.num_targets, at.shape[1])
        return torch.ones(shape, dtype=torch.bool, device=at.device)

    def _questions(self, batch: Batch, at: Tensor) -> Tensor:
        """Embedded questions of each channel, `[batch, channels, questions, d_model]`."""
        features = self.features(at)[:, None]
        summary = self._summary(batch)[:, :, None].expand(-1, -1, features.shape[2], -1)
        features = features.expand(-1, summary.shape[1], -1, -1)
        asked = self.ask(torch.cat([features, summary], dim=-1))
        return asked + self.identity.channel.weight[:, None]

    def _summary(self, batch: Batch) -> Tensor:
        """How much, how lately and how restlessly each channel was observed, `[batch, channels, told]`."""
        times, values, mask = batch.past_times, batch.past_values, batch.past_mask
        gap = self.spec.median_gap
        count = mask.sum(dim=-1)
        latest = torch.where(mask, times, -self.spec.lookback).amax(dim=-1)
        step = values.diff(dim=-1).square() * mask[..., 1:] / (1 + times.diff(dim=-1) / gap)
        restless = step.sum(dim=-1) / (count - 1).clamp(min=1)
        age = torch.log1p((-latest).clamp(min=0) / gap)
        told = [torch.log1p(count.to(age)), age, torch.log(restless + 1e-4)]
        return torch.stack(told + (self._levels(batch) if self.show_level else []), dim=-1)

    def _ranks(self) -> Ranks | None:
        return getattr(self.tokens, "ranks", None)

    def _levels_shown(self) -> int:
        """Features that `_levels` gives."""
        return (3 if self._ranks() is None else 5) if self.show_level else 0

    def _levels(self, batch: Batch) -> list[Tensor]:
        """Last value and mean of each channel, and how long the window is, each `[batch, channels]`."""
        mask, ranks = batch.past_mask, self._ranks()
        count = mask.sum(dim=-1, keepdim=True)
        scores = [batch.past_values] if ranks is None else [batch.past_values, ranks(batch.past_values)]
        last = [x.gather(-1, (count - 1).clamp(min=0))[..., 0] * mask[..., 0] for x in scores]
        mean = [(x * mask).sum(dim=-1) / count[..., 0].clamp(min=1) for x in scores]
        earliest = torch.where(mask, batch.past_times, 0.0).amin(dim=(1, 2)) / -self.spec.lookback
        return [*last, *mean, earliest[:, None].expand_as(mean[0])]

    def _linear(self, batch: Batch, known_past: Tensor, known_future: Tensor, gate: Tensor) -> Tensor:
        """The linear path of the targets, `[batch, targets, queries]`, effects of known covariates apart."""
        past = (batch.past_times, batch.past_values, batch.past_mask)
        times, values, mask = (x[:, : self.spec.num_targets] for x in past)
        if self.effect is None:
            return self.linear(times, values, mask, batch.future_times, gate, batch.cutoff)
        effect = (known_past[:, : self.spec.num_targets] * self.effect.weight[:, None]).sum(dim=-1)
        line = self.linear(times, (values - effect) * mask, mask, batch.future_times, gate, batch.cutoff)
        return line + self.effect(known_future).transpose(1, 2)
