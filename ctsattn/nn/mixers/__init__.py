"""Ways to mix a sequence of tokens along real time; a new one is a file here and a line in `MIXERS`."""

from __future__ import annotations

from ctsattn.nn.mixers.base import SINKS, AttentionMixer, Mixer, MixerConfig
from ctsattn.nn.mixers.continuous import Continuous, ContinuousUnit
from ctsattn.nn.mixers.delta import EFLA, DeltaNet
from ctsattn.nn.mixers.first_order import FirstOrder
from ctsattn.nn.mixers.key_filter import KeyFilter
from ctsattn.nn.mixers.short_conv import ShortConv
from ctsattn.nn.mixers.softmax import Softmax
from ctsattn.nn.mixers.ssm import S4DFirstOrder, S4DZeroOrder
from ctsattn.nn.mixers.trapezoid import Trapezoid

MIXERS: dict[str, type[Mixer]] = {
    "continuous": Continuous,
    "continuous_unit": ContinuousUnit,
    "trapezoid": Trapezoid,
    "first_order": FirstOrder,
    "softmax": Softmax,
    "key_filter": KeyFilter,
    "short_conv": ShortConv,
    "deltanet": DeltaNet,
    "efla": EFLA,
    "s4d_zoh": S4DZeroOrder,
    "s4d_foh": S4DFirstOrder,
}

__all__ = ["MIXERS", "SINKS", "AttentionMixer", "Mixer", "MixerConfig"]
