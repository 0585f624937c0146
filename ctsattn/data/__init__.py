"""From frames to batches and back. Each module says its part; `batch` alone needs no pandas.

panel = read_panel(df, Columns.of(...))                    # frame: check
schema, store = learn_schema(panel)                        # building: normalise (fit)
store = build_store(read_panel(df2, schema.columns), schema)   # building: new history (predict)
spec = infer_task(store, schema, horizon=24)               # task: sizes and units
windows = TrainingWindows(store, spec).draw(32, rng)       # windows: cut past from future
batch = Collator(schema, spec, "standard")(store, windows, truth=True)     # collate
queries = ask_steps(store, series_steps(store, schema.step), h=12)         # queries
windows, in_sample = answer_windows(store, spec, queries)
answer = store.source.frame(queries.series, queries.ticks, {"ctsattn": values})   # and back
"""
