"""For each behaviour the one-line change that breaks it, and the test that must fail then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A change of one place of the package.

    Attributes:
        behaviour: Number in the list of behaviours, A1 to A14 for a public bug report, or a word for what
            came later.
        file: File under `ctsattn/`.
        old: Text that occurs there once.
        new: What takes its place.
        test: Test under `tests/` that must fail; several share it if a part of the name is given with `-k`.
    """

    behaviour: str
    file: str
    old: str
    new: str
    test: str


_DATA = "forecasting/test_behaviours_data.py"
_FIT = "forecasting/test_behaviours_fit.py"
_PREDICT = "forecasting/test_behaviours_predict.py"
_EVALUATE = "forecasting/test_behaviours_evaluate.py"
_KEEP = "forecasting/test_behaviours_keep.py"
_REPORTS = "forecasting/test_reports.py"
_DEVICES = "forecasting/test_devices.py"
_STREAMS = "forecasting/test_streams.py"
_COMMANDS = "cli/test_commands.py"

_ELAPSED = "elapsed = times - np.repeat(cutoff, counts)"
_RANKS = "elapsed = 3_600_000_000 * np.arange(len(times))"
_UNION = (
    "on_union = np.zeros((len(windows), len(np.unique(store.past.times[past.at]))))\n"
    "        values, loc, scale = self._scaled(store, past, layout)"
)

