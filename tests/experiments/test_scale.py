"""The script that kills runs, at its smallest."""

from __future__ import annotations

from experiments.scale import kills


def test_a_fit_and_a_forecast_that_were_killed_end_as_those_that_were_not():
    rows = kills.run(2, seed=1, tell=lambda _: None, phases=("fit", "predict"))
    assert [row["phase"] for row in rows] == ["fit", "predict"]
    assert all(row["same_result"] for row in rows)
