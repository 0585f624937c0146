"""One series of a million observations as context: time and memory by length, and the ring against one.

    python -m experiments.scale.long_context
    python -m experiments.scale.long_context --lengths 4096 8192 --dtype float32
    torchrun --standalone --nproc-per-node 2 -m experiments.scale.long_context --ring --lengths 1048576

Forward and backward of causal `continuous_attention` over irregular times, and of whole networks that look
back on as many observations; the first command wants a GPU, the second one suits a CPU. With `--ring` each
process holds a part of the sequence, and compares its part of the answer with that of one device.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ctsattn import continuous_attention
from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.forecasting.learner import mean_loss
from ctsattn.models import ContinuousTransformer
from ctsattn.ops.ring import ring_attention
from experiments.scale.stamp import stamp, write

LENGTHS = [2**n for n in range(16, 21)]
HEADS, WIDTH = 4, 64
LONG = 1.0  # seconds of steps after which none is repeated


def inputs(length: int, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values, and times in float64."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (1, HEADS, length, WIDTH)
    parts = [torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(3)]
    gaps = torch.empty(length, device=device, dtype=torch.float64).exponential_(generator=generator)
    return parts, gaps.cumsum(0)


def operator(length: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    """Forward and backward of the operator."""
    parts, times = inputs(length, dtype, device)
    for part in parts:
        part.requires_grad_()

    def step() -> None:
        out = continuous_attention(*parts, times=times, is_causal=True)
        torch.autograd.grad(out.float().square().mean(), parts)

    return step


PATCHES = ContinuousTransformer(d_model=128, num_layers=2, num_heads=2, dropout=0.0)
TOKENS = replace(PATCHES, mixer="continuous", patch=None, is_causal=True)


def network(
    length: int, dtype: torch.dtype, device: str, config: ContinuousTransformer
) -> Callable[[], object]:
    """Loss and gradients of a model whose window shows `length` observations of one series."""
    spec = TaskSpec(lookback=float(length), horizon=24.0)
    model = config.build(spec).to(device)
    batch = one_series(length).to(device)

    def step() -> None:
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss, _ = mean_loss(model, batch)
        loss.backward()

    return step


MEASURED = {
    "operator": operator,
    "network of 48 patches": partial(network, config=PATCHES),
    "network of a token each": partial(network, config=TOKENS),
}


def one_series(length: int, queries: int = 24) -> Batch:
    """A window of a noisy daily cycle."""
    generator = torch.Generator().manual_seed(0)
    gaps = torch.empty(1, 1, length).exponential_(generator=generator).double()
    times = gaps.cumsum(-1)
    times = (times - times[..., -1:]).float()
    ahead = torch.arange(1.0, queries + 1)[None]

    def values(at: Tensor) -> Tensor:
        return torch.sin(at * 0.26) + 0.1 * torch.randn(at.shape, generator=generator)

    none, code = torch.float32, torch.int64
    return Batch(
        past_times=times,
        past_values=values(times),
        past_codes=torch.zeros(1, 1, length, dtype=code),
        past_mask=torch.ones(1, 1, length, dtype=torch.bool),
        past_known=torch.zeros(1, 1, length, 0, dtype=none),
        past_known_codes=torch.zeros(1, 1, length, 0, dtype=code),
        static=torch.zeros(1, 0),
        static_codes=torch.zeros(1, 0, dtype=code),
        future_times=ahead,
        future_mask=torch.ones(1, queries, dtype=torch.bool),
        future_known=torch.zeros(1, queries, 0),
        future_known_codes=torch.zeros(1, queries, 0, dtype=code),
        future_values=values(ahead)[:, None],
        future_observed=torch.ones(1, 1, queries, dtype=torch.bool),
        loc=torch.zeros(1, 1, dtype=torch.float64),
        scale=torch.ones(1, 1, dtype=torch.float64),
        series=torch.zeros(1, dtype=code),
        cutoff=torch.zeros(1, dtype=torch.float64),
    )


def measured(step: Callable[[], object], device: str) -> tuple[float, float]:
    """Seconds of the fastest of three steps (fewer where they are long), peak memory in MiB (0 on a CPU)."""
    seconds: list[float] = []
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    while len(seconds) < 3 and sum(seconds) < LONG:
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(agreed(time.perf_counter() - begin, device))
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    return min(seconds), agreed(peak, device)


def agreed(number: float, device: str) -> float:
    """The largest of what the processes of a run have."""
    if not dist.is_initialized():
        return number
    found = torch.tensor(number, device=device, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def one_device(options: argparse.Namespace, device: str) -> None:
    """Time and memory of operator and network for each length."""
    dtype, rows = getattr(torch, options.dtype), []
    for what in options.what:
        make = MEASURED[what]
        make(options.lengths[0], dtype, device)()  # compiles
        for length in options.lengths:
            seconds, peak = measured(make(length, dtype, device), device)
            row = {
                "what": what,
                "observations": length,
                "seconds": round(seconds, 4),
                "peak_mib": round(peak, 1),
            }
            rows.append({**row, "dtype": options.dtype, **stamp()})
            print(row, flush=True)
            write(options.results, rows)


def ring(options: argparse.Namespace, device: str) -> None:
    """The ring's answer and gradients against those of one device, on the first process."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rows, dtype = [], getattr(torch, options.dtype)
    for causal in (True, False):
        against_one(options.lengths[0], causal, dtype, device)  # compiles
    for length, causal in [(n, causal) for n in options.lengths for causal in (True, False)]:
        if length > options.longest_full and not causal:
            continue
        row = against_one(length, causal, dtype, device)
        rows.append({**row, "processes": world, "dtype": options.dtype, **stamp()})
        if rank == 0:
            print(row, flush=True)
            write(options.results, rows)
    dist.destroy_process_group()


