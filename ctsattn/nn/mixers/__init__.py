"""Ways to mix a sequence of tokens along real time; a new one is a file here and a line in `MIXERS`."""

from __future__ import annotations

from ctsattn.nn.mixers.base import AttentionMixer, Mixer, MixerConfig
from ctsattn.nn.mixers.continuous import Continuous, ContinuousUnit
from ctsattn.nn.mixers.softmax import Softmax

MIXERS: dict[str, type[Mixer]] = {
    "continuous": Continuous,
    "continuous_unit": ContinuousUnit,
    "softmax": Softmax,
}

__all__ = ["MIXERS", "AttentionMixer", "Mixer", "MixerConfig"]
