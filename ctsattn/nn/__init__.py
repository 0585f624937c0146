"""Network parts: rotary positions, mixers along time, encoder, query decoder and heads."""

from __future__ import annotations

from ctsattn.nn.attention import ContinuousAttention, KeyValueCache
from ctsattn.nn.convert import clock, convert_attention
from ctsattn.nn.decoder import ChannelMixing, QueryDecoder
from ctsattn.nn.encoder import Encoder, EncoderLayer
from ctsattn.nn.feedforward import FEEDFORWARDS
from ctsattn.nn.heads import HEADS, Head, NormalHead, QuantileHead, SquaredErrorHead, WeightedHead
from ctsattn.nn.mixers import MIXERS, Mixer, MixerConfig
from ctsattn.nn.rotary import TimeRotary, frequency_ladder

__all__ = [
    "FEEDFORWARDS",
    "HEADS",
    "MIXERS",
    "ChannelMixing",
    "ContinuousAttention",
    "Encoder",
    "EncoderLayer",
    "Head",
    "KeyValueCache",
    "Mixer",
    "MixerConfig",
    "NormalHead",
    "QuantileHead",
    "QueryDecoder",
    "SquaredErrorHead",
    "TimeRotary",
    "WeightedHead",
    "clock",
    "convert_attention",
    "frequency_ladder",
]
