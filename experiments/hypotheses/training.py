"""Train all seeds of a cell at once: parameters carry a leading seed axis, and `vmap` runs over it.

Adam is elementwise, so the stacked run equals separate runs; norms and choices are taken seed by seed. Seed s
draws its weights, its batches and its masks from generators that know only s and the task: all arms see the
same batches in the same order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.hypotheses.tasks import DeviceTask, Windows

State = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, the same for all arms.

    Attributes:
        steps: Steps of the optimiser.
        batch: Windows of a step, for each seed.
        learning_rate: Highest rate; a short warm-up, then half a cosine down to a hundredth.
        weight_decay: Decoupled weight decay.
        clip: Largest norm of a gradient, for each seed.
        checks: Times that the validation loss is measured, at steps spaced evenly in the logarithm.
        thinned: Whether training shows a random share, 10 to 100 %, of each window.
    """

    steps: int = 1000
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    checks: int = 20
    thinned: bool = False


@dataclass(frozen=True)
class Fitted:
    """What training leaves.

    Attributes:
        parameters: Best parameters of each seed, stacked.
        buffers: Buffers, stacked.
        curve: `[checks, seeds]` validation losses.
        steps: `[checks]` steps at which they were measured.
        best: `[seeds]` step of the best.
    """

    parameters: State
    buffers: State
    curve: Tensor
    steps: list[int]
    best: Tensor


