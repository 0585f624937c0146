"""The moving average of the weights."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch

from ctsattn.forecasting.averaging import WeightAverage
from ctsattn.forecasting.training import Training, train
from tests.forecasting.test_training import Constant, Stream, batch_of, fast


class Levels(lightning.Callback):
    """The weight after each step, and the one that each validation round sees."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.validated: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.steps.append(module.network.level.item())

    def on_validation_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        self.validated.append(module.network.level.item())


def averages(steps: list[float], share: float) -> list[float]:
    """The average after each step, by its definition."""
    found = [steps[0]]
    for step, level in enumerate(steps[1:], start=2):
        past = min(share, (1 + step) / (10 + step))
        found.append(past * found[-1] + (1 - past) * level)
    return found


def swinging(step: int) -> Any:
    """Batches that pull up and down in turn."""
    return batch_of(3.0 if step % 2 else -1.0)


def test_what_remains_is_the_average_of_the_weights_by_its_definition():
    network, seen = Constant(), Levels()
    options = fast(average=0.8, trainer={"callbacks": [seen], "max_steps": 25})  # while the rate is high
    train(network, Stream(swinging), None, options, seed=0)
    assert network.level.item() == pytest.approx(averages(seen.steps, 0.8)[-1], rel=1e-5)
    assert network.level.item() != pytest.approx(seen.steps[-1], rel=1e-3)


def test_the_average_is_validated_and_kept_while_the_steps_go_on_from_where_they_were():
    network, seen, alone = Constant(), Levels(), Levels()
    options = {"max_steps": 30, "validate_every": 5, "patience": 100}
    kept = fast(average=0.8, trainer={"callbacks": [seen]}, **options)
    log = train(network, Stream(swinging), [batch_of(1.0)], kept, seed=0)
    train(Constant(), Stream(swinging), None, fast(max_steps=30, trainer={"callbacks": [alone]}), seed=0)
    assert seen.steps == alone.steps, "steps do not feel the average"
    expected = averages(seen.steps, 0.8)
    assert seen.validated == pytest.approx(expected[4::5], rel=1e-5)
    assert network.level.item() == pytest.approx(expected[log.best_step - 1], rel=1e-5)


def test_an_average_of_a_checkpoint_goes_to_the_device_of_the_weights():
    kept = WeightAverage(0.9)
    kept.restore({"level": torch.zeros(1)}, torch.device("meta"))
    assert kept.average is not None and kept.average["level"].is_meta
    kept.restore({}, torch.device("meta"))
    assert kept.average is None


def test_weights_spread_over_devices_have_no_average():
    with pytest.raises(ValueError, match=r"`Training.average` needs whole weights"):
        Training(average=0.9, strategy="fsdp").check()
