"""Which windows come when: the same for our models and for peers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

VALIDATION = 4096  # rows of the batches that early stopping looks at
EVALUATED = 512  # rows of a batch at once; the numbers do not depend on it


def shuffled(count: int, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Endless batches of indices; each is drawn once before any is drawn again."""
    rng = np.random.default_rng([seed, 7])
    left = np.zeros(0, dtype=np.int64)
    while True:
        while len(left) < batch_size:
            left = np.concatenate([left, rng.permutation(count)])
        yield left[:batch_size]
        left = left[batch_size:]


def spread(count: int, most: int) -> np.ndarray:
    """At most `most` indices, evenly over all."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
