"""Run the controls of the study: text, recall, series and switches in the middle of training.

    python -m experiments.hypotheses.controls --prepare FOLDER       where the data sets are
    python -m experiments.hypotheses.controls --tasks FOLDER         anywhere

A cell is an arm on one stream; all of its seeds are trained at once, with the same weights at the start and
the same batches as in every other arm. `[controls]` of the plan says what there is. Finished cells are
skipped; none begins after `--minutes`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctsattn.datasets.synthetic import FAMILIES
from ctsattn.nn.rotary import frequency_ladder
from experiments.hypotheses.plan import PLAN, Plan, check_frozen
from experiments.hypotheses.prepared import load_task, read, write
from experiments.hypotheses.run import RESULTS, append, finished, stamp
from experiments.hypotheses.stacked import Size, StackedNetwork
from experiments.hypotheses.stacked_training import Course, Snapshot, Trainer
from experiments.hypotheses.streams import HELD, TEXT, Recall, Series, Stream, Text, read_text, rotary_ladder
from experiments.hypotheses.tasks import Shape, build

TEXT_NAME = "tinyshakespeare"
# Small enough for a processor, in the same code: the smoke test of the pipeline.
_SMOKE = {"d_model": 16, "num_layers": 1, "num_heads": 2}
_SMOKE_COURSE = {"steps": 20, "batch": 4, "checks": 5}


@dataclass(frozen=True)
class Control:
    """One experiment of `[controls]`.

    Attributes:
        name: Name of the experiment in the rows.
        data: Names of its streams.
        arms: Arms of the plan, with the ending `-none` without positions.
        length: Tokens of a window of text or of a generated series; windows of real series are the plan's.
        horizon: Observations that a token of a generated series asks for.
        positions: "rope", the ladder of language models, or "time", the ladder of the study.
        size: Sizes of the network.
        course: How it is trained.
        seeds: The seeds.
        switches: Pairs of arms: from, to.
        at: Shares of the training, in percent, after which arms are switched.
        finish: Which of them are trained to the end, with the optimiser's state kept.
        held: Windows of validation at the most, and a quarter of those of test.
    """

    name: str
    data: tuple[str, ...]
    arms: tuple[str, ...]
    length: int
    horizon: int
    positions: str
    size: Size
    course: Course
    seeds: list[int]
    switches: tuple[tuple[str, str], ...] = ()
    at: tuple[int, ...] = (25, 50, 75)
    finish: tuple[int, ...] = (50,)
    held: int = HELD

    def steps_at(self, percent: float) -> int:
        """Steps after a share of the training."""
        return min(self.course.steps, max(1, round(self.course.steps * percent / 100)))


def controls(plan: Plan, smoke: bool = False) -> list[Control]:
    """The controls of the plan; for a smoke test, tiny."""
    found = []
    for name, facts in plan.tables["controls"].items():
        size, course = dict(facts["size"]), dict(facts["course"])
        facts = {k: v for k, v in facts.items() if k not in ("size", "course")}
        if smoke:
            size, course = _SMOKE, course | _SMOKE_COURSE
            facts |= {"seeds": [0, 1], "length": min(facts["length"], 32), "held": 4}
        switches = tuple((a, b) for a, b in facts.pop("switches", []))
        lists = {k: tuple(facts.pop(k)) for k in ("data", "arms", "at", "finish") if k in facts}
        found.append(
            Control(name, size=Size(**size), course=Course(**course), switches=switches, **lists, **facts)
        )
    return found


def open_stream(
    plan: Plan, control: Control, data: str, device: torch.device | str, folder: Path | None = None
) -> Stream:
    """The windows of a stream, read from `folder` if it is given, else from the data set."""
    if data == TEXT_NAME:
        text = (folder / TEXT.names[0]).read_text() if folder else read_text()
        return Text(text, control.length, device, data, control.held)
    if data.startswith("mqar-"):
        pairs = int(data.removeprefix("mqar-"))
        return Recall(pairs, 64, control.course.batch * 1000, device, data, control.held)
    if data in plan.sets:
        return Series(load_task(plan, data, folder), device, control.held)
    shape = Shape(control.length, control.horizon)
    task = read(folder / f"{data}.npz", shape) if folder else build(data, shape)
    return Series(task, device, control.held)


def prepare(plan: Plan, folder: Path) -> None:
    """Keep everything that the controls read, for a machine without the data sets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TEXT.names[0]).write_text(read_text())
    for control in controls(plan):
        for data in control.data:
            path = folder / f"{data}.npz"
            if data in plan.sets:
                write(load_task(plan, data), path)
            elif data in FAMILIES:
                write(build(data, Shape(control.length, control.horizon)), path)


def make(control: Control, stream: Stream, arm: str, mixer: str) -> Trainer:
    """An untrained network of an arm, ready to train."""
    half = control.size.head_dim // 2
    ladder = (
        rotary_ladder(control.size.head_dim)
        if control.positions == "rope"
        else frequency_ladder(half, float(control.length), 1.0)
    )
    frequencies = () if arm.endswith("-none") else ladder
    network = StackedNetwork(
        control.seeds, control.size, stream.inputs, stream.outputs, frequencies, stream.tokens, mixer
    ).to(stream.device)
    torch.manual_seed(0)  # of dropout
    return Trainer(network, stream, control.course, control.seeds)


