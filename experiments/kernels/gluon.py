"""Measure a forward kernel in Gluon, a prototype, beside the Triton kernel and flash attention.

    python -m experiments.kernels.gluon            # results/gluon.csv

It answers one question: what do a group of warps that only copies, and a product that runs beside
arithmetic, give? Nothing in the package uses it. It takes `[batch, heads, knots, 64]` in bfloat16, dense, a
multiple of 64 knots, every query seeing all knots, and gives outputs alone. It lacks the causal mask, other
widths, strides, grouped heads, log-sum-exps for a backward pass, and the restart where a sum of weights
overflows or underflows.
It needs a GPU of compute capability 9.0 and Triton 3.6 or newer.

`gluon` has the product with the values beside the arithmetic of the next tile, `gluon_awaited` awaits each
product; `triton` is the package's kernel with gaps given, `flash` stock attention.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from experiments.kernels.comparison import Inputs, Shape, written
from experiments.kernels.gpu import GPU_COLUMNS, gpu_inputs, measure, relative_error

RESULTS = Path(__file__).parent / "results" / "gluon.csv"
SHAPES = (
    Shape(2, 32, 8192, 64, False),
    Shape(8, 32, 2048, 64, False),
    Shape(64, 16, 256, 64, False),
)
STAGES = {"gluon": 4, "gluon_awaited": 3}  # tiles in shared memory: the best of those tried
QUERIES = 192  # of a program
NEEDS = "the Gluon prototype needs a GPU of compute capability 9.0 and Triton 3.6 or newer"
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def require_hopper() -> None:
    """Raise an error if the prototype does not run here.

    Raises:
        RuntimeError: There is no such GPU, or Triton is too old.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(f"{NEEDS}; there is no GPU")
    import triton

    capability = torch.cuda.get_device_capability()
    if capability != (9, 0) or tuple(map(int, triton.__version__.split(".")[:2])) < (3, 6):
        raise RuntimeError(f"{NEEDS}; found {capability[0]}.{capability[1]} and {triton.__version__}")


def options(name: str) -> dict[str, object]:
    """Options of the kernel and its compiler."""
    return {"S": STAGES[name], "FAST": 2, "OVERLAP": name == "gluon", "num_warps": 4, "maxnreg": 128}


def gluon_forward(q: Tensor, k: Tensor, v: Tensor, gaps: Tensor, name: str = "gluon") -> Tensor:
    """Outputs of the prototype; `gaps` as `launch_gaps` gives them."""
    from experiments.kernels.gluon_kernel import forward_kernel

    batch, heads, knots, width = q.shape
    dense = all(x.dtype == torch.bfloat16 and x.is_contiguous() and x.shape == q.shape for x in (q, k, v))
    if not dense or width != 64 or knots % 64:
        raise ValueError("the prototype takes contiguous bfloat16 of width 64 and a multiple of 64 knots")
    out = torch.empty_like(q)
    grid = (-(-knots // QUERIES) * batch * heads,)
    forward_kernel[grid](q, k, v, gaps, out, heads, knots, width**-0.5, **options(name))
    return out


def attends(inputs: Inputs) -> dict[str, Attend]:
    """What is compared, the gaps taken from the times beforehand."""
    from ctsattn.ops.continuous.triton.launch import Sight, launch_forward, launch_gaps

    gaps, first, weightless = launch_gaps(inputs.times, inputs.k)
    sight = Sight(first, weightless, 2, 0, True, True)

    def stock(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            return scaled_dot_product_attention(q, k, v)

    return {
        "flash": stock,
        "triton": lambda q, k, v: launch_forward(q, k, v, gaps, sight, q.shape[-1] ** -0.5)[0],
        **{name: partial(gluon_forward, gaps=gaps, name=name) for name in STAGES},
    }


def checked(shape: Shape, inputs: Inputs) -> dict[str, float]:
    """Errors against float64 of what is compared.

    Raises:
        RuntimeError: The prototype's error exceeds 1.5 times the Triton kernel's, or its outputs differ from
            that kernel's, over the whole tensor, by more than bfloat16's last place.
    """
    compared = attends(inputs)
    found = {name: relative_error(name, attend, shape, inputs) for name, attend in compared.items()}
    fixed = [x.detach() for x in inputs[:3]]
    same = compared["triton"](*fixed).float()
    for name in STAGES:
        apart = ((compared[name](*fixed).float() - same).norm() / same.norm()).item()
        if not (found[name] <= 1.5 * found["triton"] and apart <= 2**-8):
            raise RuntimeError(
                f"{name} is wrong by {found[name]:.2e} at {shape}, triton by {found['triton']:.2e}; "
                f"they differ by {apart:.2e}"
            )
    return found


def measure_shape(shape: Shape) -> list[dict[str, object]]:
    """Check, then time each forward pass as replays of a graph; median milliseconds."""
    inputs = gpu_inputs(shape)
    errors = checked(shape, inputs)
    rows = []
    for name, attend in attends(inputs).items():
        ms, timing = measure("forward", attend, inputs, short=True)
        rows.append(shape.row(name, "forward", "bfloat16", ms) | {"timing": timing, "error": errors[name]})
    flash = rows[0]["ms"]
    return [row | {"ratio_to_flash": flash / row["ms"]} for row in rows]


def measure_all(path: Path) -> None:
    """Measure every shape; rows are written as they come."""
    require_hopper()
    import triton

    about = {"commit": os.environ.get("CTSATTN_COMMIT", ""), "torch": torch.__version__}
    about |= {"triton": triton.__version__, "device": torch.cuda.get_device_name()}
    with written(path, GPU_COLUMNS, about, "w") as write:
        for shape in SHAPES:
            write(measure_shape(shape))


def main() -> None:
    """Measure, or say in one line why not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the rows go")
    try:
        measure_all(parser.parse_args().out)
    except RuntimeError as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