def train(
    make: Callable[[], nn.Module], task: DeviceTask, schedule: Schedule, seeds: list[int], validation: Windows
) -> tuple[nn.Module, Fitted]:
    """Train one network per seed, and keep each at its best validation loss.

    Args:
        make: Makes an untrained network from torch's global generator, which is seeded before each call.
        task: What to train on.
        schedule: How.
        seeds: The seeds.
        validation: Windows to choose by, `[windows, ...]`.

    Returns:
        The network without parameters of its own, for `predict`, and what was fitted.
    """
    networks = [_seeded(make, seed).to(task.device) for seed in seeds]
    skeleton = networks[0].to("meta")
    parameters, buffers = stack_module_state([_seeded(make, seed).to(task.device) for seed in seeds])
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay, foreach=True
    )
    draws = [_generator(task, seed) for seed in seeds]
    cuts = torch.as_tensor(task.task.cuts["train"], device=task.device)
    due = _check_steps(schedule)
    curve, best = [], {name: value.detach().clone() for name, value in parameters.items()}
    lowest = torch.full((len(seeds),), torch.inf, device=task.device)
    best_step = torch.zeros(len(seeds), dtype=torch.long)

    for step in range(1, schedule.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * _warm_cosine(step, schedule.steps)
        shown = _batch(task, cuts, draws, schedule)
        losses = _losses(skeleton, parameters, buffers, shown, training=True)
        # a seed that diverged must not stop the others: its gradient is dropped, and its loss reported
        torch.where(losses.isfinite(), losses, 0.0).sum().backward()
        _clip(parameters, schedule.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step in due:
            loss = validate(skeleton, parameters, buffers, validation)
            better = loss < lowest
            lowest = torch.where(better, loss, lowest)
            best_step[better.cpu()] = step
            for name, value in parameters.items():
                best[name][better] = value.detach()[better]
            curve.append(loss.cpu())
    return skeleton, Fitted(best, buffers, torch.stack(curve), due, best_step)


@torch.no_grad()
def predict(skeleton: nn.Module, parameters: State, buffers: State, shown: Windows) -> Tensor:
    """Forecasts `[seeds, windows, horizon]` of windows `[windows, ...]`, the same for all seeds."""
    skeleton.eval()

    def one(state: State, buffer: State, *parts: Tensor) -> Tensor:
        return functional_call(skeleton, (state, buffer), (Windows(*parts),))

    chunks = zip(*(part.split(512) for part in _parts(shown)), strict=True)
    axes = (0, 0, *(None,) * 6)
    with _batchable(shown.past_values.device):
        return torch.cat([vmap(one, in_dims=axes)(parameters, buffers, *chunk) for chunk in chunks], dim=1)


def validate(skeleton: nn.Module, parameters: State, buffers: State, shown: Windows) -> Tensor:
    """Mean squared error of each seed, `[seeds]`."""
    return squared_error(predict(skeleton, parameters, buffers, shown), shown).mean(dim=-1)


def squared_error(forecast: Tensor, shown: Windows) -> Tensor:
    """Mean squared error of each window over its observed targets, `[..., windows]`."""
    square = (forecast - shown.future_values).square() * shown.future_mask
    return square.sum(-1) / shown.future_mask.sum(-1).clamp(min=1)


def _batchable(device: torch.device) -> AbstractContextManager[Any]:
    """Keep softmax attention on the CPU to the form that `vmap` can batch; CUDA's kernels all can be."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def _parts(shown: Windows) -> tuple[Tensor, ...]:
    return (
        shown.past_times,
        shown.past_values,
        shown.past_mask,
        shown.future_times,
        shown.future_values,
        shown.future_mask,
    )


def _losses(skeleton: nn.Module, parameters: State, buffers: State, shown: Windows, training: bool) -> Tensor:
    """Training loss of each seed on windows `[seeds, batch, ...]`."""
    skeleton.train(training)

    def one(state: State, buffer: State, *parts: Tensor) -> Tensor:
        windows = Windows(*parts)
        return squared_error(functional_call(skeleton, (state, buffer), (windows,)), windows).mean()

    with _batchable(shown.past_values.device):
        return vmap(one, randomness="different")(parameters, buffers, *_parts(shown))


def _batch(task: DeviceTask, cuts: Tensor, draws: list[torch.Generator], schedule: Schedule) -> Windows:
    """The next batch of every seed, `[seeds, batch, ...]`."""
    picks = torch.stack([torch.randint(len(cuts), (schedule.batch,), generator=g) for g in draws])
    shown = task.windows(cuts[picks.to(task.device)])
    if not schedule.thinned:
        return shown
    shape = (schedule.batch, task.task.shape.lookback + 1)
    chance = torch.stack([torch.rand(shape, generator=g) for g in draws]).to(task.device)
    share = 0.1 + 0.9 * chance[..., :1]
    keep = chance[..., 1:] < share
    keep[..., -2:] |= keep.sum(-1, keepdim=True) < 2
    return shown.thin(keep)


def _clip(parameters: State, largest: float) -> None:
    """Scale the gradient of each seed to at most `largest`; one that is not finite becomes 0."""
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    square = torch.stack([g.flatten(1).square().sum(dim=1) for g in gradients]).sum(dim=0)
    factor = (largest / square.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    for g in gradients:
        shape = (-1,) + (1,) * (g.dim() - 1)
        g.mul_(factor.reshape(shape)).nan_to_num_(0.0, 0.0, 0.0)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def _generator(task: DeviceTask, seed: int) -> torch.Generator:
    """Generator of a seed's batches and masks: it knows the data set and the seed, not the arm."""
    name = zlib.crc32(task.task.name.removesuffix("-shuffled").encode())
    return torch.Generator().manual_seed(name * 1000 + seed)


def _check_steps(schedule: Schedule) -> list[int]:
    """Steps at which to validate, spaced evenly in the logarithm, the last step among them."""
    first = max(1.0, schedule.steps / 50)
    ratio = (schedule.steps / first) ** (1 / max(schedule.checks - 1, 1))
    return sorted({round(first * ratio**i) for i in range(schedule.checks)})


def _warm_cosine(step: int, steps: int) -> float:
    """Factor on the learning rate: linear over the first twentieth, then half a cosine."""
    warm = max(1, steps // 20)
    if step <= warm:
        return step / warm
    progress = torch.tensor((step - warm) / max(steps - warm, 1))
    return float(0.01 + 0.99 * (1 + torch.cos(torch.pi * progress)) / 2)
