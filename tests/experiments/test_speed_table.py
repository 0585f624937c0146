"""The table of the whole's speed: which rows it shows, and how the systems compare in it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from experiments.benchmarks import speed

_RUN = {"lookback": 336, "horizon": 96, "windows": 64, "threads": 2}


def row(system: str, fit: float, commit: str = "new", **config: Any) -> dict[str, Any]:
    """A measured row of the small size with the present settings, or others."""
    measured = dict.fromkeys(speed._MEASURES, 1.0) | {"class_seconds": 2.0, "fit_seconds": fit}
    config = _RUN | speed.SIZES["small"][system] | config
    place = {"system": system, "size": "small", "device": "CPU", "steps": 60, "round": 0, "params": 1000}
    return place | measured | {"commit": commit, "versions": "", "config": json.dumps(config)}


def shown(tmp_path, rows: list[dict[str, Any]]) -> str:
    pd.DataFrame(rows).to_csv(tmp_path / "times.csv", index=False)
    return speed.table(tmp_path / "times.csv")


def test_the_table_has_the_latest_commit_and_what_a_user_waits_for(tmp_path):
    rows = [row(s, fit, commit) for commit, fit in (("old", 9.0), ("new", 4.0)) for s in speed.SIZES["small"]]
    rows += [row("PatchTST", 8.0)]
    table = shown(tmp_path, rows)
    assert "commit new" in table and "old" not in table
    assert "| ctsattn | 1,000 | 1.00 | 2.00 | 4.00 | 6.00 |" in table
    assert "| PatchTST | 1,000 | 1.00 | 2.00 | 6.00 | 8.00 |" in table
    assert "| *PatchTST ÷ ctsattn* | 1.00 | 1.00 | 1.00 | 1.50 | 1.33 |" in table


def test_rows_of_other_settings_and_of_one_system_alone_are_left_out(tmp_path):
    assert shown(tmp_path, [row("ctsattn", 4.0, d_model=7), row("PatchTST", 4.0)]) == ""
