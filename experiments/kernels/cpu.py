"""Time the cpu backend against stock attention and against naive eager code, side by side in one process.

    python -m experiments.kernels.cpu                  # measure: results/cpu.csv
    python -m experiments.kernels.cpu --threads 1      # the same with one thread, beside the other rows
    python -m experiments.kernels.cpu --lengths 64 96  # these lengths only; other rows stay
    python -m experiments.kernels.cpu --table          # print the committed rows as a table

Backends: `cpu` is the backend's core (gaps in), `continuous_attention` the public function (times in),
`first_order` the approximation on stock kernels, `reference` the definition in eager code with all weights
in memory, and `sdpa` stock attention.

Calls of all backends but the naive one alternate, and a time is the median of the calls. Peak memory is that
of a process of its own for each backend: what the resident memory of Linux peaks at during one call forward
and backward, above what it is before, with inputs made and libraries and compiled code loaded by a call on a
short row. So gradients, outputs and buffers count. `load` is the load average of the machine when the row
was written, less the threads of the measurement: above 0, others shared the cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ctsattn.ops.continuous import continuous_attention, reference
from experiments.kernels.comparison import (
    COLUMNS,
    Attend,
    Inputs,
    Shape,
    core_arguments,
    make_inputs,
    truth_of_first_head,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "cpu.csv"
CPU_COLUMNS = (*COLUMNS, "threads", "calls", "load", "commit", "torch", "triton", "numba", "device")
NAIVE_UP_TO = 512  # with its gradients it needs 0.8 GiB at batch 4, 4 heads and length 336, so 28 at 2048


def shapes() -> Iterator[Shape]:
    """Rows as forecasters have them, and long ones."""
    for causal in (True, False):
        for length in (64, 96, 336, 1024, 2048, 8192):
            yield Shape(4, 4, length, 32, causal)
        yield Shape(4, 8, 512, 64, causal)


def attends(shape: Shape, times: Tensor) -> dict[str, Attend]:
    """What is compared."""
    from ctsattn.ops.continuous import cpu

    arguments = core_arguments(shape, times)

    def public(backend: str) -> Attend:
        return lambda q, k, v: continuous_attention(q, k, v, times, is_causal=shape.causal, backend=backend)

    found = {
        "sdpa": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=shape.causal),
        "cpu": lambda q, k, v: cpu.core(q, k, v, *arguments)[0],
        "continuous_attention": public("cpu"),
        "first_order": public("first_order"),
    }
    if shape.length <= NAIVE_UP_TO:
        found["reference"] = lambda q, k, v: reference.core(q, k, v, *arguments)[0]
    return found


def calls_of(attend: Attend, inputs: Inputs) -> dict[str, Callable[[], object]]:
    """What is timed, by the name of the pass."""
    q, k, v, grad, _ = inputs
    fixed = [x.detach() for x in (q, k, v)]
    return {
        "forward": lambda: attend(*fixed),
        "forward+backward": lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), grad),
    }


def relative_errors(name: str, attend: Attend, shape: Shape, inputs: Inputs) -> dict[str, float]:
    """Errors of 64 outputs of a head and of their dq, relative to the largest in float64."""
    few = slice(max(shape.length - 64, 0), None)
    out = attend(*inputs[:3])
    (dq,) = torch.autograd.grad(out, inputs.q, inputs.grad)
    q, k, v, grad = (x.detach()[:1, :1].double() for x in inputs[:4])
    q = q[:, :, few].requires_grad_()
    truth, has_pieces = truth_of_first_head(shape, q, k, v, inputs.times, few, name == "sdpa")
    (true_dq,) = torch.autograd.grad(truth, q, grad[:, :, few])
    seen = has_pieces[0, :, None]  # the first query of a causal row has nothing to integrate

    def error(actual: Tensor, expected: Tensor) -> float:
        difference = ((actual.detach()[:1, :1, few].double() - expected) * seen).abs().max()
        return (difference / expected.abs().max()).item()

    return {"forward": error(out, truth), "forward+backward": error(dq, true_dq)}


def interleaved(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, in turns, for this long; the first turn counts only if it is the last."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    turns = 0
    while turns == 0 or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(1e3 * (time.perf_counter() - start))
        turns += 1
    return {name: times[1:] or times for name, times in taken.items()}


def measured(attends: dict[str, Attend], inputs: Inputs, step: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each backend for a pass; the naive one apart, lest it spoil others' caches."""
    calls = {name: calls_of(attend, inputs)[step] for name, attend in attends.items()}
    naive = {name: calls.pop(name) for name in ("reference",) if name in calls}
    return interleaved(calls, seconds) | interleaved(naive, seconds / 4)


