"""Tasks cut once and kept: `python -m experiments.hypotheses.prepared FOLDER` writes them, a file each.

A machine without the data sets trains from these files; they hold what `tasks.build` makes and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ctsattn.datasets.splits import FractionSplit
from experiments.hypotheses.cells import SHUFFLED
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.tasks import PARTS, Shape, Task, build


def load_task(plan: Plan, name: str, folder: Path | None = None) -> Task:
    """The task of a data set, or of its shuffled control; read from `folder` if it is given, else built."""
    plain = name.removesuffix(SHUFFLED)
    task = read(folder / f"{plain}.npz", plan.shape(plain)) if folder else _build(plan, plain)
    return task if plain == name else task.shuffle()


def write(task: Task, path: Path) -> None:
    """Keep a task. Values are narrowed to float32, as they are on a device."""
    cuts = {f"cuts_{part}": task.cuts[part] for part in PARTS}
    shape = repr(task.shape)
    np.savez_compressed(
        path,
        name=task.name,
        shape=shape,
        times=task.times,
        values=task.values.astype(np.float32),
        ends=task.ends,
        **cuts,
    )


def read(path: Path, shape: Shape) -> Task:
    """A task that `write` kept; it must have been cut as `shape` says."""
    with np.load(path) as kept:
        if str(kept["shape"]) != repr(shape):
            raise ValueError(f"{path.name} was cut as {kept['shape']}, the plan says {shape}. Write it anew.")
        cuts = {part: kept[f"cuts_{part}"] for part in PARTS}
        return Task(str(kept["name"]), shape, kept["times"], kept["values"], kept["ends"], cuts)


def _build(plan: Plan, name: str) -> Task:
    split = FractionSplit() if plan.sets[name].get("split") == "fractions" else None
    return build(name, plan.shape(name), split)


def main() -> int:
    """Write all tasks of the plan."""
    plan, folder = Plan.read(), Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in plan.sets:
        task = _build(plan, name)
        write(task, folder / f"{name}.npz")
        counts = ", ".join(f"{part} {len(task.cuts[part])}" for part in PARTS)
        size = (folder / f"{name}.npz").stat().st_size / 2**20
        print(f"{name}: {len(task.values)} observations, windows {counts}, {size:.1f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
