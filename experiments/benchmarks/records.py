"""Tasks of irregular records: windows of a published protocol through the package's own data layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ctsattn import datasets
from ctsattn._options import LostShare, check_option
from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.building import build_store, learn_schema
from ctsattn.data.collate import Collator
from ctsattn.data.frame import read_panel
from ctsattn.data.schema import Columns
from ctsattn.data.series import Ragged, SeriesStore
from ctsattn.data.task import infer_task
from ctsattn.data.windows import Windows
from ctsattn.datasets.protocols import PROTOCOLS, RecordProtocol, RecordWindows, record_windows
from experiments.benchmarks.order import shuffled


@dataclass(frozen=True)
class RecordTask:
    """Windows of irregular records, each window a series of its own.

    Attributes:
        stores: Observations of the windows of each part, those asked included.
        asked: The windows of each part and their queries.
        collator: Makes batches.
        spec: Sizes and units.
        moved: Further windows of the training records, seen from other moments than the protocol's cutoff.
        share: Share of `moved` in a training batch.
    """

    stores: dict[str, SeriesStore]
    asked: dict[str, Windows]
    collator: Collator
    spec: TaskSpec
    moved: Windows | None = None
    share: float = 0.0

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """See `Task.training`."""
        own = self.asked["train"]
        if self.moved is None:
            return (self.batch("train", rows) for rows in shuffled(len(own), batch_size, seed))
        others = round(self.share * batch_size)
        pairs = zip(
            shuffled(len(own), batch_size - others, seed),
            shuffled(len(self.moved), others, seed + _MOVED_SEED),
            strict=True,
        )
        drawn = (_together([own.take(rows), self.moved.take(more)]) for rows, more in pairs)
        return (self.collator(self.stores["train"], windows, truth=True) for windows in drawn)

    def validation(self, batch_size: int) -> list[tuple[str, np.ndarray]]:
        """See `Task.validation`."""
        return [("val", rows) for rows in self.chunks("val", batch_size)]

    def chunks(self, part: str, batch_size: int) -> Iterator[np.ndarray]:
        """See `Task.chunks`."""
        count = len(self.asked[part])
        return (np.arange(i, min(i + batch_size, count)) for i in range(0, count, batch_size))

    def batch(self, part: str, rows: np.ndarray) -> Batch:
        """See `Task.batch`."""
        return self.collator(self.stores[part], self.asked[part].take(rows), truth=True)


_MOVED_SEED = 2**17  # of the order of the windows that are seen from other moments
_MOMENTS = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.125, 1.25, 1.375, 1.5)  # of the protocol's history
_SECONDS = {"physionet2012": 3600.0, "activity": 1e-3, "ushcn": 30.4375 * 86400.0}  # of the protocol's unit


def record_task(
    name: str, *, scaler: str, max_tokens: int = 512, moved: float = 0.0, **options: Any
) -> RecordTask:
    """t-PatchGNN's protocol on a set of irregular records.

    Args:
        name: The set.
        scaler: Key of `SCALERS`.
        max_tokens: Most observations of a channel that a window shows.
        moved: Share of training windows that are cut from the training records at other moments, below 1.
        options: Of `datasets.load`.
    """
    check_option("load.moved", moved, LostShare, "Leave it out to train on the protocol's windows alone.")
    card = datasets.card(name)
    protocol = PROTOCOLS[name]
    parts = record_windows(datasets.load(name, **options), protocol, card.split)  # type: ignore[arg-type]
    seconds = _SECONDS.get(name)
    columns = Columns(targets=card.variables)
    panels = {part: read_panel(_wide(cut, card.variables, seconds), columns) for part, cut in parts.items()}
    schema, store = learn_schema(panels["train"])
    stores = {"train": store} | {part: build_store(panels[part], schema) for part in ("val", "test")}
    back, ahead = (
        units if seconds is None else pd.Timedelta(units * seconds, "s")
        for units in (protocol.history, protocol.ahead)
    )
    spec = infer_task(store, schema, lookback=back, horizon=ahead)
    asked = {part: _asked(cut, stores[part], seconds) for part, cut in parts.items()}
    others = _moved(parts["train"], protocol, stores["train"], seconds) if moved else None
    return RecordTask(stores, asked, Collator(schema, spec, scaler, max_tokens), spec, others, moved)


def _moved(
    cut: RecordWindows, protocol: RecordProtocol, store: SeriesStore, seconds: float | None
) -> Windows:
    """The windows of a part seen from earlier and later moments, asked as far ahead, to their end at most."""
    cutoffs = [cut.start + protocol.history * share for share in _MOMENTS]
    ends = [np.minimum(cutoff + protocol.ahead, cut.end) for cutoff in cutoffs]
    return _together(
        [
            _asked(replace(cut, cutoff=cutoff, end=end, closed=cut.closed & (end == cut.end)), store, seconds)
            for cutoff, end in zip(cutoffs, ends, strict=True)
        ]
    )


def _together(parts: Sequence[Windows]) -> Windows:
    """Windows one after the other."""
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    series, cutoff, times, hide = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("series", "cutoff", "times", "hide")
    )
    return Windows(series, cutoff, times, np.concatenate([[0], np.cumsum(counts)]), hide)


def _wide(cut: RecordWindows, variables: tuple[str, ...], seconds: float | None) -> pd.DataFrame:
    """One series for each window, one column for each variable, time from the window's beginning."""
    window, place, _ = cut.members()
    records = cut.records
    elapsed = records.time[place] - cut.start[window]
    keys = pd.DataFrame({"unique_id": window, "ds": elapsed}).groupby(["unique_id", "ds"], sort=True)
    row = keys.ngroup().to_numpy()
    values = np.full((row.max() + 1, len(variables)), np.nan)
    values[row, records.variable[place]] = records.value[place]
    frame = keys.size().index.to_frame(index=False)
    if seconds is not None:
        frame["ds"] = (frame["ds"] * seconds * 1e6).round().astype("int64").astype("timedelta64[us]")
    return pd.concat([frame, pd.DataFrame(values, columns=list(variables))], axis=1)


def _asked(cut: RecordWindows, store: SeriesStore, seconds: float | None) -> Windows:
    """For each window that has anything, the times at or after its cutoff at which something was observed."""
    window, place, asked = cut.members()
    present = np.unique(window)
    history = cut.cutoff - cut.start
    if seconds is None:
        cutoff = np.nextafter(history, -np.inf)
        moment = cut.records.time[place] - cut.start[window]
    else:
        cutoff = (history * seconds * 1e6).round().astype(np.int64) - 1
        moment = ((cut.records.time[place] - cut.start[window]) * seconds * 1e6).round().astype(np.int64)
    pairs = pd.DataFrame({"window": window[asked], "moment": moment[asked]}).drop_duplicates()
    series = np.searchsorted(present, pairs["window"].to_numpy())
    queries = Ragged.from_rows(series, pairs["moment"].to_numpy(), np.zeros(len(pairs)), len(present))
    ids = store.source.ids.get_indexer(present)
    some = queries.counts > 0
    kept = queries.take(np.flatnonzero(some))
    return Windows.of(ids[some], _ticks(cutoff[present[some]], store), kept)


def _ticks(moments: np.ndarray, store: SeriesStore) -> np.ndarray:
    """Moments in the dtype of the store's clock."""
    return moments.astype(store.past.times.dtype)
