"""Refinement: which attention converges to the integral as the grid gets finer, and how fast.

    python -m experiments.operator.refinement

Smooth random keys and values on [0, 1] are sampled on ever finer grids: regular, jittered by ±45 % of the
gap, uneven (ten times denser on one side), and uniformly random. Each operator sees the samples; the
error is the root mean square over 16 heads and 8 problems against Gauss-Legendre quadrature of the
continuum. The slope of the last four points in log-log is the order of convergence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ctsattn.ops import continuous_attention, trapezoid_attention
from ctsattn.plotting.style import CYCLE, MARKERS, panels
from experiments.operator.signals import GRIDS, grid, problem
from experiments.operator.stamp import RESULTS, stamp, write

PIECES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
PROBLEMS = 8
FITTED = 4  # points of a line that its slope is fitted to

Operator = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
OPERATORS: dict[str, Operator] = {
    "continuous": lambda q, k, v, t: continuous_attention(q, k, v, t, backend="reference"),
    "first order": lambda q, k, v, t: continuous_attention(q, k, v, t, backend="first_order"),
    "trapezoid": trapezoid_attention,
    "continuous, unit gaps": lambda q, k, v, t: continuous_attention(q, k, v, backend="reference"),
    "softmax": lambda q, k, v, t: scaled_dot_product_attention(q, k, v),
}


def measure() -> Iterator[dict[str, object]]:
    """One row for each grid, operator and number of pieces."""
    marks = stamp(seed=0)
    problems = [problem(seed) for seed in range(PROBLEMS)]
    truths = [each.exact() for each in problems]
    for kind in GRIDS:
        for name, operator in OPERATORS.items():
            for pieces in PIECES:
                squares = [
                    np.square(operator(*each.sample(grid(kind, pieces, seed)))[0, :, 0].numpy() - truth)
                    for seed, (each, truth) in enumerate(zip(problems, truths, strict=True))
                ]
                error = float(np.sqrt(np.mean(squares)))
                yield {"grid": kind, "operator": name, "pieces": pieces, "rms_error": error} | marks


def orders(rows: list[dict[str, object]]) -> dict[tuple[str, str], float]:
    """Order of convergence of each operator on each grid."""
    found = {}
    for kind in GRIDS:
        for name in OPERATORS:
            line = [row for row in rows if row["grid"] == kind and row["operator"] == name][-FITTED:]
            steps = np.log([float(str(row["pieces"])) for row in line])
            errors = np.log([float(str(row["rms_error"])) for row in line])
            found[kind, name] = -float(np.polyfit(steps, errors, 1)[0])
    return found


def draw(rows: list[dict[str, object]]) -> None:
    """Error over number of pieces, one panel for each grid; the order of convergence in each legend."""
    figure, axes = panels(len(GRIDS), columns=2, figsize=(11, 8.5))
    slopes = orders(rows)
    for axis, kind in zip(axes, GRIDS, strict=True):
        for name, colour, marker in zip(OPERATORS, CYCLE, MARKERS, strict=False):
            line = [row for row in rows if row["grid"] == kind and row["operator"] == name]
            axis.loglog(
                [row["pieces"] for row in line],
                [row["rms_error"] for row in line],
                color=colour,
                marker=marker,
                markersize=4,
                linestyle="--" if name == "first order" else "-",
                zorder=4 if name == "continuous" else 5 if name == "first order" else 3,
                label=f"{name}: order {round(slopes[kind, name], 1) + 0.0:.1f}",
            )
        axis.set_title(f"{kind} grid", loc="left")
        axis.set_xlabel("pieces")
        axis.set_ylabel("error of the output")
        axis.legend(loc="lower left", fontsize=8)
    figure.savefig(RESULTS / "refinement.png", dpi=130)


def main() -> None:
    """Measure, write the rows and draw them."""
    torch.set_num_threads(1)
    rows = list(measure())
    write("refinement", rows)
    draw(rows)


if __name__ == "__main__":
    main()
