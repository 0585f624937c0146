"""Diagonal state spaces over real gaps, the input held or joined by straight lines between tokens."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctsattn.nn.mixers.base import MixerConfig
from ctsattn.nn.mixers.recurrent import Recurrence, RecurrentMixer
from ctsattn.ops.scan import linear_scan
from ctsattn.phi import phi1, phi2

_STATES = 16  # complex states of a feature; each stands for itself and its conjugate
_STEPS = (1e-3, 1e-1)  # range of the steps at the start, for a gap of 1


def zero_order_hold(z: Tensor, gaps: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    r"""Decay and input of $\dot x = \lambda x + u$ over gaps in which $u$ has the value at their end.

    $x_i = e^{z} x_{i-1} + \Delta\,\varphi_1(z)\, u_i$ with $z = \lambda\Delta$, exact.

    Args:
        z: $\lambda\Delta_i$, complex `[batch, length, ...]`.
        gaps: $\Delta_i$, of a shape that broadcasts to `z`.
        inputs: $u_i$, likewise.
    """
    return z.exp(), gaps * phi1(z) * inputs


def first_order_hold(z: Tensor, gaps: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    r"""Decay and input of $\dot x = \lambda x + u$ where $u$ is a straight line between tokens.

    $x_i = e^{z} x_{i-1} + \Delta\,[(\varphi_1(z) - \varphi_2(z))\, u_{i-1} + \varphi_2(z)\, u_i]$, exact:
    the same $\varphi$ functions as in continuous attention. Before the first token the input is 0.

    Args:
        z: $\lambda\Delta_i$, complex `[batch, length, ...]`.
        gaps: $\Delta_i$, of a shape that broadcasts to `z`.
        inputs: $u_i$, likewise.
    """
    before = torch.cat([torch.zeros_like(inputs[:, :1]), inputs[:, :-1]], dim=1)
    end = phi2(z)
    return z.exp(), gaps * ((phi1(z) - end) * before + end * inputs)


class DiagonalStateSpace(Recurrence):
    r"""S4D: $\dot x = \lambda x + u$ for each feature and state, read as $2\,\mathrm{Re}\,\sum c\,x + D u$.

    Args:
        config: Sizes and units of the mixer.
        width: Features of the result.
        heads: Plays no part; each feature has states of its own.
    """

    def __init__(self, config: MixerConfig, width: int, heads: int) -> None:
        super().__init__(config, width, heads)
        self.project = nn.Linear(config.d_model, width, bias=False)
        low, high = (math.log(step) for step in _STEPS)
        self.log_step = nn.Parameter(torch.empty(width).uniform_(low, high))
        self.log_decay = nn.Parameter(torch.full((width, _STATES), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(_STATES).float().repeat(width, 1))
        self.read = nn.Parameter(torch.randn(width, _STATES, 2) * math.sqrt(0.5))
        self.skip = nn.Parameter(torch.randn(width))
        self.gate = nn.Linear(width, 2 * width)

    @abstractmethod
    def discretise(self, z: Tensor, gaps: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Decay and input of the recurrence, exact for the assumed course of the input between tokens."""

    def forward(self, x: Tensor, gaps: Tensor, mask: Tensor) -> Tensor:
        """Run over the tokens; see `Recurrence.forward`."""
        wide = torch.promote_types(x.dtype, torch.float32)
        inputs = self.project(x) * mask.unsqueeze(-1)
        steps = gaps.to(wide).unsqueeze(-1) * self.log_step.to(wide).exp()
        rate = torch.complex(-self.log_decay.to(wide).exp(), self.frequency.to(wide))
        # [batch, length, width, states]
        decay, drive = self.discretise(
            steps.unsqueeze(-1) * rate, steps.unsqueeze(-1), inputs.to(wide).unsqueeze(-1)
        )
        states = linear_scan(decay, drive)
        output = 2 * (states * torch.view_as_complex(self.read.to(wide))).real.sum(dim=-1)
        output = output.to(x.dtype) + self.skip * inputs
        return F.glu(self.gate(F.gelu(output)), dim=-1)


class HeldInput(DiagonalStateSpace):
    """S4D with zero-order hold."""

    def discretise(self, z: Tensor, gaps: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `zero_order_hold`."""
        return zero_order_hold(z, gaps, inputs)


class LinearInput(DiagonalStateSpace):
    """S4D with first-order hold."""

    def discretise(self, z: Tensor, gaps: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `first_order_hold`."""
        return first_order_hold(z, gaps, inputs)


class S4DZeroOrder(RecurrentMixer):
    """Diagonal state space over real gaps, each input held since the token before.

    References:
        Gu, Gupta, Goel and Ré, "On the parameterization and initialization of diagonal state space models"
        (2022). Smith, Warrington and Linderman, "Simplified state space layers for sequence modeling" (2023).
    """

    recurrence = HeldInput


class S4DFirstOrder(RecurrentMixer):
    """Diagonal state space over real gaps, inputs joined by straight lines: the analogue of this operator."""

    recurrence = LinearInput
