"""Threads that share the tasks of a kernel; the calling thread is one of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch

# About 50 µs of work; to hand it to a thread takes a tenth of that.
_SCORES_AT_ONCE = 50_000

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
    shares = min(tasks, tasks * scores // _SCORES_AT_ONCE // threads * threads)
    at_once = -(-tasks // max(1, shares))
    begins = count(step=at_once)

    def work() -> None:
        while (begin := next(begins)) < tasks:
            kernel(begin, min(begin + at_once, tasks))

    helpers = min(threads, -(-tasks // at_once)) - 1 if tasks else 0
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
