import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ctsattn.data.building import build_store, learn_schema
from ctsattn.data.collate import Collator
from ctsattn.data.frame import read_panel
from ctsattn.data.schema import Columns
from ctsattn.data.steps import future_ticks, series_steps
from ctsattn.data.task import infer_task
from ctsattn.data.windows import answer_windows


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_forecast_that_knows_the_truth_gives_back_the_rows_that_were_held_out(library, rng):
    hours = pd.date_range("2024-10-20", periods=240, freq="h", tz="Europe/Berlin")
    parts = [
        pd.DataFrame({"shop": name, "when": hours, "sold": level + rng.normal(size=240)})
        for name, level in (("b", 1e6), ("a", -3.0))
    ]
    frame, later = (pd.concat([part[keep] for part in parts]) for keep in (slice(0, 200), slice(200, 212)))
    convert = {
        "pandas": lambda f: f,
        "polars": pl.from_pandas,
        "pyarrow": lambda f: pa.Table.from_pandas(f, preserve_index=False),
    }[library]
    columns = Columns.of("shop", "when", "sold")

    schema, store = learn_schema(read_panel(convert(frame), columns))
    spec = infer_task(store, schema, horizon=24)
    ticks = future_ticks(store, series_steps(store, schema.step), 12).reshape(-1)
    rows = np.repeat(np.arange(store.num_series), 12)
    windows = answer_windows(store, spec, rows, ticks)
    whole = build_store(read_panel(convert(pd.concat([frame, later])), columns), schema)
    batch = Collator(schema, spec)(whole, windows, truth=True)
    values = batch.unscale(batch.future_values.numpy())[:, 0][batch.future_mask.numpy()]

    answer = store.source.frame(rows, ticks, {"sold": values})
    assert type(answer) is type(convert(frame))
    answer = answer if library == "pandas" else answer.to_pandas()
    expected = later.reset_index(drop=True)
    assert answer["shop"].tolist() == expected["shop"].tolist()
    assert answer["when"].tolist() == expected["when"].tolist()
    np.testing.assert_allclose(answer["sold"], expected["sold"], atol=1e-5)
