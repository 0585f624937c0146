"""What the timing scripts for CPU and GPU share: shapes, inputs, the truth, and the rows of a result file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ctsattn.ops.continuous import reference

# Columns that both result files have; each adds to them how its rows were taken.
COLUMNS = (
    *("backend", "pass", "dtype", "batch", "heads", "queries", "keys", "head_dim", "causal"),
    *("ms", "tflops", "peak_mib", "error", "ratio_to_flash", "ratio_to_cudnn", "ratio_to_sdpa"),
)
# Work of a pass relative to the forward pass, as attention papers count it.
WORK = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    """Sizes of one comparison; as many queries as keys."""

    batch: int
    heads: int
    length: int
    head_dim: int
    causal: bool

    def row(self, backend: str, step: str, dtype: str, ms: float) -> dict[str, object]:
        """What a result row says of the shape, and the time with the rate that it makes."""
        scores = self.batch * self.heads * self.length**2 * (0.5 if self.causal else 1.0)
        sizes = {"batch": self.batch, "heads": self.heads, "head_dim": self.head_dim, "causal": self.causal}
        sizes |= {"queries": self.length, "keys": self.length}
        tflops = WORK[step] * 4 * scores * self.head_dim / ms / 1e9
        return {"backend": backend, "pass": step, "dtype": dtype} | sizes | {"ms": ms, "tflops": tflops}


class Inputs(NamedTuple):
    """Tensors of a shape: `[batch, heads, length, head_dim]`, and real times `[batch, length]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    times: Tensor


def make_inputs(shape: Shape, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
    """Random tensors, and times with exponential gaps."""
    generator = torch.Generator(device).manual_seed(shape.length)
    size = (shape.batch, shape.heads, shape.length, shape.head_dim)
    draws = [torch.randn(size, generator=generator, device=device, dtype=dtype) for _ in range(4)]
    gaps = torch.empty(shape.batch, shape.length, device=device).exponential_(generator=generator)
    q, k, v = (x.requires_grad_() for x in draws[:3])
    return Inputs(q, k, v, draws[3], gaps.cumsum(-1, dtype=torch.float64))


def core_arguments(shape: Shape, times: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Gaps, first and last knots, and scale of the canonical problem."""
    gaps = pad(times.diff(dim=-1), (1, 0))
    gaps = (gaps / gaps.amax(dim=-1, keepdim=True)).float()
    place = torch.arange(shape.length, dtype=torch.int32, device=times.device)
    last = (place if shape.causal else torch.full_like(place, shape.length - 1)).expand(shape.batch, -1)
    return gaps, torch.zeros_like(last), last.contiguous(), shape.head_dim**-0.5


def truth_of_first_head(
    shape: Shape, q: Tensor, k: Tensor, v: Tensor, times: Tensor, few: slice, stock: bool
) -> tuple[Tensor, Tensor]:
    """Outputs of queries `[1, 1, few, head_dim]` by definition, and which have something to integrate."""
    gaps, first, last, scale = core_arguments(shape, times)
    if stock:
        key = torch.arange(shape.length, device=q.device)
        seen = (key <= last[:1, few, None])[:, None]
        return scaled_dot_product_attention(q, k, v, seen), torch.ones_like(last[:1, few], dtype=torch.bool)
    out, _ = reference.core(q, k, v, gaps[:1].double(), first[:1, few], last[:1, few], scale)
    return out, last[:1, few] > 0


@contextmanager
def written(path: Path, columns: tuple[str, ...], about: dict[str, object], mode: str) -> Iterator[Callable]:
    """A function that writes rows to a result file, at once, with `about` and numbers of four digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begins = mode == "w" or not path.exists()
    with path.open(mode, newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if begins:
            writer.writeheader()

        def write(rows: list[dict[str, object]]) -> None:
            for row in rows:
                short = {key: f"{x:.4g}" if isinstance(x, float) else x for key, x in row.items()}
                writer.writerow(short | about)
            file.flush()

        yield write
