"""Smooth random keys and values on [0, 1], grids to sample them on, and attention of the continuum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

HEADS, KEY_WIDTH, VALUE_WIDTH, WAVES = 16, 4, 4, 6
GRIDS = ("regular", "jittered", "uneven", "random")


class Signal(NamedTuple):
    """Sums of sines `[heads, width, waves]`: smooth functions with a known value everywhere."""

    amplitude: Array
    frequency: Array
    phase: Array

    def at(self, times: Array) -> Array:
        """Values `[heads, length, width]`."""
        waves = np.sin(self.frequency[:, None] * times[None, :, None, None] + self.phase[:, None])
        return (self.amplitude[:, None] * waves).sum(axis=-1)


class Problem(NamedTuple):
    """One query for each head, and the functions it attends to."""

    query: Array
    key: Signal
    value: Signal

    def sample(self, times: Array) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values `[1, heads, length, width]` and times `[length]`, all float64."""
        given = self.query[:, None], self.key.at(times), self.value.at(times)
        q, k, v = (torch.from_numpy(x)[None] for x in given)
        return q, k, v, torch.from_numpy(times)

    def exact(self) -> Array:
        """The quotient of the two integrals over [0, 1], `[heads, width]`, by Gauss-Legendre quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(20)
        edges = np.linspace(0, 1, 257)
        half = np.diff(edges) / 2
        times = (edges[:-1, None] + half[:, None] * (nodes + 1)).ravel()
        scores = np.einsum("hd,hnd->hn", self.query, self.key.at(times)) / np.sqrt(KEY_WIDTH)
        density = (half[:, None] * weights).ravel() * np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("hn,hnd->hd", density, self.value.at(times)) / density.sum(axis=1)[:, None]


def problem(seed: int, roughness: float = 1.0, sharpness: float = 2.0) -> Problem:
    """A random problem.

    Args:
        seed: Of NumPy's generator.
        roughness: Multiplies the frequencies of keys and values.
        sharpness: Size of the queries.
    """
    generator = np.random.default_rng(seed)

    def signal(width: int) -> Signal:
        shape = (HEADS, width, WAVES)
        amplitude = generator.normal(size=shape) * np.sqrt(2 / WAVES)
        frequency = roughness * generator.normal(scale=8.0, size=shape)
        return Signal(amplitude, frequency, generator.uniform(0, 2 * np.pi, size=shape))

    query = sharpness * generator.normal(size=(HEADS, KEY_WIDTH))
    return Problem(query, signal(KEY_WIDTH), signal(VALUE_WIDTH))


def grid(kind: str, pieces: int, seed: int) -> Array:
    """`pieces + 1` ascending times from 0 to 1."""
    generator = np.random.default_rng([seed, pieces])
    steps = np.arange(pieces + 1, dtype=np.float64)
    match kind:
        case "jittered":
            steps[1:-1] += generator.uniform(-0.45, 0.45, pieces - 1)
        case "uneven":
            steps[1:-1] += generator.uniform(-0.3, 0.3, pieces - 1)
            return (steps / pieces) ** 2
        case "random":
            return np.concatenate([[0.0], np.sort(generator.uniform(size=pieces - 1)), [1.0]])
    return steps / pieces