TABLE = [
    Mutation(
        "1",
        "data/dialects.py",
        "return alias if name not in table and alias in table else name",
        "return name",
        f"{_DATA} -k test_01",
    ),
    Mutation(
        "2", "data/dialects.py", "return replace(found, id=None)", "return found", f"{_DATA} -k test_02"
    ),
    Mutation("3", "data/collate.py", _ELAPSED, _RANKS, f"{_DATA} -k test_03_one_model"),
    Mutation("4", "data/collate.py", _ELAPSED, "elapsed = times", f"{_DATA} -k test_04_shifting"),
    Mutation(
        "4",
        "data/times.py",
        "return raw * factor, replace",
        "return raw, replace",
        f"{_DATA} -k test_04_the_unit",
    ),
    Mutation(
        "5",
        "forecasting/backtest.py",
        "queries = Ragged(moments.times[at], ",
        "queries = Ragged(moments.times[at] + 1, ",
        f"{_DATA} -k test_05",
    ),
    Mutation(
        "6",
        "data/building.py",
        "there = ~np.isnan(values)",
        "values = np.nan_to_num(values); there = ~np.isnan(values)",
        f"{_DATA} -k test_06",
    ),
    Mutation(
        "7",
        "data/building.py",
        "values = values if rows.order is None else values[rows.order]",
        "pass",
        f"{_DATA} -k test_07",
    ),
    Mutation(
        "8",
        "data/dialects.py",
        "df, columns = _index_to_columns(df, columns)",
        "df.sort_index(ascending=False, inplace=True); df, columns = _index_to_columns(df, columns)",
        f"{_DATA} -k test_08",
    ),
    Mutation("9", "data/building.py", "if not again.any():", "if True:", f"{_DATA} -k test_09"),
    Mutation(
        "10",
        "data/clock.py",
        'index.tz_localize("UTC").tz_convert(self.zone)\n        return _as',
        'index.tz_localize(self.zone, ambiguous=False, nonexistent="shift_forward")\n        return _as',
        f"{_DATA} -k test_10",
    ),
    Mutation(
        "11",
        "data/clock.py",
        "cast = column.astype(dtype)",
        "cast = column",
        f"{_DATA} -k test_11_the",
    ),
    Mutation("11", "data/times.py", "    if refused:", "    if False:", f"{_DATA} -k test_11_text"),
    Mutation(
        "12",
        "data/values.py",
        "if kind != NUMBER:",
        'if kind != NUMBER or column.dtype.kind in "iub":',
        f"{_DATA} -k test_12_targets",
    ),
    Mutation("12", "data/values.py", "    if bad.size:", "    if False:", f"{_DATA} -k test_12_text"),
    Mutation(
        "13",
        "data/frame.py",
        "pd.factorize(table[columns.id])",
        "pd.factorize(table[columns.id], sort=True)",
        f"{_DATA} -k test_13",
    ),
    Mutation("14", "data/roles.py", 'return STATIC, f"', 'return PAST, f"', f"{_DATA} -k test_14"),
    Mutation(
        "15",
        "data/building.py",
        "frames = (panel.rows, panel.past, panel.future)",
        "frames = (panel.rows,)",
        f"{_DATA} -k test_15_covariates",
    ),
    Mutation("15", "data/values.py", "    if len(unseen):", "    if False:", f"{_DATA} -k test_15_a_text"),
    Mutation(
        "10",
        "data/frame.py",
        "    _tell_of_zone(source.clock, clock, found.time)\n",
        "",
        "data/test_frame.py -k on_the_clock_of_the_history",
    ),
    Mutation(
        "15",
        "data/frame.py",
        "if rowless.all() and len(ids):",
        "if False:",
        "data/test_covariates.py -k of_no_series",
    ),
    Mutation(
        "15",
        "data/building.py",
        "    _tell_of_contradictions(merged, features, panel)\n",
        "",
        "data/test_covariates.py -k differ_between_two_frames",
    ),
    Mutation(
        "24", "data/steps.py", " | walls.ends_month()", "", "data/test_steps.py -k that_short_months_lack"
    ),
    Mutation(
        "34",
        "forecasting/forecaster.py",
        "self._fitted.calibration is not None",
        "False",
        f"{_PREDICT} -k test_34_a_cross_validation",
    ),
    Mutation(
        "16",
        "forecasting/learning.py",
        "if warm_start and self.__sklearn_is_fitted__() else None",
        "if self.__sklearn_is_fitted__() else None",
        f"{_FIT} -k test_16",
    ),
    Mutation(
        "17",
        "forecasting/fitting.py",
        "if trained.any() and not trained.all():",
        "if False:",
        f"{_FIT} -k test_17",
    ),
    Mutation(
        "17",
        "models/naive.py",
        "torch.maximum(self._spread(*path, at), least)",
        "self._spread(*path, at).clamp(min=_MIN_SPREAD)",
        f"{_FIT} -k test_17_a_naive_band",
    ),
    Mutation(
        "18",
        "data/collate.py",
        "scaled = np.clip((values - loc[..., None]) / scale[..., None],",
        "scaled = np.clip(values - loc[..., None],",
        f"{_FIT} -k test_18",
    ),
    Mutation(
        "19",
        "forecasting/fitting.py",
        "split = store.end - clock.ticks(held)",
        "split = store.end",
        f"{_FIT} -k test_19",
    ),
    Mutation(
        "19",
        "forecasting/learner.py",
        "self.network.load_state_dict(self.best_weights)",
        "pass",
        "forecasting/test_training.py -k best_validation_round",
    ),
    Mutation(
        "20",
        "forecasting/learner.py",
        "finite = self.trainer.strategy.reduce_boolean_decision(bool(torch.isfinite(loss)), all=True)",
        "finite = True",
        f"{_FIT} -k test_20",
    ),
    Mutation(
        "21",
        "forecasting/training.py",
        '"enable_progress_bar": False',
        '"enable_progress_bar": True',
        f"{_FIT} -k test_21",
    ),
    Mutation(
        "22",
        "forecasting/training.py",
        "with _one_fit_at_a_time, torch.random.fork_rng(devices=devices):",
        "with _one_fit_at_a_time:",
        f"{_FIT} -k test_22_nothing",
    ),
    Mutation(
        "22", "forecasting/training.py", "torch.manual_seed(seed)", "pass", f"{_FIT} -k test_22_the_seed"
    ),
    Mutation(
        "23",
        "data/collate.py",
        _ELAPSED,
        "elapsed = times.astype(np.float32) - np.repeat(cutoff, counts).astype(np.float32)",
        f"{_FIT} -k test_23_times",
    ),
    Mutation(
        "24",
        "forecasting/asking.py",
        "inside = ahead <= ",
        "inside = ahead >= ",
        f"{_PREDICT} -k test_24_steps",
    ),
    Mutation(
        "25",
        "data/windows.py",
        "cutoff[inside] = _surrounding(store, spec, series[inside], ticks[inside])",
        "cutoff[inside] = ticks[inside].max(initial=0)",
        f"{_PREDICT} -k test_25",
    ),
    Mutation(
        "26",
        "data/collate.py",
        "past_mask=_tensor(layout.mask)",
        "past_mask=_tensor(np.ones_like(layout.mask))",
        f"{_PREDICT} -k test_26",
    ),
    Mutation(
        "27",
        "forecasting/frames.py",
        "(queries.ticks <= store.last_target[queries.series])",
        "False",
        f"{_PREDICT} -k test_27_times",
    ),
    Mutation(
        "27",
        "data/windows.py",
        "cutoff = np.minimum(np.maximum(cutoff, after), most)",
        "cutoff = ticks - 1",
        f"{_PREDICT} -k test_27_imputed",
    ),
    Mutation(
        "28", "forecasting/predicting.py", "    if cold.any():", "    if False:", f"{_PREDICT} -k test_28"
    ),
    Mutation(
        "29", "forecasting/frames.py", "    if late.any():", "    if False:", f"{_PREDICT} -k test_29_missing"
    ),
    Mutation(
        "29",
        "data/collate.py",
        "after = known.search(segments, times[:, None])",
        "times = times + 43_200 * store.source.clock.per_second\n"
        "    after = known.search(segments, times[:, None])",
        f"{_PREDICT} -k test_29_a_covariate",
    ),
    Mutation(
        "30",
        "forecasting/predicting.py",
        "    if bad.any():",
        "    if False:",
        f"{_PREDICT} -k test_30_a_network",
    ),
    Mutation(
        "31",
        "forecasting/predicting.py",
        "_BUDGET = 2**17",
        "_BUDGET = 2**14",
        "forecasting/test_speed.py -k ten_thousand",
    ),
    Mutation(
        "31",
        "data/collate.py",
        "values, loc, scale = self._scaled(store, past, layout)",
        _UNION,
        f"{_PREDICT} -k test_31",
    ),
    Mutation(
        "32",
        "forecasting/frames.py",
        "(100.0 - percent) / 200.0",
        "(100.0 - percent) / 100.0",
        f"{_PREDICT} -k test_32_levels",
    ),
    Mutation(
        "32",
        "forecasting/predicting.py",
        "np.maximum.accumulate(values, axis=-1)",
        "np.flip(values, axis=-1)",
        f"{_PREDICT} -k test_32_quantiles",
    ),
    Mutation(
        "33",
        "forecasting/evaluation.py",
        "fitted.correlation.draw(times[begin:end], n, rng)",
        "rng.standard_normal((n, end - begin))",
        f"{_PREDICT} -k test_33_neighbouring",
    ),
    Mutation(
        "33",
        "forecasting/evaluation.py",
        "to_values(scores, quantiles[begin:end, target])",
        "to_values(0.8 * scores, quantiles[begin:end, target])",
        f"{_PREDICT} -k test_33_paths",
    ),
    Mutation(
        "34",
        "forecasting/calibration.py",
        "buckets = int(np.clip(len(elapsed) // _MIN_PER_BUCKET, 1, _MAX_BUCKETS))",
        "buckets = 1",
        f"{_PREDICT} -k test_34_calibrated",
    ),
    Mutation(
        "35",
        "forecasting/backtest.py",
        "return replace(panel, rows=rows, past=past)",
        "return replace(panel, past=past)",
        f"{_EVALUATE} -k test_35_no_training_row",
    ),
    Mutation(
        "36",
        "metrics/reading.py",
        "        if bad.any():",
        "        if False:",
        "test_metrics.py -k not_finite",
    ),
    Mutation(
        "36",
        "metrics/scores.py",
        "return scores.assign(**{m: 2.0 * scores[m] for m in task.models})",
        "return scores",
        f"{_EVALUATE} -k test_36_the_score_is",
    ),
    Mutation(
        "37",
        "data/windows.py",
        "stop = store.past.search(segments, cutoff[:, None])",
        "stop = store.past.indptr[segments + 1]",
        f"{_EVALUATE} -k test_37",
    ),
    Mutation(
        "38",
        "forecasting/state.py",
        'network.load_state_dict(_under(tensors, "network/"))',
        "pass",
        f"{_KEEP} -k test_38_everything",
    ),
    Mutation(
        "38",
        "forecasting/files.py",
        "os.replace(temporary, path)",
        "temporary.replace(path.with_suffix('.x'))",
        f"{_KEEP} -k test_38_saving",
    ),
    Mutation(
        "39",
        "forecasting/base.py",
        "    def __sklearn_is_fitted__",
        "    def __reduce__(self):\n        raise TypeError\n\n    def __sklearn_is_fitted__",
        f"{_KEEP} -k test_39",
    ),
    Mutation(
        "40",
        "forecasting/checkpoint.py",
        "if version not in READABLE:",
        "if version != SCHEMA_VERSION:",
        f"{_KEEP} -k test_40_files",
    ),
    Mutation(
        "41",
        "forecasting/devices.py",
        "yield from (done[i % len(devices)][i // len(devices)] for i in range(len(jobs)))",
        "yield from (result for share in done for result in share)",
        f"{_DEVICES} -k test_two_devices",
    ),
    Mutation(
        "41", "forecasting/devices.py", "jobs[rank::world]", "jobs", f"{_DEVICES} -k test_two_processes"
    ),
    Mutation(
        "42",
        "data/stream.py",
        "return joined(first), chain(first, source)",
        "return joined([*first, *source]), None",
        f"{_STREAMS} -k test_a_parquet_folder",
    ),
    Mutation(
        "42",
        "forecasting/parts.py",
        "ranges_of(store.rows_of_series, PART_ROWS)",
        "[(0, store.num_series)]",
        f"{_STREAMS} -k test_a_forecast_is_written",
    ),
    Mutation(
        "43",
        "plotting/forecast.py",
        "panel.ax.fill_between(",
        "(lambda *a, **k: None)(",
        f"{_EVALUATE} -k test_43",
    ),
    Mutation("44", "cli/__init__.py", "sys.exit(2)", "sys.exit(1)", f"{_COMMANDS} -k test_bad_data"),
    Mutation(
        "44",
        "cli/__init__.py",
        '" ".join(str(error).split()) or',
        "str(error) or",
        f"{_COMMANDS} -k test_a_reason_of_several_lines",
    ),
    Mutation(
        "44",
        "cli/app.py",
        "- `ctsattn datasets sines -o data.csv`",
        "- `ctsattn datasets sinus -o data.csv`",
        f"{_COMMANDS} -k test_the_run_that_help_shows",
    ),
    Mutation(
        "45",
        "__init__.py",
        "_HOME = {",
        "import ctsattn.forecasting\n\n_HOME = {",
        "test_import.py -k nothing_heavy",
    ),
    Mutation(
        "A1",
        "data/clock.py",
        'index.tz_localize("UTC").tz_convert(self.zone)\n        return _as',
        "index.tz_localize(self.zone, ambiguous=False)\n        return _as",
        f"{_REPORTS} -k test_a1",
    ),
    Mutation(
        "A2",
        "forecasting/backtest.py",
        "queries = Ragged(moments.times[at], ",
        "queries = Ragged(moments.times[at] + 1, ",
        f"{_REPORTS} -k test_a2",
    ),
    Mutation(
        "A3",
        "data/building.py",
        "there = ~np.isnan(values)",
        "there = np.ones(len(values), bool)",
        f"{_REPORTS} -k test_a3",
    ),
    Mutation("A4", "data/collate.py", _ELAPSED, _RANKS, f"{_REPORTS} -k test_a4"),
    Mutation(
        "A5",
        "data/values.py",
        "if kind != NUMBER:",
        'if kind != NUMBER or column.dtype.kind in "iu":',
        f"{_REPORTS} -k test_a5",
    ),
    Mutation(
        "A6",
        "data/building.py",
        "    again = part.again\n    if not",
        "    again = part.again & (np.arange(len(part)) < 500)\n    if not",
        f"{_REPORTS} -k test_a6",
    ),
    Mutation(
        "A7",
        "data/collate.py",
        "loc, scale = np.where(is_code, 0.0, loc), np.where(is_code, 1.0, scale)",
        "loc, scale = np.full_like(loc, 15.0), np.full_like(scale, 5.0)",
        f"{_REPORTS} -k test_a7",
    ),
    Mutation(
        "A8",
        "data/clock.py",
        "cast = column.astype(dtype)",
        "cast = column",
        f"{_REPORTS} -k test_a8",
    ),
    Mutation(
        "A9",
        "forecasting/asking.py",
        "if future is not None and not given:",
        "if False:",
        f"{_REPORTS} -k test_a9",
    ),
    Mutation(
        "A10",
        "forecasting/state.py",
        "if data and fitted.store is not None:",
        "if fitted.store is not None:",
        f"{_KEEP} -k test_38_a_model_without",
    ),
    Mutation(
        "A11",
        "forecasting/base.py",
        "    def __sklearn_is_fitted__",
        "    def __getstate__(self):\n        return {}\n\n    def __sklearn_is_fitted__",
        f"{_KEEP} -k 'test_39_fitted and pickle'",
    ),
    Mutation(
        "A12",
        "forecasting/predicting.py",
        "np.maximum.accumulate(values, axis=-1)",
        "values[..., ::-1]",
        f"{_PREDICT} -k test_32_quantiles",
    ),
    Mutation(
        "A13",
        "forecasting/training.py",
        '"logger": False',
        '"logger": __import__("lightning").pytorch.loggers.CSVLogger(".")',
        f"{_FIT} -k test_fits_in_threads",
    ),
    Mutation(
        "A14",
        "data/collate.py",
        "values, loc, scale = self._scaled(store, past, layout)",
        _UNION,
        f"{_PREDICT} -k test_31",
    ),
    Mutation(
        "phase",
        "data/collate.py",
        "since = store.first[windows.series] if origin is None else origin.on(clock)",
        "since = store.first[windows.series]",
        "forecasting/test_phase.py -k cut_anywhere",
    ),
    Mutation(
        "phase",
        "data/schema.py",
        '"origin": Origin(**state["origin"]) if state.get("origin") else None',
        '"origin": None',
        "forecasting/test_phase.py -k saved",
    ),
    Mutation(
        "level",
        "models/kernel.py",
        "nodes = nodes + self.by_level(levels)",
        "nodes = nodes",
        "models/test_kernel.py -k return_to_is_found",
    ),
    Mutation(
        "level",
        "models/level.py",
        "0.0 if found is None else found.to(self.weight)",
        "0.0",
        "models/test_kernel.py -k return_to_is_found",
    ),
    Mutation(
        "kriging",
        "models/kriging.py",
        "return centre + solved @ self.covariance.to(solved)",
        "return centre + 0 * solved",
        "models/test_kriging.py -k conditional_mean",
    ),
    Mutation(
        "kriging",
        "models/kriging.py",
        "self.covariance.copy_((vectors * found.clamp(min=0.0)) @ vectors.mT)",
        "pass",
        "models/test_kriging.py -k covariance",
    ),
    Mutation(
        "average",
        "forecasting/averaging.py",
        "share = min(self.share, (1 + step) / (_BEGIN + step))",
        "share = self.share",
        "forecasting/test_averaging.py -k by_its_definition",
    ),
    Mutation(
        "average",
        "forecasting/averaging.py",
        "            _put(pl_module.network, self._own)\n            self._own = None",
        "            self._own = None",
        "forecasting/test_averaging.py -k is_validated",
    ),
    Mutation(
        "ahead",
        "forecasting/learner.py",
        "contextlib.closing(Ahead(Onward(batches, learner), learner))",
        "contextlib.nullcontext(Onward(batches, learner))",
        "forecasting/test_prefetch.py -k made_in_the_thread",
    ),
    Mutation(
        "ahead",
        "forecasting/prefetch.py",
        "queue.Queue(AHEAD)",
        "queue.Queue()",
        "forecasting/test_prefetch.py -k no_more_batches",
    ),
    Mutation(
        "epochs",
        "forecasting/streams.py",
        "self.stream.start_from(used, self.stream.state_before(used))",
        "pass",
        "forecasting/test_epochs.py -k next_epoch",
    ),
    Mutation(
        "interrupt",
        "forecasting/training.py",
        "            raise left.__context__ from None",
        "            raise",
        "forecasting/test_prefetch.py -k interrupted",
    ),
    Mutation(
        "interrupt",
        "forecasting/training.py",
        "signal.signal(signal.SIGINT, handler)",
        "pass",
        "forecasting/test_prefetch.py -k interrupted",
    ),
    Mutation(
        "tangents",
        "ops/continuous/api.py",
        "    if may_carry_tangents(*given):",
        "    if False:",
        "ops/test_tangents.py -k triton",
    ),
    Mutation(
        "tangents",
        "ops/continuous/api.py",
        "others = (request.times, request.query_times, *(request.sink or ()))",
        "others = ()",
        "ops/test_tangents.py -k sink",
    ),
    Mutation(
        "options",
        "forecasting/base.py",
        '        check_options(self.config, "model")\n',
        "",
        "models/test_options.py -k before_any_data",
    ),
    Mutation(
        "options",
        "_options.py",
        "and all(value in limit for limit in limits)",
        "",
        "models/test_options.py -k refused_by_name_or_works",
    ),
    Mutation(
        "options",
        "models/continuous_transformer.py",
        "    patch: Count | Literal",
        "    patch: int | Literal",
        "models/test_options.py -k refused_by_name_or_works",
    ),
    Mutation(
        "options",
        "forecasting/training.py",
        "_PASSED.get(name, Any)",
        "Any",
        "forecasting/test_training.py -k lead_nowhere",
    ),
    Mutation(
        "workers",
        "ops/continuous/cpu/workers.py",
        "    if counts[parts] < -(-tasks // max(1, -(-tasks // parts))):",
        "    if False:",
        "ops/test_workers.py -k breaks_off",
    ),
]
