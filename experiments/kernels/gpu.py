"""Time the Triton kernels against stock attention on a GPU, after checking that they are right.

    python -m experiments.kernels.gpu            # measure: results/gpu.csv
    python -m experiments.kernels.gpu --plot     # draw results/gpu.csv: results/gpu.png
    python -m experiments.kernels.gpu --table    # rewrite the table in README.md

`triton` is the public function with real times, `first_order` the approximation on stock kernels (only with
`--first-order`); `flash`, `cudnn` and `efficient` are stock attention.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ctsattn.ops.continuous import continuous_attention
from experiments.kernels.comparison import (
    COLUMNS,
    WORK,
    Attend,
    Inputs,
    Shape,
    make_inputs,
    truth_of_first_head,
    written,
)
from experiments.kernels.turns import in_turns

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.csv"
GPU_COLUMNS = (*COLUMNS, "timing", "commit", "torch", "triton", "device")
STOCK = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def shapes() -> Iterator[Shape]:
    """16k tokens of width 2048 at several lengths, and many short rows; the widths side by side.

    What is told first is measured even if the machine has to be given back before the end.
    """
    for length in (8192, 2048, 64, 256, 32768, 512, 128):
        for causal in (True, False):
            for head_dim in (64, 128):
                if length in (64, 256):
                    yield Shape(4096 // 16 if length == 64 else 1024 // 16, 16, length, head_dim, causal)
                else:
                    yield Shape(max(16384 // length, 1), 2048 // head_dim, length, head_dim, causal)


def gpu_inputs(shape: Shape) -> Inputs:
    """Random tensors in bfloat16, and times."""
    return make_inputs(shape, "cuda", torch.bfloat16)


def attends(shape: Shape, times: Tensor) -> dict[str, Attend]:
    """What is compared."""

    def ours(backend: str) -> Attend:
        return lambda q, k, v: continuous_attention(q, k, v, times, is_causal=shape.causal, backend=backend)

    def stock(backend: SDPBackend) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(q, k, v, is_causal=shape.causal)

        return attend

    return {
        **{name: stock(backend) for name, backend in STOCK.items()},
        "triton": ours("triton"),
        "first_order": ours("first_order"),
    }


def relative_error(name: str, attend: Attend, shape: Shape, inputs: Inputs) -> float:
    """Error of the last 128 outputs of the first head against float64, each of its own operator."""
    few = slice(max(shape.length - 128, 0), None)
    out = attend(*inputs[:3]).detach()[:1, :1, few].double()
    q, k, v = (x.detach()[:1, :1].double() for x in inputs[:3])
    truth, seen = truth_of_first_head(shape, q[:, :, few], k, v, inputs.times, few, name in STOCK)
    truth = torch.where(seen[:, None, :, None], truth, out)
    return ((out - truth).norm() / truth.norm()).item()


def check() -> None:
    """Compare results and gradients with float64 before anything is timed.

    Raises:
        RuntimeError: An error exceeds 1.5 times that of flash attention.
    """
    for head_dim, causal, length in product((64, 128), (True, False), (64, 256, 777)):
        shape = Shape(2, 4, length, head_dim, causal)
        inputs = gpu_inputs(shape)
        found = {}
        for name in ("triton", "flash"):
            out = attends(shape, inputs.times)[name](*inputs[:3])
            grads = torch.autograd.grad(out, inputs[:3], inputs.grad)
            wide = [x.detach().double().requires_grad_() for x in inputs[:3]]
            if name == "flash":
                with sdpa_kernel([SDPBackend.MATH]):
                    truth = scaled_dot_product_attention(*wide, is_causal=causal)
            else:
                truth = continuous_attention(*wide, inputs.times, is_causal=causal, backend="reference")
            exact = torch.autograd.grad(truth, wide, inputs.grad.double())
            pairs = zip((out, *grads), (truth, *exact), strict=True)
            found[name] = [((x.double() - y).norm() / y.norm()).item() for x, y in pairs]
        for part, ours, theirs in zip(
            ("out", "dq", "dk", "dv"), found["triton"], found["flash"], strict=True
        ):
            if not ours <= 1.5 * theirs:
                raise RuntimeError(
                    f"{part} of {shape} is wrong by {ours:.2e}, flash attention by {theirs:.2e}"
                )


def measure(step: str, attend: Attend, inputs: Inputs, short: bool) -> tuple[float, str]:
    """Median milliseconds of a pass, and how they were taken: short ones as replays of a graph."""
    from triton.testing import do_bench

    if not short:
        return do_bench(call_of(step, attend, inputs), warmup=8, rep=30, return_mode="median"), "events"
    calls, stream, graph = 10, torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call = call_of(step, attend, inputs)
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
    torch.cuda.synchronize()
    return do_bench(graph.replay, warmup=8, rep=30, return_mode="median") / calls, "graph"


def peak_mib(attend: Attend, inputs: Inputs) -> float:
    """Peak memory of one pass forward and backward, inputs included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(attend(*inputs[:3]), inputs[:3], inputs.grad)
    return torch.cuda.max_memory_allocated() / 2**20


