"""Processes that prepare together and measure one after another."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.kernels.turns import in_turns


def prepare(item: int, place: Path) -> None:
    """Leave a mark that the item is prepared."""
    (place / str(item)).touch()


def measure(item: int, place: Path) -> tuple[int, int, float, float]:
    """How many items were prepared by then, and from when to when this took."""
    begin = time.monotonic()
    time.sleep(0.05)
    return item, len(list(place.iterdir())), begin, time.monotonic()


def refuse() -> None:
    raise RuntimeError("wrong")


def test_all_are_prepared_first_and_none_is_measured_beside_another(tmp_path: Path) -> None:
    ready, measured = partial(prepare, place=tmp_path), partial(measure, place=tmp_path)
    found = sorted(in_turns(range(5), ready, measured, lambda: None, 2), key=lambda row: row[2])
    assert sorted(row[0] for row in found) == [0, 1, 2, 3, 4]
    assert {row[1] for row in found} == {5}
    assert all(one[3] <= two[2] for one, two in pairwise(found))


def test_what_happens_meanwhile_may_end_it(tmp_path: Path) -> None:
    ready, measured = partial(prepare, place=tmp_path), partial(measure, place=tmp_path)
    with pytest.raises(RuntimeError, match="wrong"):
        list(in_turns(range(2), ready, measured, refuse, 2))
