"""Half precision trains the same model; times stay whole; nothing on the device is in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ctsattn.data.batch import Batch
from ctsattn.forecasting.fitting import new_network
from ctsattn.forecasting.learner import mean_loss
from ctsattn.models import MODELS, ContinuousTransformer
from ctsattn.nn.mixers import MIXERS

from .conftest import QUICK, TINY, irregular, tiny

HALF = (torch.float16, torch.bfloat16)


def some_batch() -> tuple[Any, Batch]:
    """A fitted state, and a batch of its training windows."""
    from ctsattn.data.windows import TrainingWindows

    fitted = tiny(model=MODELS["last_value"]()).fit(irregular(length=40)).fitted_
    windows = TrainingWindows(fitted.store, fitted.spec).draw(6, np.random.default_rng(0))
    return fitted, fitted.collator(fitted.store, windows, truth=True)


@pytest.fixture(scope="module")
def seen() -> tuple[Any, Batch]:
    return some_batch()


LONGER = replace(QUICK, max_steps=30, learning_rate=3e-3)


@pytest.fixture(scope="module")
def single() -> Any:
    return tiny(training=LONGER).fit(irregular(length=60))


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_training_in_half_precision_agrees_with_single_precision(single, precision):
    df = irregular(length=60)
    asked = {"horizon": "1D", "level": [80]}
    half = tiny(training=replace(LONGER, precision=precision)).fit(df)
    assert all(p.dtype == torch.float32 for p in half.fitted_.network.parameters())
    assert half.training_log_.train_loss == pytest.approx(single.training_log_.train_loss, rel=0.03)
    one, two = single.predict(**asked), half.predict(**asked)
    noise = df.groupby("unique_id")["y"].std().min()
    for column in ("ctsattn", "ctsattn-lo-80", "ctsattn-hi-80"):
        assert np.abs(one[column] - two[column]).max() < 0.1 * noise
    assert not one.equals(two)  # half precision was at work


class Watch(TorchDispatchMode):
    """Follows numbers that are times and nothing else, and notes the dtypes of all results."""

    def __init__(self, times: list[Tensor]) -> None:
        super().__init__()
        self.kept = list(times)  # so that no number of an object is given twice
        self.times = {id(x) for x in times}
        self.narrowed: list[str] = []
        self.doubled: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_floating_point()]
        pure = bool(given) and all(id(x) in self.times or x.numel() == 1 for x in given)
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._note(x, str(func), pure and any(id(y) in self.times for y in given))
        return result

    def _note(self, x: Tensor, name: str, is_time: bool) -> None:
        self.kept.append(x)
        if x.dtype == torch.float64:
            self.doubled.append(name)
        if is_time and not any(word in name for word in ("exp", "cos", "sin", "empty", "zeros", "ones")):
            self.times.add(id(x))
            if x.dtype in HALF:
                self.narrowed.append(name)


@contextmanager
def half(dtype: torch.dtype) -> Iterator[None]:
    with torch.autocast("cpu", dtype=dtype):
        yield


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("dtype", HALF)
def test_times_and_their_differences_are_never_in_half_precision(seen, mixer, dtype):
    fitted, batch = seen
    network = new_network(replace(TINY, mixer=mixer), fitted.schema, fitted.spec, 0).network
    watch = Watch([batch.past_times, batch.future_times])
    with half(dtype), watch:
        mean_loss(network, batch)
    assert len(watch.times) > 2
    assert watch.narrowed == []


def test_the_watch_sees_a_time_that_is_narrowed(seen):
    _, batch = seen
    watch = Watch([batch.past_times])
    with watch:
        (batch.past_times.diff(dim=-1) * 2.0).to(torch.bfloat16)
    assert watch.narrowed


class NoDouble(TorchDispatchMode):
    """A device that refuses double precision, as Apple's does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.dtype == torch.float64:
                raise TypeError(f"{func}: this device has no float64")
        return result


def test_the_device_without_double_precision_refuses_it_and_nothing_else():
    with NoDouble():
        assert torch.ones(2).mul(2).dtype == torch.float32
        for make in (lambda: torch.ones(2).double(), lambda: torch.zeros(2, dtype=torch.float64)):
            with pytest.raises(TypeError, match="this device has no float64"):
                make()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_step_of_training_and_a_forecast_need_no_double_precision_on_the_device(seen, name):
    fitted, batch = seen
    config = TINY if MODELS[name] is ContinuousTransformer else MODELS[name]()
    network = new_network(config, fitted.schema, fitted.spec, 0).network
    batch = batch.to("cpu")
    trainable = [p for p in network.parameters() if p.requires_grad]
    with NoDouble():
        if trainable:
            loss, _ = mean_loss(network, batch)
            loss.backward()
            torch.optim.AdamW(trainable).step()
        network.head.quantiles(network(batch), torch.tensor([0.1, 0.5, 0.9]))


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_no_mixer_needs_double_precision_on_the_device(seen, mixer):
    fitted, batch = seen
    network = new_network(replace(TINY, mixer=mixer), fitted.schema, fitted.spec, 0).network
    with NoDouble():
        mean_loss(network, batch)[0].backward()
