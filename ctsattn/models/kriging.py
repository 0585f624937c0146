"""Kriging: what a past was at the moments at which nothing was observed, given what was."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models.path import gathered

_NOISE = 0.02  # variance of an observation, of that of its window
_FLOOR = 0.1  # of the usual spread of a target, below which that of a window does not count
_MEMORY = 8.0  # median gaps in which the covariance fades before it is learned
_VALUES = 2**26  # in a batch of matrices


class Kriging(nn.Module):
    r"""Conditional mean of a past at its nodes: $\bar x + k^\top (K + \sigma^2 I)^{-1} (x - \bar x)$.

    The covariance is stationary, shared by all targets, and learned from windows by pairs of what was
    observed in them and ahead of them. Straight lines are better where gaps say something of the values, as
    they do where a sensor reports on change.

    Args:
        spec: Task.
        nodes: Evenly spaced nodes of the past, ascending to 0.

    References:
        Matheron, "Principles of geostatistics" (1963).
        Rehfeld et al., "Comparison of correlation analysis techniques for irregularly sampled time series"
        (2011), for covariances from pairs.
    """

    def __init__(self, spec: TaskSpec, nodes: Tensor) -> None:
        super().__init__()
        self.targets, gap = spec.num_targets, float(nodes[1] - nodes[0])
        ahead = gap * torch.arange(1.0, max(1, round(spec.horizon / gap)) + 1)
        lags = (nodes[:, None] - nodes).abs()
        self.nodes: Tensor
        self.ahead: Tensor
        self.covariance: Tensor
        self.register_buffer("nodes", nodes.clone(), persistent=False)
        self.register_buffer("ahead", ahead, persistent=False)
        self.register_buffer("covariance", torch.exp(lags / (-_MEMORY * spec.median_gap)))

    def forward(self, times: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The past at the nodes as times, values and mask `[batch, channels, nodes]`; no gap is left.

        Args:
            times: `[batch, channels, length]`, ascending, padded on the right.
            values: `[batch, channels, length]`.
            mask: `[batch, channels, length]`.
        """
        nodes = self.nodes.to(times)
        seen, weight = gathered(times, values, mask, nodes)
        path = self.conditional(seen, weight)
        return nodes.expand_as(path), path, torch.ones_like(path, dtype=torch.bool)

    def conditional(self, seen: Tensor, weight: Tensor) -> Tensor:
        """Conditional means `[batch, channels, nodes]` from observations at nodes and their weights."""
        share = weight.clamp(max=1.0)
        centre = (share * seen).sum(-1, keepdim=True) / share.sum(-1, keepdim=True).clamp(min=1e-12)
        left = (seen - centre) * (weight > 0)
        if bool((weight == weight[:, :1]).all()):  # channels with the same gaps share a matrix
            solved = self._solved(weight[:, 0], left.mT).mT
        else:
            solved = self._solved(weight.flatten(0, 1), left.flatten(0, 1).unsqueeze(-1))
            solved = solved.squeeze(-1).view_as(left)
        return centre + solved @ self.covariance.to(solved)

    def _solved(self, weight: Tensor, left: Tensor) -> Tensor:
        """Weights of the observations `[rows, nodes, channels]`, a piece of the rows at a time."""
        most = int((weight > 0).sum(-1).max()) or 1
        size = max(1, _VALUES // most**2)
        pieces = zip(weight.split(size), left.split(size), strict=True)
        return torch.cat([self._solved_piece(*piece, most) for piece in pieces])

    def _solved_piece(self, weight: Tensor, left: Tensor, most: int) -> Tensor:
        """`_solved` by systems of the observations alone, of which there are `most` at most."""
        place = (weight > 0).to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :most]
        weight = weight.gather(-1, place)
        there = weight > 0
        both = there.unsqueeze(-1) & there.unsqueeze(-2)
        matrix = self.covariance.to(left)[place.unsqueeze(-1), place.unsqueeze(-2)] * both
        noise = torch.where(there, _NOISE / weight.clamp(min=1e-3, max=1.0), 1.0)
        factor, _ = torch.linalg.cholesky_ex(matrix + torch.diag_embed(noise))
        at = place.unsqueeze(-1).expand(-1, -1, left.shape[-1])
        return torch.zeros_like(left).scatter(1, at, torch.cholesky_solve(left.gather(1, at), factor))

    @torch.no_grad()
    def learn(self, batches: Sequence[Batch]) -> None:
        """Learn the covariance from windows with known truths."""
        products, pairs = (sum(part) for part in zip(*map(self._pairs, batches), strict=True))
        assert isinstance(products, Tensor) and isinstance(pairs, Tensor)
        lags = torch.arange(len(self.nodes), device=products.device)
        table = (products / pairs.clamp(min=1e-12))[(lags[:, None] - lags).abs()]
        found, vectors = torch.linalg.eigh(table / table[0, 0].clamp(min=1e-12))
        # estimates from pairs need not be a covariance
        self.covariance.copy_((vectors * found.clamp(min=0.0)) @ vectors.mT)

    def _pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over windows of products at each lag of the nodes, and of their weights `[nodes]`, float64."""
        past = (batch.past_times, batch.past_values, batch.past_mask)
        times, values, mask = (x[:, : self.targets] for x in past)
        seen, weight = gathered(times, values, mask, self.nodes.to(times))
        observed = batch.future_observed & batch.future_mask[:, None]
        future = batch.future_times[:, None].expand_as(observed)
        ahead, further = gathered(future, batch.future_values, observed, self.ahead.to(times))
        share = weight.clamp(max=1.0)
        count = share.sum(-1, keepdim=True).clamp(min=1e-12)
        centre = (share * seen).sum(-1, keepdim=True) / count
        spread = ((share * (seen - centre).square()).sum(-1, keepdim=True) / count).sqrt()
        unit = torch.maximum(spread, _FLOOR * spread.square().mean(0, keepdim=True).sqrt()).clamp(min=1e-12)
        whole = torch.cat([seen - centre, ahead - centre], dim=-1).double() / unit
        shares = torch.cat([share, further.clamp(max=1.0)], dim=-1).double()
        size = 2 * whole.shape[-1]
        spectra = (
            torch.fft.rfft(x.flatten(0, 1), size).abs().square().sum(0) for x in (whole * shares, shares)
        )
        products, pairs = (torch.fft.irfft(x, size)[: len(self.nodes)] for x in spectra)
        return products, pairs
