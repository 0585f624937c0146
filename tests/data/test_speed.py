import time

import numpy as np
import pandas as pd

from ctsattn.data.building import learn_schema
from ctsattn.data.collate import Collator
from ctsattn.data.frame import read_panel
from ctsattn.data.schema import Columns
from ctsattn.data.task import infer_task
from ctsattn.data.windows import TrainingWindows, answer_windows
from tests.data.frames import read


def seconds(work, repeats=3):
    """Best time of a few, so that a busy machine is not held against either side."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def test_a_million_rows_cost_at_most_five_times_one_sort(rng):
    count = 1_000_000
    minutes = pd.to_timedelta(rng.permutation(count), unit="min").as_unit("us")
    frame = pd.DataFrame(
        {
            "unique_id": rng.integers(0, 1000, count).astype(str),
            "ds": pd.Timestamp("2020") + minutes,
            "y": rng.normal(size=count),
        }
    )
    ours = seconds(lambda: learn_schema(read_panel(frame, Columns())), repeats=2)
    assert ours <= 5 * seconds(lambda: frame.sort_values(["unique_id", "ds"]), repeats=2)


def test_ten_thousand_short_series_are_collated_in_half_the_time_of_a_loop_over_them(rng):
    count, length = 10_000, 50
    frame = pd.DataFrame(
        {
            "unique_id": np.repeat(np.arange(count), length),
            "ds": rng.uniform(0, 50, count * length),
            "y": rng.normal(size=count * length),
        }
    )
    schema, store = read(frame)
    spec = infer_task(store, schema)
    collate = Collator(schema, spec)
    rows = np.repeat(np.arange(count), 12)
    windows = answer_windows(store, spec, rows, (store.end[:, None] + np.arange(1, 13)).reshape(-1))
    groups = [part for _, part in frame.sort_values(["unique_id", "ds"]).groupby("unique_id")]

    def by_pandas():
        for part in groups[:1000]:
            values = part["y"].to_numpy()
            (values - values.mean()) / values.std()

    assert seconds(lambda: collate(store, windows)) <= 10 * seconds(by_pandas) / 2  # half of a bare loop


def test_drawing_a_batch_does_not_grow_with_the_data(rng):
    def cost(count):
        frame = pd.DataFrame(
            {
                "unique_id": np.repeat(np.arange(count // 1000), 1000),
                "ds": np.tile(np.arange(1000), count // 1000),
                "y": rng.normal(size=count),
            }
        )
        schema, store = read(frame)
        spec = infer_task(store, schema, detect=False)
        windows, collate = TrainingWindows(store, spec), Collator(schema, spec)
        collate(store, windows.draw(2, rng))  # what is cached is made once
        return seconds(lambda: collate(store, windows.draw(32, rng), truth=True), repeats=5)

    assert cost(400_000) <= 5 * cost(20_000)
