"""Measurements that several processes get ready for at the same time and take one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import SpawnContext
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
PATIENCE = 300.0  # seconds until a process that does not answer counts as dead


def in_turns(
    items: Sequence[Item],
    prepare: Callable[[Item], object],
    measure: Callable[[Item], Result],
    meanwhile: Callable[[], object],
    workers: int,
) -> Iterator[Result]:
    """Results of `measure` for all items, in any order.

    Args:
        items: What to measure.
        prepare: Compiles and plans what an item needs; called by `workers` processes at the same time.
        measure: Called for one item at a time, by the process that prepared it, when all are prepared.
        meanwhile: Called in this process while the others prepare; what it raises ends all.
        workers: How many processes.

    Raises:
        BrokenBarrierError: A process died while it prepared its items.
        queue.Empty: A process died while it measured.
    """
    context = SpawnContext()
    ready, turn, results = context.Barrier(workers + 1), context.Lock(), context.Queue()
    shared = (prepare, measure, ready, turn, results)
    children = [
        context.Process(target=_work, args=(items[i::workers], *shared), daemon=True) for i in range(workers)
    ]
    for child in children:
        child.start()
    try:
        meanwhile()
        ready.wait(PATIENCE)
        for _ in items:
            yield results.get(timeout=PATIENCE)
    finally:
        for child in children:
            child.terminate()


def _work(
    items: Sequence[Item],
    prepare: Callable[[Item], object],
    measure: Callable[[Item], object],
    ready: Any,
    turn: Any,
    results: Any,
) -> None:
    """What a process does with its share of the items."""
    for item in items:
        prepare(item)
    ready.wait(PATIENCE)
    for item in items:
        with turn:
            result = measure(item)
        results.put(result)
