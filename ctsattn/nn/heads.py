"""Heads: from raw parameters to a loss and to quantiles of any level, never crossing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctsattn.losses import normal_nll, pinball

_LEVELS = (0.025, *(i / 20 for i in range(1, 20)), 0.975)  # where the pinball loss is taken
_KNOTS = (0.05, 0.25, 0.5, 0.75, 0.95)  # where the slope of the quantile function may change
_FAR = 40.0  # a normal score that no level reaches, where the outermost segments end
_FLOOR = 1e-4  # least scale of a forecast, in units of the scaled series


def normal_quantile(levels: Tensor) -> Tensor:
    r"""Quantiles of the standard normal law, $\Phi^{-1}(\tau) = \sqrt2\,\mathrm{erf}^{-1}(2\tau - 1)$."""
    return math.sqrt(2) * torch.erfinv(2 * levels - 1)


class Head(nn.Module, ABC):
    """Reads raw network outputs as a distribution; parameter 0 is its location.

    Attributes:
        num_params: Raw parameters of one forecast.
    """

    num_params: int

    @abstractmethod
    def loss(self, params: Tensor, values: Tensor) -> Tensor:
        """Loss `[...]` of raw parameters `[..., num_params]` at the truth `values` `[...]`."""

    @abstractmethod
    def quantiles(self, params: Tensor, levels: Tensor) -> Tensor:
        """Quantiles `[..., levels]` at `levels` `[levels]` in (0, 1); they increase with the level."""

    @abstractmethod
    def mean(self, params: Tensor) -> Tensor:
        """Mean `[...]` of the distribution."""


class QuantileHead(Head):
    r"""Monotone quantile function, piecewise linear in the normal score, trained by the pinball loss.

    $q(\tau) = m + \sum_k s_k\, b_k(z)$ with $z = \Phi^{-1}(\tau)$ and slopes $s_k = \mathrm{softplus}(r_k)
    > 0$, where $b_k(z)$ is the signed length that the way from 0 to $z$ has in segment k. The segments end
    at fixed levels; the outermost run on, so tails are normal with a scale of their own. Equal slopes give
    a normal law.
    """

    num_params = 1 + len(_KNOTS) + 1

    def __init__(self) -> None:
        super().__init__()
        self.levels: Tensor
        self.edges: Tensor
        self.register_buffer("levels", torch.tensor(_LEVELS), persistent=False)
        knots = normal_quantile(torch.tensor(_KNOTS, dtype=torch.float64))
        far = knots.new_tensor([_FAR])
        self.register_buffer("edges", torch.cat([-far, knots, far]), persistent=False)

    def slopes(self, params: Tensor) -> Tensor:
        """Slopes of the quantile function `[..., segments]`, positive."""
        return F.softplus(params[..., 1:]) + _FLOOR

    def quantiles(self, params: Tensor, levels: Tensor) -> Tensor:
        """Quantiles at any `levels`; see `Head.quantiles`."""
        z = normal_quantile(levels.to(params)).unsqueeze(-1)
        edges = self.edges.to(params)
        # signed length that the way from 0 to z has in each segment
        lengths = z.clamp(edges[:-1], edges[1:]) - torch.zeros_like(z).clamp(edges[:-1], edges[1:])
        with torch.autocast(params.device.type, enabled=False):
            return params[..., :1] + self.slopes(params) @ lengths.mT

    def loss(self, params: Tensor, values: Tensor) -> Tensor:
        """Twice the mean pinball loss over a grid of levels, which approximates the CRPS."""
        levels = self.levels.to(params)
        return 2 * pinball(values, self.quantiles(params, levels), levels).mean(dim=-1)

    def mean(self, params: Tensor) -> Tensor:
        r"""Mean of the distribution.

        $m + \sum_k s_k\, \mathrm{E}\, b_k(Z)$ with
        $\mathrm{E}\,\mathrm{clip}(Z, a, b) = a\Phi(a) + b(1 - \Phi(b)) + \phi(a) - \phi(b)$.
        """
        edges = self.edges
        density = torch.exp(-edges.square() / 2) / math.sqrt(2 * math.pi)
        below = torch.special.ndtr(edges)
        a, b = edges[:-1], edges[1:]
        clipped = a * below[:-1] + b * (1 - below[1:]) + density[:-1] - density[1:]
        lengths = clipped - torch.zeros_like(a).clamp(a, b)
        with torch.autocast(params.device.type, enabled=False):
            return params[..., 0] + self.slopes(params) @ lengths.to(params)


def _mean_pinball(levels: Tensor, scores: Tensor) -> Tensor:
    """Twice the mean pinball loss of a law with scale 1 as lines, `[2, levels + 1]`: slope, then height at 0.

    The lines stand between neighbouring scores, from below the first to above the last.
    """
    below = torch.ones(len(levels) + 1, len(levels), dtype=levels.dtype).tril(-1)  # scores below the error
    weights = levels - 1 + below
    return 2 * torch.stack([weights.mean(dim=-1), -(weights * scores).mean(dim=-1)])


class SquaredErrorHead(Head):
    r"""Location by squared error, with a normal spread around it by the pinball loss.

    The spread is fitted to the errors of the location but sends no gradient to it, so that the location is
    the one which least squares alone would give.
    """

    num_params = 2

    def __init__(self) -> None:
        super().__init__()
        self.scores: Tensor
        self.law: Tensor
        levels = torch.tensor(_LEVELS, dtype=torch.float64)
        scores = normal_quantile(levels)
        self.register_buffer("scores", scores.float(), persistent=False)
        self.register_buffer("law", _mean_pinball(levels, scores).float(), persistent=False)

    def loss(self, params: Tensor, values: Tensor) -> Tensor:
        """Squared error of the location plus the approximate CRPS of the spread around it."""
        return (params[..., 0] - values).square() + self.spread_loss(params, values)

    def spread_loss(self, params: Tensor, values: Tensor) -> Tensor:
        """Twice the mean pinball loss of the spread, which approximates the CRPS.

        The quantiles are the location plus a scale times fixed scores, so between two scores the mean is
        linear in error and scale: which two is all that has to be found out for each forecast.
        """
        with torch.autocast(params.device.type, enabled=False):
            scale, error = F.softplus(params[..., 1]) + _FLOOR, values - params[..., 0].detach()
            place = torch.bucketize((error / scale).detach(), self.scores.to(params))
            of_error, of_scale = self.law.to(params)
            return of_error[place] * error + of_scale[place] * scale

    def quantiles(self, params: Tensor, levels: Tensor) -> Tensor:
        """Quantiles at any `levels`; see `Head.quantiles`."""
        z = normal_quantile(levels.to(params))
        with torch.autocast(params.device.type, enabled=False):
            return params[..., :1].detach() + (F.softplus(params[..., 1:]) + _FLOOR) * z

    def mean(self, params: Tensor) -> Tensor:
        """The location."""
        return params[..., 0]


class NormalHead(Head):
    """Normal law with raw location and scale, trained by its likelihood."""

    num_params = 2

    def _scale(self, params: Tensor) -> Tensor:
        return F.softplus(params[..., 1]) + _FLOOR

    def loss(self, params: Tensor, values: Tensor) -> Tensor:
        """Negative log-likelihood."""
        return normal_nll(values, params[..., 0], self._scale(params))

    def quantiles(self, params: Tensor, levels: Tensor) -> Tensor:
        """Quantiles at any `levels`; see `Head.quantiles`."""
        return params[..., :1] + self._scale(params).unsqueeze(-1) * normal_quantile(levels.to(params))

    def mean(self, params: Tensor) -> Tensor:
        """The location."""
        return params[..., 0]


class WeightedHead(Head):
    """A head whose loss counts each target by a weight of its own; what it forecasts is the head's.

    Args:
        head: The head.
        num_targets: Targets; their axis is the last but one of a loss. Weights start at 1.
    """

    def __init__(self, head: Head, num_targets: int) -> None:
        super().__init__()
        self.head, self.num_params = head, head.num_params
        self.weight: Tensor
        self.register_buffer("weight", torch.ones(num_targets, 1))

    def set_weights(self, weight: Tensor) -> None:
        """Set the weights `[targets]`."""
        self.weight.copy_(weight[:, None])

    def loss(self, params: Tensor, values: Tensor) -> Tensor:
        """The head's loss `[..., targets, queries]`, weighted."""
        return self.weight * self.head.loss(params, values)

    def quantiles(self, params: Tensor, levels: Tensor) -> Tensor:
        """The head's quantiles."""
        return self.head.quantiles(params, levels)

    def mean(self, params: Tensor) -> Tensor:
        """The head's mean."""
        return self.head.mean(params)


HEADS: dict[str, type[Head]] = {
    "quantile": QuantileHead,
    "squared_error": SquaredErrorHead,
    "normal": NormalHead,
}
