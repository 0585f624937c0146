"""Tasks dealt among threads: all are done once, and one that breaks off is heard of."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")
from numba import carray

from ctsattn.ops.continuous.cpu import workers
from ctsattn.ops.continuous.cpu.caching import compiled_for_threads
from ctsattn.ops.continuous.cpu.places import FAILED, HEADER, PARTS, done, part_of

TASKS, BROKEN, REFUSED = 12, HEADER, HEADER + 1  # in the call: which task breaks off, and which one fails
BEGIN = HEADER + 2
MOST = BEGIN + TASKS


@pytest.fixture(scope="module")
def kernel() -> Any:
    def counting(place):
        call = carray(place, (MOST,), np.int64)
        for turn in range(call[PARTS]):
            part = part_of(call, turn)
            for task in part:
                if task == call[BROKEN]:
                    raise MemoryError
                if task == call[REFUSED]:
                    call[FAILED] = 1
                call[BEGIN + task] += 1
            done(call, part)

    return compiled_for_threads(counting)


@pytest.fixture(params=["one thread", "torch's threads", "the pool"])
def threads(request, monkeypatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "one thread" else 3)
    if request.param == "the pool":
        monkeypatch.setattr(workers, "_TEAM", None)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[False, True])
def deal(request, kernel, threads) -> Callable[..., tuple[bool, list[int]]]:
    def run(broken: int = -1, refused: int = -1, tasks: int = TASKS) -> tuple[bool, list[int]]:
        call = array("q", [0] * HEADER + [broken, refused] + [0] * TASKS)
        return workers.deal(kernel, call, tasks, 1e6, request.param), list(call[BEGIN:])

    return run


@pytest.mark.parametrize("tasks", [0, 1, 2, 7, TASKS])
def test_each_task_is_done_once(deal, tasks):
    assert deal(tasks=tasks) == (True, [1] * tasks + [0] * (TASKS - tasks))


def test_a_task_that_fails_is_told(deal):
    assert not deal(refused=5)[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # how numba tells of it
@pytest.mark.parametrize("task", [0, 5, TASKS - 1])
def test_a_task_that_breaks_off_is_no_success(deal, task):
    with pytest.raises(MemoryError, match="ended before its work was done"):
        deal(broken=task)