def measure_shape(shape: Shape, skipped: tuple[str, ...]) -> list[dict[str, object]]:
    """One row for each backend and pass."""
    inputs = gpu_inputs(shape)
    short = shape.length <= 512
    rows = []
    for name, attend in attends(shape, inputs.times).items():
        if name in skipped:
            continue
        try:
            error, peak = relative_error(name, attend, shape, inputs), peak_mib(attend, inputs)
            for step in WORK:
                ms, timing = measure(step, attend, inputs, short)
                found = {"timing": timing, "peak_mib": peak, "error": error}
                rows.append(shape.row(name, step, "bfloat16", ms) | found)
        except RuntimeError as reason:  # a stock backend that lacks the case, or too little memory
            first_line = (str(reason) or repr(reason)).splitlines()[0]
            sys.stderr.write(f"{name} does not run {shape}: {first_line}\n")
    del inputs
    torch.cuda.empty_cache()
    return with_ratios(rows)


def call_of(step: str, attend: Attend, inputs: Inputs) -> Callable[[], object]:
    """The call that is timed for a pass."""
    q, k, v, grad, _ = inputs
    if step == "forward":
        fixed = [x.detach() for x in (q, k, v)]
        return lambda: attend(*fixed)
    if step == "backward":
        out = attend(q, k, v)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    return lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), grad)


