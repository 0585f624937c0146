"""The first-order form beside the exact operator: how far apart they are, and what it costs.

    python -m experiments.operator.first_order                # all of it
    python -m experiments.operator.first_order --lengths 96   # times of these lengths; other rows stay
    python -m experiments.operator.first_order --lengths      # distances only

Distance: smooth random keys and values on [0, 1] of several roughnesses, sampled on a jittered grid; root
mean square of the difference between the two outputs over 16 heads and 8 problems. For comparison the
exact operator's own error against the continuum, and the distance on keys without any smoothness, whose
scores jump by a fixed amount from knot to knot however fine the grid.

Time: float32 on one thread, batch 4 and 4 heads, forward and forward with backward, the calls of all
operators alternating in one process. A time is the median over the calls of the processor time of this
process, which others on the machine disturb less than the time on the wall.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ctsattn.ops import continuous_attention, trapezoid_attention
from ctsattn.plotting.style import CYCLE, MARKERS, panels
from experiments.operator.signals import HEADS, KEY_WIDTH, VALUE_WIDTH, grid, problem
from experiments.operator.stamp import RESULTS, read, stamp, write

PIECES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
ROUGHNESSES = (0.5, 1.0, 2.0)
JUMPS = (0.5, 2.0)  # standard deviation of the scores of keys without smoothness
PROBLEMS = 8
LENGTHS = {96: 501, 336: 101, 1024: 21, 2048: 11}  # and how often each is timed
HEAD_DIMS = (32, 64)

Row = dict[str, object]


def between(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Exact and first-order output for the same samples."""
    exact = continuous_attention(q, k, v, times, backend="reference")
    return exact, continuous_attention(q, k, v, times, backend="first_order")


def distances() -> Iterator[Row]:
    """One row for each roughness, or size of jumps, and number of pieces."""
    marks = stamp(seed=0)
    for roughness in ROUGHNESSES:
        problems = [problem(seed, roughness) for seed in range(PROBLEMS)]
        truths = [each.exact() for each in problems]
        for pieces in PIECES:
            pairs = [between(*p.sample(grid("jittered", pieces, seed))) for seed, p in enumerate(problems)]
            apart = np.mean([(a - b).square().mean().item() for a, b in pairs]) ** 0.5
            errors = [
                np.square(a[0, :, 0].numpy() - t).mean() for (a, _), t in zip(pairs, truths, strict=True)
            ]
            found = {"pieces": pieces, "rms_distance": apart, "rms_error_of_exact": np.mean(errors) ** 0.5}
            yield {"keys": "smooth", "size": roughness} | found | marks
    for jump in JUMPS:
        for pieces in PIECES:
            pairs = [between(*_rough(pieces, jump, seed)) for seed in range(PROBLEMS)]
            apart = np.mean([(a - b).square().mean().item() for a, b in pairs]) ** 0.5
            found = {"pieces": pieces, "rms_distance": apart, "rms_error_of_exact": ""}
            yield {"keys": "independent", "size": jump} | found | marks