def measure_shape(shape: Shape, threads: int, seconds: float = 4.0) -> list[dict[str, object]]:
    """One row for each backend and pass."""
    inputs, rows = make_inputs(shape), []
    compared = attends(shape, inputs.times)
    errors = {name: relative_errors(name, attend, shape, inputs) for name, attend in compared.items()}
    peaks = {name: peak_in_own_process(name, shape, threads) for name in compared}
    for step in ("forward", "forward+backward"):
        taken = measured(compared, inputs, step, seconds)
        medians = {name: statistics.median(times) for name, times in taken.items()}
        for name, ms in medians.items():
            found = {
                "peak_mib": peaks[name],
                "error": errors[name][step],
                "ratio_to_sdpa": medians["sdpa"] / ms,
                "threads": threads,
                "calls": len(taken[name]),
                "load": max(0.0, os.getloadavg()[0] - threads),
            }
            rows.append(shape.row(name, step, "float32", ms) | found)
    return rows


def peak_in_own_process(name: str, shape: Shape, threads: int) -> float:
    """Growth of the resident memory by one call forward and backward, in MiB."""
    command = [sys.executable, "-m", "experiments.kernels.cpu", "--peak", json.dumps([name, *shape])]
    done = subprocess.run(
        [*command, "--threads", str(threads)],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parent.parent,
    )
    return float(done.stdout)


def peak_here(name: str, shape: Shape) -> float:
    """The same, in this process."""
    short = shape._replace(length=64)
    few, inputs = make_inputs(short), make_inputs(shape)
    calls_of(attends(short, few.times)[name], few)["forward+backward"]()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = _status("VmRSS")
    calls_of(attends(shape, inputs.times)[name], inputs)["forward+backward"]()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """An entry of the process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def measure_all(path: Path, threads: int, lengths: list[int]) -> None:
    """Measure every shape of these lengths, and write its rows in place of older ones."""
    import numba

    about = {
        "torch": torch.__version__,
        "numba": numba.__version__,
        "device": processor(),
        "commit": commit(),
    }
    for shape in shapes():
        if shape.length in lengths:
            rows = [row | about for row in measure_shape(shape, threads)]
            write_in_order(path, rows)


def write_in_order(path: Path, rows: list[dict[str, object]]) -> None:
    """Put rows into a result file in place of those of the same shape and threads, in order of shapes."""
    new = [{key: f"{x:.4g}" if isinstance(x, float) else str(x) for key, x in row.items()} for row in rows]
    old = []
    if path.exists():
        with path.open(newline="") as file:
            old = list(csv.DictReader(file))
    replaced, order = {_case(row) for row in new}, list(shapes())
    kept = [row for row in old if _case(row) not in replaced]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, CPU_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(kept + new, key=lambda row: (-_case(row)[1], order.index(_case(row)[0]))))


def _case(row: dict[str, str]) -> tuple[Shape, int]:
    """The shape of a row, and the threads it was timed with."""
    sizes = (int(row[key]) for key in ("batch", "heads", "keys", "head_dim"))
    return Shape(*sizes, row["causal"] == "True"), int(row["threads"])


def commit() -> str:
    """The commit of the code, with a + if the operators differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    changed = subprocess.run(["git", "status", "--porcelain", "ctsattn/ops"], capture_output=True, text=True,
                             cwd=HERE.parent.parent)  # fmt: skip
    return head.stdout.strip() + ("+" if changed.stdout else "")


def processor() -> str:
    """Name of the processor and its number of cores."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def table(path: Path) -> str:
    """Markdown: milliseconds, speed against stock attention, and peak memory over its."""
    import pandas as pd

    rows = pd.read_csv(path)
    rows = rows[rows.threads == rows.threads.max()]
    lines = [
        "| mask | batch × heads × length × width | pass | sdpa ms | cpu ms | cpu / sdpa | public / sdpa "
        "| first order / sdpa | naive / sdpa | peak / sdpa's peak | error |",
        "|" + "---|" * 11,
    ]
    keys = ["causal", "batch", "heads", "keys", "head_dim", "pass"]
    for (causal, batch, heads, length, width, step), group in rows.groupby(keys, sort=False):
        by = group.drop_duplicates("backend", keep="last").set_index("backend")
        times = [by.ms[name] / by.ms.sdpa if name in by.index else None for name in
                 ("cpu", "continuous_attention", "first_order", "reference")]  # fmt: skip
        ratios = " | ".join("too large" if x is None else f"{x:.2f}" for x in times)
        memory = f"{by.peak_mib.cpu / by.peak_mib.sdpa:.2f}" if by.peak_mib.sdpa > 0 else "–"
        size = f"{batch} × {heads} × {length} × {width}"
        lines.append(
            f"| {'causal' if causal else 'full'} | {size} | {step} | {by.ms.sdpa:.3g} | {by.ms.cpu:.3g} "
            f"| {ratios} | {memory} | {by.error.cpu:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, or print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of torch")
    parser.add_argument("--lengths", type=int, nargs="+", default=sorted({x.length for x in shapes()}))
    parser.add_argument("--table", action="store_true", help="print the rows as a table")
    parser.add_argument("--peak", help="JSON of a backend and a shape: print its peak memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the rows go")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        name, *shape = json.loads(options.peak)
        print(peak_here(name, Shape(*shape)))
    elif options.table:
        print(table(options.out))
    else:
        measure_all(options.out, options.threads, options.lengths)


if __name__ == "__main__":
    main()