def with_ratios(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Add how many times faster than stock attention each row is."""
    times = {(row["backend"], row["pass"]): row["ms"] for row in rows}
    for row in rows:
        stock = {name: times.get((name, row["pass"])) for name in STOCK}
        fastest = min((ms for ms in stock.values() if ms is not None), default=None)
        for column, ms in (("flash", stock["flash"]), ("cudnn", stock["cudnn"]), ("sdpa", fastest)):
            row[f"ratio_to_{column}"] = "" if ms is None else ms / row["ms"]
    return rows


def prepare(shape: Shape, skipped: tuple[str, ...]) -> None:
    """Let the stock backends plan and Triton compile what a shape needs."""
    inputs = gpu_inputs(shape)
    for name, attend in attends(shape, inputs.times).items():
        if name not in skipped:
            with suppress(RuntimeError):  # `measure_shape` tells of it
                relative_error(name, attend, shape, inputs)
                for step in WORK:
                    call_of(step, attend, inputs)()
    torch.cuda.synchronize()
    del inputs
    torch.cuda.empty_cache()


def measure_all(path: Path, skipped: tuple[str, ...], workers: int) -> None:
    """Check, then measure every shape; rows are written as they come."""
    import triton

    about = {
        "commit": os.environ.get("CTSATTN_COMMIT", ""),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    about["device"] = torch.cuda.get_device_name()
    with written(path, GPU_COLUMNS, about, "w") as write:
        ready, measured = partial(prepare, skipped=skipped), partial(measure_shape, skipped=skipped)
        for rows in in_turns(list(shapes()), ready, measured, check, workers):
            write(rows)


def measure_longest(length: int = 262144) -> str:
    """One pass forward and backward over a very long row."""
    shape = Shape(1, 2, length, 64, True)
    inputs = gpu_inputs(shape)
    lines = []
    for name in ("triton", "flash"):
        attend = attends(shape, inputs.times)[name]
        peak = peak_mib(attend, inputs)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.autograd.grad(attend(*inputs[:3]), inputs[:3], inputs.grad)
        end.record()
        torch.cuda.synchronize()
        lines.append(f"{length} {name}: {start.elapsed_time(end):.1f} ms, peak {peak:.0f} MiB")
    return "\n".join(lines)


def draw(source: Path, target: Path) -> None:
    """Speed against flash attention by length, for each width."""
    import pandas as pd

    from ctsattn.plotting.style import BLUE, GREEN, GREY, VERMILION, legend_below, panels

    rows = pd.read_csv(source)
    rows = rows[(rows.backend == "triton") & rows["keys"].isin([128, 512, 2048, 8192, 32768])]
    rows = rows.sort_values("keys")
    figure, axes = panels(2, columns=2, figsize=(9, 3.8))
    axes[1].sharey(axes[0])
    colours = {"forward": BLUE, "backward": VERMILION, "forward+backward": GREEN}
    for axis, (width, group) in zip(axes, rows.groupby("head_dim"), strict=True):
        for (step, causal), line in group.groupby(["pass", "causal"]):
            label = f"{step}, {'causal' if causal else 'full'}"
            style = {
                "color": colours[step],
                "linestyle": "-" if causal else "--",
                "marker": "o",
                "markersize": 3,
            }
            axis.plot(line["keys"], line.ratio_to_flash, label=label, **style)
        axis.axhline(1.0, color=GREY, linewidth=0.8)
        title = f"head width {width}, commit {', '.join(group.commit.unique())}"
        axis.set(xscale="log", xlabel="length", title=title)
        axis.set_xticks(sorted(group["keys"].unique()), [str(x) for x in sorted(group["keys"].unique())])
        axis.minorticks_off()
    axes[0].set(ylabel="speed / flash attention's", ylim=(0, 1.05 * max(rows.ratio_to_flash.max(), 1)))
    legend_below(figure, axes, columns=3)
    figure.savefig(target, dpi=150)


def table(source: Path) -> str:
    """Markdown: milliseconds and ratios at 16k tokens and for short rows."""
    import pandas as pd

    rows = pd.read_csv(source)
    rows = rows[rows.backend == "triton"]
    lines = [
        "| width | mask | rows × heads × length | pass | ms | TFLOP/s | of flash | of cuDNN | error | commit "
        "|",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.sort_values(
        ["head_dim", "causal", "keys", "batch"], ascending=[True, False, True, True]
    ).itertuples():
        mask, step = "causal" if row.causal else "full", row[rows.columns.get_loc("pass") + 1]
        size = f"{row.batch} × {row.heads} × {row.keys}"
        lines.append(
            f"| {row.head_dim} | {mask} | {size} | {step} | {row.ms:.3g} | {row.tflops:.0f} | "
            f"{row.ratio_to_flash:.2f} | {row.ratio_to_cudnn:.2f} | {row.error:.1e} | {row.commit} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, draw or tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", action="store_true", help="draw the committed rows")
    parser.add_argument("--table", action="store_true", help="rewrite the table in README.md")
    parser.add_argument("--longest", action="store_true", help="one row of 262144 knots")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the rows go")
    parser.add_argument("--workers", type=int, default=1, help="processes that prepare the shapes")
    parser.add_argument("--first-order", action="store_true", help="measure the first-order backend too")
    options = parser.parse_args()
    if options.plot:
        draw(options.out, options.out.with_suffix(".png"))
    elif options.table:
        readme = HERE / "README.md"
        begin, end = "<!-- gpu table -->\n", "<!-- end of gpu table -->"
        before, rest = readme.read_text().split(begin)
        readme.write_text(before + begin + table(options.out) + "\n" + end + rest.split(end)[1])
    elif options.longest:
        print(measure_longest())
    else:
        measure_all(options.out, () if options.first_order else ("first_order",), options.workers)


if __name__ == "__main__":
    main()
