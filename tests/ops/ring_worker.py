"""One process of the test of the ring: `python ring_worker.py RANK SIZE STORE`."""

from __future__ import annotations

import itertools
import sys

import torch
import torch.distributed as dist

from ctsattn import continuous_attention
from ctsattn.ops.continuous.sink import Sink
from ctsattn.ops.ring import ring_attention

LENGTHS = (5, 1, 7)  # of the stretches


def clock(kind: str, generator: torch.Generator) -> torch.Tensor | None:
    """Times of two rows."""
    total = sum(LENGTHS)
    if kind == "none":
        return None
    gaps = torch.rand(2, total, generator=generator, dtype=torch.float64)
    if kind == "integers":
        return (gaps * 10**6).long().cumsum(1) + 10**15
    if kind == "flat":
        gaps[:, 1:8] = 0.0  # the first stretch and more at one time
        gaps[1] = 0.0  # a row at one time altogether
    return gaps.cumsum(1)


def check(rank: int, size: int, causal: bool, kind: str, with_sink: bool, dtype: torch.dtype) -> None:
    """The ring's answer and gradients are those of one process."""
    generator = torch.Generator().manual_seed(3)
    total = sum(LENGTHS[:size])
    shapes = ((2, 4, total, 8), (2, 2, total, 8), (2, 2, total, 6))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    times = clock(kind, generator)
    times = None if times is None else times[:, :total]
    weight = torch.randn(2, 4, total, 6, generator=generator, dtype=torch.float64).to(dtype)
    sink = Sink(0.3, -0.2, 0.7) if with_sink else None
    backend = "reference" if dtype == torch.float64 else None
    options = {"is_causal": causal, "sink": sink, "enable_gqa": True, "backend": backend}
    begin = sum(LENGTHS[:rank])
    mine = slice(begin, begin + LENGTHS[rank])

    whole = [x.clone().requires_grad_(x.is_floating_point()) for x in (q, k, v, times) if x is not None]
    expected = continuous_attention(*whole, **options)
    (expected * weight).sum().backward()
    part = [x[:, :, mine] if x.dim() == 4 else x[:, mine] for x in (q, k, v, times) if x is not None]
    part = [x.clone().requires_grad_(x.is_floating_point()) for x in part]
    found = ring_attention(*part, **options)
    (found * weight[:, :, mine]).sum().backward()

    close = {"rtol": 0, "atol": 1e-11 if dtype == torch.float64 else 2e-5}
    torch.testing.assert_close(found, expected[:, :, mine].detach(), **close)
    for ours, theirs in zip(part, whole, strict=True):
        # A stretch at one time has no weight, and so no gradient in its gaps; see `ring_attention`.
        if theirs.grad is not None and not (kind == "flat" and theirs.dim() == 2):
            cut = theirs.grad[:, :, mine] if theirs.dim() == 4 else theirs.grad[:, mine]
            torch.testing.assert_close(
                ours.grad, cut, rtol=1e-9 if dtype == torch.float64 else 1e-3, atol=2e-5
            )


def main() -> None:
    """Try every way, and say how many there were."""
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    pairs = itertools.product((False, True), ("none", "floats", "integers", "flat"))
    ways = [
        (causal, kind, (number + causal) % 2 == 0, torch.float64)
        for number, (causal, kind) in enumerate(pairs)
    ]
    for way in [*ways, (True, "floats", False, torch.float32)]:
        try:
            check(rank, size, *way)
        except Exception as error:
            raise RuntimeError(str(way)) from error
    dist.destroy_process_group()
    sys.stdout.write(f"{len(ways) + 1} ways\n")


if __name__ == "__main__":
    main()
