"""Splits by rows, by shares, by time and by series."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ctsattn.datasets import split
from ctsattn.datasets.splits import FractionSplit, LastSteps, RowSplit, SeriesSplit, TimeSplit
from ctsattn.datasets.tables import ragged


def _frame(*lengths: int) -> pd.DataFrame:
    times = [np.arange(n) for n in lengths]
    return ragged([f"s{i}" for i in range(len(lengths))], times, [t.astype(float) for t in times])


def test_row_split_counts_rows_of_each_series_and_leaves_the_rest_out():
    labels = RowSplit(5, 2, 2).labels(_frame(10, 10))
    assert labels.tolist() == (["train"] * 5 + ["val"] * 2 + ["test"] * 2 + [""]) * 2
    assert RowSplit(5, 2, 2).borders(10) == {"train": (0, 5), "val": (5, 7), "test": (7, 9)}
    with pytest.raises(ValueError, match="needs 9 rows"):
        RowSplit(5, 2, 2).borders(8)


@pytest.mark.parametrize(
    ("rows", "sizes"), [(7588, (5311, 760, 1517)), (966, (676, 97, 193)), (52696, (36887, 5270, 10539))]
)
def test_fraction_split_rounds_as_the_published_loaders_do(rows, sizes):
    borders = FractionSplit().borders(rows)
    assert tuple(stop - start for start, stop in borders.values()) == sizes
    counts = pd.Series(FractionSplit().labels(_frame(rows))).value_counts()
    assert tuple(counts[part] for part in ("train", "val", "test")) == sizes


def test_last_steps_leave_a_short_series_at_least_one_row_to_train():
    labels = LastSteps(3).labels(_frame(10, 5, 3))
    assert labels[:10].tolist() == ["train"] * 4 + ["val"] * 3 + ["test"] * 3
    assert labels[10:15].tolist() == ["train", "val", "test", "test", "test"]
    assert labels[15:].tolist() == ["train", "test", "test"]


def test_time_split_shares_the_span_and_not_the_rows():
    times = np.array([0.0, 1, 2, 3, 4, 5, 6, 6.9, 7.5, 8.5, 10.0])
    frame = ragged(["a"], [times], [times])
    assert TimeSplit().labels(frame).tolist() == ["train"] * 8 + ["val"] + ["test"] * 2


def test_time_split_reads_dates_as_numbers():
    frame = ragged(
        ["a"], [np.datetime64("2030-01-01", "s") + np.arange(11) * np.timedelta64(1, "D")], [np.zeros(11)]
    )
    assert TimeSplit().labels(frame).tolist() == ["train"] * 7 + ["val"] + ["test"] * 3


def test_a_series_seen_once_is_for_training():
    assert TimeSplit().labels(_frame(1)).tolist() == ["train"]


def test_series_split_is_the_published_draw():
    parts = SeriesSplit(42).series(12000)
    assert {name: len(part) for name, part in parts.items()} == {"train": 7200, "val": 2400, "test": 2400}
    assert len(np.unique(np.concatenate(list(parts.values())))) == 12000
    # scikit-learn's permutation for random_state=42 begins the test part; fixed by its promise of stability
    expected = np.random.RandomState(42).permutation(12000)
    assert parts["test"].tolist() == expected[:2400].tolist()
    assert np.concatenate([parts["train"], parts["val"]]).tolist() == expected[2400:].tolist()


def test_split_cuts_a_frame_into_its_parts():
    parts = split(_frame(10), RowSplit(5, 2, 2))
    assert [len(part) for part in parts.values()] == [5, 2, 2]
