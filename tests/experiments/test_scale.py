"""The script that kills runs, at its smallest."""

from __future__ import annotations

from experiments.scale import kills


def test_a_fit_that_was_killed_ends_as_one_that_was_not():
    rows = kills.run(1, seed=1, tell=lambda _: None, phases=("fit",))
    assert [row["phase"] for row in rows] == ["fit"]
    assert all(row["same_result"] for row in rows)
