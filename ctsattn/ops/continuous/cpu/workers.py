"""Threads that share the tasks of a kernel; the calling thread is one of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch

# Nanoseconds. A call of a kernel costs 2 µs, and a sleeping thread needs some 50 to wake up, during which the
# calling thread goes on with the tasks: less work than `_WORTH_SHARING` is done sooner by one thread.
_AT_ONCE, _WORTH_SHARING = 20_000, 100_000

_pool: ThreadPoolExecutor | None = None


def share(
    kernel: Callable[..., object], arguments: tuple[object, ...], tasks: int, nanoseconds: float
) -> bool:
    """Call `kernel(*arguments, begin, end)` until all tasks are done, from as many threads as torch uses.

    The kernel must release the interpreter lock. Whoever is free takes the next tasks; a thread that has not
    begun when all are taken is not waited for.

    Args:
        kernel: Does the tasks from `begin` to before `end`.
        arguments: What it is told first.
        tasks: Number of tasks.
        nanoseconds: How long one task takes, roughly.

    Returns:
        Whether no call gave False.
    """
    threads, total = min(torch.get_num_threads(), tasks), tasks * nanoseconds
    if threads <= 1 or total < _WORTH_SHARING:
        return kernel(*arguments, 0, tasks) is not False
    at_once = -(-tasks // min(tasks, int(total / _AT_ONCE)))
    begins, answers = count(step=at_once), []

    def work() -> None:
        while (begin := next(begins)) < tasks:
            answers.append(kernel(*arguments, begin, min(begin + at_once, tasks)))

    _run(work, min(threads, -(-tasks // at_once)) - 1)
    return all(answer is not False for answer in answers)


def _run(work: Callable[[], None], helpers: int) -> None:
    """Do some work here and in some threads of the pool; those that have not begun at its end never do."""
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
