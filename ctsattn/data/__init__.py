"""From frames to batches and back. Each module says its part; `batch` alone needs no pandas.

The way of a forecast, with the module of each step:

    panel = read_panel(df, Columns.of(...))                              # frame: check
    schema, store = learn_schema(panel)                                  # building: normalise, in `fit`
    spec = infer_task(store, schema, horizon=24)                         # task: sizes and units
    windows = TrainingWindows(store, spec).draw(32, rng)                 # windows: cut past from future
    batch = Collator(schema, spec, "standard")(store, windows, truth=True)   # collate: scale and pad

    store = build_store(read_panel(new, schema.columns), schema)         # building: history, in `predict`
    ticks = future_ticks(store, series_steps(store, schema.step), 12)    # steps: [series, 12]
    rows = np.repeat(np.arange(store.num_series), 12)
    windows = answer_windows(store, spec, rows, ticks.reshape(-1))       # windows: queries in row order
    answer = store.source.frame(rows, ticks.reshape(-1), {"ctsattn": values})   # and the way back
"""