def against_one(length: int, causal: bool, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Time and memory of the ring and of one device, and the largest differences between them.

    The whole sequence is made for the second of them only, so that the ring's memory is that of its parts.
    """
    mine = slice(
        *(place * length // dist.get_world_size() for place in (dist.get_rank(), dist.get_rank() + 1))
    )
    part, at = parts_of(mine, length, dtype, device)
    found: list[Tensor] = []
    wanted: list[Tensor] = []

    def in_ring() -> None:
        found[:] = answer_and_grads(ring_attention(*part, times=at, is_causal=causal), part)

    seconds, peak = measured(in_ring, device)
    whole, times = parts_of(slice(None), length, dtype, device)

    def alone() -> None:
        wanted[:] = answer_and_grads(continuous_attention(*whole, times=times, is_causal=causal), whole)

    one, one_peak = measured(alone, device)
    errors = [
        agreed((a - b[:, :, mine]).abs().max().item() / b.abs().max().item(), device)
        for a, b in zip(found, wanted, strict=True)
    ]
    return {
        "observations": length,
        "causal": int(causal),
        "ring_seconds": round(seconds, 4),
        "one_device_seconds": round(one, 4),
        "ring_peak_mib": round(peak, 1),
        "one_device_peak_mib": round(one_peak, 1),
        "relative_error": errors[0],
        "relative_error_gradients": max(errors[1:]),
    }


def parts_of(mine: slice, length: int, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    """A part of the inputs, of which nothing else stays; queries, keys and values want gradients."""
    whole, times = inputs(length, dtype, device)
    return [x[:, :, mine].clone().requires_grad_() for x in whole], times[mine].clone()


def answer_and_grads(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """An answer, and the gradients of its mean square over the sequence that it is part of."""
    grads = torch.autograd.grad(out.float().square().sum() / out.shape[3], leaves)
    return [out.detach(), *grads]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument(
        "--longest-full", type=int, default=2**18, help="longest sequence whose ring is measured without mask"
    )
    parser.add_argument("--what", nargs="+", default=list(MEASURED), choices=list(MEASURED))
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float64"])
    parser.add_argument(
        "--ring", action="store_true", help="under torchrun: compare the ring with one device"
    )
    parser.add_argument("--results", default="", help="name of the CSV; long_context or ring without it")
    options = parser.parse_args()
    options.results = options.results or ("ring" if options.ring else "long_context")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (ring if options.ring else one_device)(options, device)


if __name__ == "__main__":
    main()
