"""Batches made ahead by a thread: in order, not too many, and no thread is left behind."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import lightning
import pytest
import torch

from ctsattn.data.batch import Batch
from ctsattn.data.windows import TrainingWindows
from ctsattn.forecasting.prefetch import AHEAD, Ahead
from ctsattn.forecasting.streams import WindowStream

from .conftest import QUICK, irregular, tiny


@dataclass(frozen=True)
class On:
    """Where batches go."""

    device: torch.device


CPU = On(torch.device("cpu"))


def makers() -> list[threading.Thread]:
    """Threads that make batches."""
    return [thread for thread in threading.enumerate() if thread.name == "ctsattn-batches"]


def until(true: Callable[[], bool]) -> bool:
    """Wait for what another thread brings about."""
    for _ in range(500):
        if true():
            return True
        time.sleep(0.01)
    return False


def counted(made: list[int], most: int = 1000) -> Iterator[Any]:
    for number in range(most):
        made.append(number)
        yield number


def test_batches_come_in_their_order_and_the_last_one_ends_the_thread():
    made: list[int] = []
    assert list(Ahead(counted(made, 20), CPU)) == list(range(20))
    assert made == list(range(20))
    assert not makers()


def test_no_more_batches_are_made_than_may_wait():
    made: list[int] = []
    ahead = Ahead(counted(made), CPU)
    assert next(iterator := iter(ahead)) == 0
    assert until(lambda: len(made) == AHEAD + 2)
    time.sleep(0.05)
    assert len(made) == AHEAD + 2  # the one taken, those that wait, and one that waits to wait
    assert next(iterator) == 1
    ahead.close()
    assert not makers()


def test_an_error_is_raised_where_its_batch_would_have_come():
    def fails() -> Iterator[Any]:
        yield "good"
        raise ValueError("no such series")

    iterator = iter(Ahead(fails(), CPU))
    assert next(iterator) == "good"
    with pytest.raises(ValueError, match="no such series"):
        next(iterator)
    assert not makers()


def test_a_dropped_iteration_and_a_new_one_end_the_thread():
    ahead = Ahead(counted([]), CPU)
    iterator = iter(ahead)
    next(iterator)
    next(second := iter(ahead))
    assert len(makers()) == 1
    del iterator, second
    gc.collect()
    assert not makers()


def test_an_iteration_that_another_took_the_place_of_ends():
    ahead = Ahead(counted([]), CPU)
    first = iter(ahead)
    next(first)
    next(second := iter(ahead))
    assert list(first) == []
    assert next(second) is not None
    ahead.close()
    assert list(second) == []


def test_close_waits_for_a_batch_in_the_making():
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        yield 0
        begun.set()
        go_on.wait(10)
        ended.set()
        yield 1

    ahead = Ahead(slow(), CPU)
    next(iter_ := iter(ahead))
    assert begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    ahead.close()
    assert ended.is_set() and not makers()
    del iter_


class Look(lightning.Callback):
    """Sees the thread at work, and may end the fit."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.seen = error, 0

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        self.seen = max(self.seen, len(makers()))
        if self.error is not None and trainer.global_step == 3:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("halt"), KeyboardInterrupt()])
def test_the_thread_ends_with_the_fit_however_it_ends(error):
    look = Look(error)
    model = tiny(training=replace(QUICK, trainer={"callbacks": [look]}))
    if error is None:
        model.fit(irregular())
    else:
        with pytest.raises(type(error)):
            model.fit(irregular())
    assert look.seen == 1
    assert not makers()


@pytest.fixture
def heard() -> Iterator[Any]:
    """A handler of interrupts of its own: a process in the background of a shell ignores them."""

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    yield handler
    signal.signal(signal.SIGINT, before)


class Early(lightning.Callback):
    """Interrupts while the run is prepared, when Lightning has not yet noted the handlers that it found."""

    def setup(self, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("callback", [Early(), Look(KeyboardInterrupt())])
def test_after_an_interrupted_fit_the_next_interrupt_is_heard(heard, callback):
    model = tiny(training=replace(QUICK, trainer={"callbacks": [callback]}))
    with pytest.raises(KeyboardInterrupt):
        model.fit(irregular())
    assert signal.getsignal(signal.SIGINT) is heard


def test_training_reads_the_batches_of_the_stream_and_they_are_made_in_the_thread(monkeypatch):
    names: list[str] = []
    make = WindowStream.__iter__

    def told(self: WindowStream) -> Iterator[Batch]:
        for batch in make(self):
            names.append(threading.current_thread().name)
            yield batch

    plain = tiny().fit(irregular())
    monkeypatch.setattr(WindowStream, "__iter__", told)
    again = tiny().fit(irregular())
    assert set(names) == {"ctsattn-batches"}
    monkeypatch.setattr(Ahead, "__iter__", lambda self: iter(self.batches))
    alone = tiny().fit(irregular())
    for name, value in plain.fitted_.network.state_dict().items():
        assert torch.equal(value, again.fitted_.network.state_dict()[name])
        assert torch.equal(value, alone.fitted_.network.state_dict()[name])


@pytest.mark.gpu
def test_batches_for_a_gpu_are_in_pinned_memory(batch: Batch):
    found = next(iter(Ahead([batch], On(torch.device("cuda", 0)))))
    moved = [f.name for f in fields(found) if getattr(found, f.name).dtype != torch.float64]
    assert all(getattr(found, name).is_pinned() for name in moved if getattr(found, name).numel())
    there = found.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    for field in fields(batch):
        assert torch.equal(getattr(there, field.name).cpu(), getattr(batch, field.name)), field.name


@pytest.fixture
def batch() -> Batch:
    model = tiny().fit(irregular())
    fitted = model.fitted_
    assert fitted.store is not None
    windows = TrainingWindows(fitted.store, fitted.spec, impute=0.5)
    return next(iter(WindowStream(windows, fitted.collator, 8, 0)))