def _rough(pieces: int, jump: float, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys that are independent from knot to knot, with scores of a given standard deviation."""
    generator = np.random.default_rng([seed, pieces])
    times = grid("jittered", pieces, seed)
    q = np.ones((HEADS, 1, KEY_WIDTH))
    k = jump * generator.normal(size=(HEADS, pieces + 1, KEY_WIDTH))
    v = generator.normal(size=(HEADS, pieces + 1, VALUE_WIDTH))
    return *(torch.from_numpy(x)[None] for x in (q, k, v)), torch.from_numpy(times)


def timings(lengths: list[int]) -> Iterator[Row]:
    """One row for each operator, pass, length, width and kind of mask."""
    marks = stamp(seed=0)
    for length in lengths:
        calls = LENGTHS[length]
        for head_dim in HEAD_DIMS:
            for causal in (False, True):
                for kind, milliseconds in _medians(length, head_dim, causal, calls).items():
                    for name, ms in milliseconds.items():
                        shape = {
                            "batch": 4,
                            "heads": 4,
                            "queries": length,
                            "keys": length,
                            "head_dim": head_dim,
                        }
                        row = {
                            "backend": name,
                            "pass": kind,
                            "dtype": "float32",
                            **shape,
                            "causal": int(causal),
                        }
                        times = {"ms": f"{ms:.4g}", "ratio_to_sdpa": f"{milliseconds['sdpa'] / ms:.3f}"}
                        yield row | times | {"calls": calls} | marks


def _medians(length: int, head_dim: int, causal: bool, calls: int) -> dict[str, dict[str, float]]:
    """Median processor time in ms of each operator, for both kinds of pass."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 4, length, head_dim, requires_grad=True) for _ in range(3))
    times = torch.rand(4, length, dtype=torch.float64).cumsum(dim=-1)
    operators: dict[str, Callable[[], Tensor]] = {
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=causal),
        "first_order": lambda: continuous_attention(q, k, v, times, is_causal=causal, backend="first_order"),
        "trapezoid": lambda: trapezoid_attention(q, k, v, times, is_causal=causal),
    }
    upstream = torch.randn_like(q)

    def with_backward(operator: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(operator(), (q, k, v), upstream)

    with torch.no_grad():
        forward = _alternate(operators, calls)
    return {
        "forward": forward,
        "forward+backward": _alternate({n: with_backward(f) for n, f in operators.items()}, calls),
    }


def _alternate(
    functions: dict[str, Callable[[], object]] | dict[str, Callable[[], Tensor]], calls: int
) -> dict[str, float]:
    """Median processor time in ms of each function, called in turn."""
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for call in range(calls + 2):
        for name, function in functions.items():
            start = time.process_time()
            function()
            if call >= 2:  # the first two warm up
                spent[name].append(time.process_time() - start)
    return {name: 1e3 * statistics.median(each) for name, each in spent.items()}


def draw(apart: list[Row], times: list[Row]) -> None:
    """Distances over the number of pieces, and time relative to stock attention over length."""
    figure, (left, right) = panels(2, columns=2, figsize=(12, 4.8))
    styles = iter(zip(CYCLE, MARKERS, strict=True))
    for keys, sizes in (("smooth", ROUGHNESSES), ("independent", JUMPS)):
        for size in sizes:
            line = [row for row in apart if row["keys"] == keys and row["size"] == size]
            colour, marker = next(styles)
            what = f"roughness {size:g}" if keys == "smooth" else f"no smoothness, scores ± {2 * size:g}"
            points = [row["pieces"] for row in line], [row["rms_distance"] for row in line]
            left.loglog(*points, color=colour, marker=marker, markersize=4, label=what)
    guide = np.array([128.0, 2048.0])
    left.loglog(guide, 0.02 * (guide / 128) ** -2, color="#222222", linestyle=":", label="gap squared")
    left.set_title("Distance of first order from exact", loc="left")
    left.set_xlabel("pieces")
    left.set_ylabel("root mean square of the difference")
    left.legend(fontsize=8)
    place = 0
    for name in ("first_order", "trapezoid"):
        for causal in (0, 1):
            line = [r for r in times if r["backend"] == name and r["causal"] == causal]
            line = [r for r in line if r["pass"] == "forward+backward" and r["head_dim"] == 32]
            relative = [1 / float(str(r["ratio_to_sdpa"])) for r in line]
            label = f"{name.replace('_', ' ')}, {'causal' if causal else 'full'}"
            lengths = [r["keys"] for r in line]
            right.semilogx(
                lengths, relative, color=CYCLE[place], marker=MARKERS[place], markersize=4, label=label
            )
            place += 1
    right.axhline(1.3, color="#222222", linestyle=":", label="1.3")
    right.axhline(1.0, color="#7A7A7A", linewidth=0.8)
    right.set_title("Time relative to stock attention (both passes, width 32)", loc="left")
    right.set_xlabel("length")
    right.set_ylim(bottom=0)
    right.set_xticks(list(LENGTHS), [str(length) for length in LENGTHS])
    right.minorticks_off()
    right.legend(fontsize=8)
    figure.savefig(RESULTS / "first_order.png", dpi=130)


def main() -> None:
    """Measure, write the rows and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="*", choices=LENGTHS, help="time these alone")
    lengths = parser.parse_args().lengths
    torch.set_num_threads(1)
    if not lengths:
        write("first_order_distance", list(distances()))
    times = list(timings(list(LENGTHS) if lengths is None else lengths))
    measured = {row["keys"] for row in times}
    times += [row for row in read("first_order_time", as_text=True) if int(str(row["keys"])) not in measured]
    write("first_order_time", sorted(times, key=lambda row: int(str(row["keys"]))))
    draw(read("first_order_distance"), read("first_order_time"))


if __name__ == "__main__":
    main()
