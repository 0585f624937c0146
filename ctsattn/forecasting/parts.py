"""An answer, made part by part of the series, and put together or written as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctsattn.data.series import SeriesStore
from ctsattn.data.spool import ranges_of
from ctsattn.data.stream import joined
from ctsattn.data.windows import answer_windows
from ctsattn.forecasting import frames
from ctsattn.forecasting.asking import Queries
from ctsattn.forecasting.devices import collect
from ctsattn.forecasting.partitions import PART_ROWS, Partitions, answer_digest, part_digest
from ctsattn.forecasting.predicting import predict_quantiles
from ctsattn.forecasting.state import Fitted
from ctsattn.forecasting.streams import place_among_processes
from ctsattn.forecasting.training import Progress, Training


@dataclass(frozen=True)
class Answer:
    """How questions are answered.

    Attributes:
        fitted: The trained model.
        names: Columns to answer.
        flags: Columns of flags to write.
        options: Say which devices to use.
        batch_size: Windows at once; None: as many as fit.
    """

    fitted: Fitted
    names: frames.Named
    flags: list[str]
    options: Training
    batch_size: int | None

    def frame(self, store: SeriesStore, queries: Queries) -> Any:
        """The answer as one frame; the processes of a run share the work of each part."""
        found = []
        for start, part in store.parts():
            here = queries.within(start, start + part.num_series)
            if len(here) or not found:
                found.append(self._part(part, here, share=True))
        return joined(found)

    def write(self, store: SeriesStore, queries: Queries, folder: Path, progress: Progress | None) -> Path:
        """Write the answer to a folder; each process of a run writes some of the parts."""
        ranges = ranges_of(store.rows_of_series, PART_ROWS)
        parts = Partitions.at(folder, len(ranges))
        rank, world = place_among_processes()
        digest, found = answer_digest(self.fitted, self.names), 0
        for number in range(rank, len(ranges), world):
            start, stop = ranges[number]
            here, part = queries.within(start, stop), store.select(np.arange(start, stop))
            name = part_digest(digest, part, here)
            if parts.has(number, name):
                found += 1
            else:
                parts.write(number, self._part(part, here, share=False), name)
            store.release()
            if progress is not None:
                kept = f", {found} of them from an earlier call" if found else ""
                progress(
                    f"ctsattn: {number + 1} of {len(ranges)} files{kept}", last=number + world >= len(ranges)
                )
        collect([None])  # no process says that all is done before all have done their part
        return parts.finish() if rank == 0 else folder

    def _part(self, store: SeriesStore, queries: Queries, *, share: bool) -> Any:
        windows = answer_windows(store, self.fitted.spec, queries.series, queries.ticks)
        found = predict_quantiles(
            self.fitted,
            store,
            windows,
            frames.grid_of(self.names),
            accelerator=self.options.accelerator,
            devices=self.options.devices,
            batch_size=self.batch_size,
            share=share,
        )
        schema = self.fitted.schema
        return frames.forecast_frame(store, schema, queries, found.values, self.names, self.flags)
