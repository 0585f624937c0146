"""Threads that share the tasks of a kernel; the calling thread is one of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch

# About 20 µs of work: a call of a kernel costs 2, and a sleeping thread may need 100 to wake up, during which
# the calling thread goes on with the tasks.
_SCORES_AT_ONCE = 20_000

_pool: ThreadPoolExecutor | None = None


def share(kernel: Callable[[int, int], None], tasks: int, scores: int) -> None:
    """Call `kernel(begin, end)` until all tasks are done, from as many threads as torch uses.

    The kernel must release the interpreter lock. Whoever is free takes the next tasks; a thread that has not
    begun when all are taken is not waited for.

    Args:
        kernel: Does the tasks from `begin` to before `end`.
        tasks: Number of tasks.
        scores: Scores of one task, which tell how long it takes.
    """
    threads = torch.get_num_threads()
    shares = min(threads, tasks, tasks * scores // _SCORES_AT_ONCE)
    if shares <= 1:
        kernel(0, tasks)
        return
    shares = min(tasks, tasks * scores // _SCORES_AT_ONCE)
    at_once = -(-tasks // shares)
    begins = count(step=at_once)

    def work() -> None:
        while (begin := next(begins)) < tasks:
            kernel(begin, min(begin + at_once, tasks))

    helpers = min(threads, -(-tasks // at_once)) - 1
    futures = [_threads().submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        for future in futures:
            if not future.cancel():
                future.result()


def _threads() -> ThreadPoolExecutor:
    """The pool, made when it is first needed."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="ctsattn")
    return _pool


def _forget() -> None:
    """Drop the pool: a forked process has not its threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
