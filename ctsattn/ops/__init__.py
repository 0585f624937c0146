"""Operators: attention as an integral over real time."""

from __future__ import annotations

from ctsattn.ops.continuous import Sink, continuous_attention
from ctsattn.ops.trapezoid import trapezoid_attention

__all__ = ["Sink", "continuous_attention", "trapezoid_attention"]
