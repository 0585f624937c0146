"""Batches made ahead of the training loop, in a thread of their own.

Cutting and scaling windows is NumPy's work, which lets go of Python's lock for most of its time, so that one
thread makes the next batches while the training thread waits for the device. A thread shares the store, where
the worker processes of a `torch.utils.data.DataLoader` would have to be forked (not safe after CUDA and
threads have started) or be sent a copy of it, and would send every batch back through shared memory. And it
is one generator in one order, so that a checkpoint can name the state before any batch. Lightning's own
prefetching draws one batch ahead in the training thread itself, and so saves no time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch

from ctsattn.data.batch import Batch

AHEAD = 2  # batches that wait; one more is in the making


class HasDevice(Protocol):
    """Says where batches go, once training has begun."""

    @property
    def device(self) -> torch.device | str:
        """The device of this process."""
        ...


class Ahead:
    """The batches of an iterable in their order, made ahead by a thread while those before are used.

    The thread starts with an iteration and ends with it, whether it is exhausted, closed or dropped; `close`
    ends it at once. What the iterable raises is raised where its batch would have come.

    Args:
        batches: Iterated by the thread, one iteration at a time.
        goes_to: Where they go. For a CUDA device they are put into pinned memory.
    """

    def __init__(self, batches: Iterable[Batch], goes_to: HasDevice) -> None:
        self.batches = batches
        self.goes_to = goes_to
        self._maker: _Maker | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        maker = self._maker = _Maker(self.batches, torch.device(self.goes_to.device))
        maker.start()
        try:
            yield from maker.made()
        finally:
            maker.close()

    def close(self) -> None:
        """End the thread; returns when it has ended, which takes one batch at most."""
        if self._maker is not None:
            self._maker.close()
            self._maker = None


class _Maker(threading.Thread):
    """Makes batches until there are none or it is closed; what it puts last is None or an error."""

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        super().__init__(name="ctsattn-batches", daemon=True)
        self._batches = batches
        self._device = device
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(AHEAD)
        self._closed = threading.Event()

    def run(self) -> None:
        """The thread's work."""
        try:
            with _on(self._device):
                self._make()
        except BaseException as error:
            self._queue.put(error)

    def _make(self) -> None:
        pinned = self._device.type == "cuda"
        for batch in self._batches:
            self._queue.put(batch.pin_memory() if pinned else batch)
            if self._closed.is_set():
                return
        self._queue.put(None)

    def made(self) -> Iterator[Batch]:
        """What comes out of the thread."""
        while (found := self._queue.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def close(self) -> None:
        """End the thread. It may wait to put one batch, for which the emptied queue has room."""
        self._closed.set()
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()
            # Python may collect a dropped iteration in any thread, in this one too.
            if not self.is_alive() or threading.current_thread() is self:
                break
            self.join(0.05)
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)  # who still reads an iteration that was closed is told of its end


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Each thread has a current device of its own; pinning on the first one would claim memory there."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