def run_cell(plan: Plan, control: Control, stream: Stream, arm: str) -> Iterator[dict[str, Any]]:
    """Train an arm with all its seeds, and switch it where it is the beginning of a switch."""
    trainer = make(control, stream, arm, plan.arms[arm.removesuffix("-none")])
    targets = [b for a, b in control.switches if a == arm]
    marks = {control.steps_at(percent): percent for percent in control.at} if targets else {}
    after = {step + control.steps_at(extra) for step in marks for extra in (1, 10)}
    losses: dict[int, Tensor] = {}
    saved: dict[int, Snapshot] = {}
    for step in sorted({*control.course.due(), *marks, *after}):
        losses[step] = trainer.until(step)
        if step in marks:
            saved[step] = trainer.snapshot()
    for step, values in losses.items():
        yield from _per_seed(control, values, split="val", step=step)
    yield from _per_seed(control, trainer.loss("test"), split="test", step=control.course.steps)
    yield from _taps(control, trainer.network)
    for step, percent in marks.items():
        later = (step + control.steps_at(extra) for extra in (1, 10))
        stayed = [losses[x] for x in (0, step, *later, control.course.steps)]
        for target in targets:
            for kept in (True, False):
                trainer.restore(saved[step], step)
                facts = {
                    "experiment": "switch",
                    "arm": f"{arm}>{target}",
                    "condition": f"{percent}-{'kept' if kept else 'reset'}",
                    "mixer": plan.arms[target],
                    "split": "val",
                    "step": step,
                }
                trainer.network.switch(plan.arms[target])
                found = _switched(control, trainer, kept, kept and percent in control.finish)
                for name, value in [*zip(_STAYED, stayed, strict=True), *found]:
                    yield from _per_seed(control, value, **facts, metric=name)
        trainer.network.switch(plan.arms[arm])


def _taps(control: Control, network: StackedNetwork) -> Iterator[dict[str, Any]]:
    """What a learned key filter has come to, mean over layers, heads and features."""
    filters = [layer.own["mixer_taps"] for layer in network.layers if "mixer_taps" in layer.own]
    if filters:
        taps = torch.stack(filters).mean(dim=(0, 2, 3))
        for name, values in zip(("before", "own", "after"), taps.unbind(dim=-1), strict=True):
            yield from _per_seed(control, values, split="fitted", metric=f"tap-{name}")


_STAYED = ("first", "before", "stayed-1", "stayed-10", "stayed-end")


def _switched(
    control: Control, trainer: Trainer, kept: bool, to_the_end: bool
) -> Iterator[tuple[str, Tensor]]:
    """Losses just after a switch, after 1 and 10 % of the training, and at the end where it is wanted."""
    if not kept:
        trainer.reset_optimizer()
    begin = trainer.done
    yield "after", trainer.loss("val")
    for extra in (1, 10):
        yield f"after-{extra}", trainer.until(begin + control.steps_at(extra))
    if to_the_end:
        yield "end", trainer.until(control.course.steps)


def _per_seed(control: Control, values: Tensor, **facts: Any) -> Iterator[dict[str, Any]]:
    for seed, value in zip(control.seeds, values.tolist(), strict=True):
        yield {**facts, "seed": seed, "value": value}


def rows_of(plan: Plan, control: Control, stream: Stream, arm: str) -> list[dict[str, Any]]:
    """The rows of a cell, with how they came about."""
    begin = time.perf_counter()
    found = list(run_cell(plan, control, stream, arm))
    size, course = control.size, control.course
    common = {
        "experiment": control.name,
        "arm": arm,
        "data": stream.name,
        "model": f"stacked {size.num_layers}x{size.d_model} lr={course.learning_rate:g}",
        "mixer": plan.arms[arm.removesuffix("-none")],
        "lookback": control.length,
        "horizon": control.horizon,
        "condition": "all",
        "metric": "nats" if stream.tokens else "mse",
        "fit_seconds": time.perf_counter() - begin,
        "config_hash": plan.sha256[:12],
        **stamp(stream.device),
    }
    return [{**common, **row} for row in found]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="controls to run; default: all of the plan")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no cell after this time")
    parser.add_argument("--out", type=Path, default=RESULTS / "rows-controls.csv", help="file to add rows to")
    parser.add_argument("--tasks", type=Path, help="folder of prepared tasks; default: cut them anew")
    parser.add_argument("--prepare", type=Path, help="only write text and generated series to a folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="everything once, tiny; needs no frozen plan")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing."""
    options, plan, begin = parse(arguments), Plan.read(PLAN), time.perf_counter()
    if options.prepare:
        prepare(plan, options.prepare)
        return 0
    if not options.smoke:
        check_frozen(plan)
    torch.set_float32_matmul_precision("high")  # TF32, for all arms alike
    done = finished(options.out)
    for control in controls(plan, options.smoke):
        if options.only and control.name not in options.only:
            continue
        for data in control.data:
            missing = [arm for arm in control.arms if (control.name, arm, data) not in done]
            if not missing:
                continue
            stream = open_stream(plan, control, data, options.device, options.tasks)
            for arm in missing:
                if time.perf_counter() - begin > 60 * options.minutes:
                    print("The time is up; run again for the rest.")
                    return 0
                append(options.out, rows_of(plan, control, stream, arm))
                print(f"{time.perf_counter() - begin:6.1f} s  {control.name} {data} {arm}", flush=True)
    print("All controls are finished.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
