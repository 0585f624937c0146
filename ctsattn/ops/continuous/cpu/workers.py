"""Threads that share the tasks of a kernel; the calling thread is one of them.

A thread of a pool that sleeps needs some 50 µs to wake up, and then competes with those of torch, which wait
awake for a while after each of its operators. So what is told by addresses alone is given to torch's own
threads, in 5 µs, where torch has them from GNU's OpenMP.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ctsattn.ops.continuous.cpu.places import COUNTS, FAILED, PARTS, TASKS, WHO

# Nanoseconds. A sleeping thread needs some 50 µs to wake up, during which the calling thread goes on with the
# tasks: less work than `_WORTH_SHARING` is done sooner by one thread.
_AT_ONCE, _WORTH_SHARING, _WORTH_A_TEAM = 20_000, 100_000, 15_000

_pool: ThreadPoolExecutor | None = None


def deal(kernel: Any, call: array, tasks: int, nanoseconds: float, finely: bool = False) -> bool:
    """Have a call's tasks done by as many threads as torch uses.

    Args:
        kernel: A C function that is told the address of the call, see `caching.compiled_for_threads`.
        call: What it is told, see `places`; the kernel takes tasks until none is left.
        tasks: Number of tasks.
        nanoseconds: How long one task takes, roughly.
        finely: Whether tasks differ in length, so that threads take a few at a time rather than their share.

    Returns:
        Whether none has failed.

    Raises:
        MemoryError: A thread ended before its tasks were done.
    """
    total, threads, parts = tasks * nanoseconds, 1, 1
    if total >= (_WORTH_SHARING if _TEAM is None else _WORTH_A_TEAM):
        threads = min(torch.get_num_threads(), tasks)
    if threads > 1:
        parts = threads
        if finely or _TEAM is None:
            parts = min(tasks, max(threads, int(total / _AT_ONCE)))
    counts = array("q", bytes(8 * (parts + 1)))
    call[TASKS], call[PARTS], call[COUNTS] = tasks, parts, counts.buffer_info()[0]
    address = call.buffer_info()[0]
    if threads == 1:
        kernel(address)
    elif _TEAM is None:
        _run(lambda: kernel(address), threads - 1)
    else:
        start, call[WHO] = _TEAM
        start(kernel, address, threads, 0)
    if call[FAILED]:
        return False
    if counts[parts] < -(-tasks // max(1, -(-tasks // parts))):
        raise MemoryError(
            "A thread of a kernel ended before its work was done: it found no memory to work in."
        )
    return True


def _team() -> tuple[Any, int] | None:
    """How to call a function in the threads of torch's OpenMP, and the address of what numbers these.

    The first is `GOMP_parallel`: function, what it is told, threads, flags. It may give fewer threads.
    """
    if sys.platform != "linux" or not torch.backends.openmp.is_available():
        return None
    symbols = ctypes.CDLL(None)
    try:
        start, number = symbols.GOMP_parallel, symbols.omp_get_thread_num
    except AttributeError:  # another OpenMP, or one that is not for all to see
        return None
    start.argtypes, start.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return start, ctypes.cast(number, ctypes.c_void_p).value or 0


_TEAM = _team()


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
    """Drop the pool and the team: a forked process has not their threads, and OpenMP would wait for them."""
    global _pool, _TEAM
    _pool = _TEAM = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
