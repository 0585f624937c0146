"""What ten thousand short series cost: time beside a bare torch loop over the same batches, and memory."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ctsattn import Forecaster, models
from ctsattn.forecasting import Training
from ctsattn.forecasting.learner import mean_loss

from .conftest import tiny

SERIES, LENGTH, STEPS = 10_000, 50, 40
LEVELS = torch.tensor([0.1, 0.5, 0.9])


@dataclass(frozen=True)
class Recording(models.ContinuousTransformer):
    """Remembers every batch that its network reads, and whether it was read to learn."""

    seen: list[Any] = field(default_factory=list, compare=False)

    def build(self, spec):
        network = super().build(spec)
        network.register_forward_pre_hook(lambda module, args: self.seen.append((module.training, *args)))
        return network


def irregular(series: int, lengths: np.ndarray) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    hours = [np.cumsum(rng.uniform(0.1, 2.0, length)) for length in lengths]
    flat = np.concatenate(hours)
    stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta((flat * 3600).astype(int), "s")
    y = np.sin(2 * np.pi * flat / 24) + 0.1 * rng.standard_normal(len(flat))
    return pd.DataFrame({"unique_id": np.repeat(np.arange(series), lengths), "ds": stamps, "y": y})


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def bare_loop(spec: Any, config: models.ContinuousTransformer, seen: list[Any]) -> None:
    """A network, AdamW, and the batches: forward and backward to learn, quantiles otherwise."""
    network = models.ContinuousTransformer(
        d_model=config.d_model, num_layers=config.num_layers, num_heads=config.num_heads
    ).build(spec)
    optimiser = torch.optim.AdamW(network.parameters())
    for learns, batch in seen:
        network.train(learns)
        if not learns:
            with torch.inference_mode():
                network.head.quantiles(network(batch), LEVELS).float().numpy()
            continue
        optimiser.zero_grad()
        mean_loss(network, batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()


def test_31_fit_and_predict_on_ten_thousand_series_cost_at_most_three_bare_torch_loops():
    frame = irregular(SERIES, np.full(SERIES, LENGTH))
    training = Training(max_steps=STEPS, accelerator="cpu")

    def both() -> Forecaster:
        # A small network, so that the work around it weighs as much as it ever does.
        config = Recording(d_model=16, num_layers=1, num_heads=2)
        forecaster = Forecaster(horizon="12h", model=config, training=training, verbose=False)
        forecaster.fit(frame)
        forecaster.predict(h=6, level=[80])
        return forecaster

    ratios = []
    for _ in range(3):
        made: list[Forecaster] = []
        ours = seconds(lambda made=made: made.append(both()))
        model = made[0].model
        batches = [*model.seen]
        assert sum(learns for learns, _ in batches) == STEPS
        # The bare loop is no straw man: few and large batches, not one for each series.
        assert max(len(batch.series) for _, batch in batches) > 1000
        bare = seconds(lambda m=made[0], b=batches: bare_loop(m.fitted_.spec, m.model, b))
        ratios.append(ours / bare)
    assert median(ratios) < 3, ratios


def peak(frame: pd.DataFrame) -> int:
    """Most bytes that a fit and a forecast hold at once, the frame itself apart."""
    model = tiny(model=models.SeasonalNaive(period=24.0), horizon="12h")
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame)
        model.predict(h=2)
    _, top = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return top


@pytest.fixture(scope="module")
def even() -> int:
    peak(irregular(10, np.full(10, 10)))  # what is imported on the way is not counted
    return peak(irregular(2000, np.full(2000, 20)))


def test_31_memory_grows_with_the_sum_of_observations(even):
    assert peak(irregular(8000, np.full(8000, 20))) < 1.25 * 4 * even


def test_31_one_long_series_among_short_ones_costs_its_own_observations_only(even):
    lengths = np.full(2000, 10)
    lengths[7] = 20_000
    assert peak(irregular(2000, lengths)) < 2 * even
