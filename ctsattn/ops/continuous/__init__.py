"""Continuous softmax attention: the definition, and backends that compute it."""

from __future__ import annotations

from ctsattn.ops.continuous.api import continuous_attention
from ctsattn.ops.continuous.sink import Sink

__all__ = ["Sink", "continuous_attention"]
