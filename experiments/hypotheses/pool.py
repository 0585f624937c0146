"""Several worker processes share a device and take jobs from one list."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.multiprocessing as multiprocessing

Work = Callable[[Any, Any], Any]


def share_out(
    jobs: Iterable[Any], start: Callable[[], Any], work: Work, workers: int, seconds: float
) -> Iterator[tuple[Any, Any, str]]:
    """Do jobs in several processes, in order as far as they are free.

    Args:
        jobs: The jobs; they must pickle.
        start: Makes what a worker keeps between jobs; a function of a module.
        work: Does a job, given what `start` made; a function of a module.
        workers: Processes; with 0 the jobs are done here.
        seconds: No job begins after this time.

    Yields:
        A job, its result, and the traceback if it failed ("" if not), as they finish.
    """
    deadline = time.time() + seconds
    if workers == 0:
        kept = start()
        for job in jobs:
            if time.time() < deadline:
                yield job, *_attempt(work, kept, job)
        return
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for job in jobs:
        todo.put(job)
    for _ in range(workers):
        todo.put(None)
    processes = [
        context.Process(target=_serve, args=(todo, done, start, work, deadline)) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    open_ends = workers
    while open_ends:
        answer = done.get()
        if answer is None:
            open_ends -= 1
        else:
            yield answer
    for process in processes:
        process.join()


def _serve(todo: Any, done: Any, start: Callable[[], Any], work: Work, deadline: float) -> None:
    """Take jobs until there are none or the time is up."""
    kept = start()
    while (job := todo.get()) is not None:
        if time.time() > deadline:
            break
        done.put((job, *_attempt(work, kept, job)))
    done.put(None)


def _attempt(work: Work, kept: Any, job: Any) -> tuple[Any, str]:
    """The result, or the traceback of what went wrong: one job must not end the others."""
    try:
        return work(kept, job), ""
    except Exception:
        return None, traceback.format_exc()
