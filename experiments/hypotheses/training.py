"""Train all seeds of a cell at once, without waiting for the host in between.

Adam is elementwise, so the stacked run equals separate runs; norms and choices are taken seed by seed. Seed s
draws its weights, its batches and its masks from generators that know only s and the task: all arms see the
same batches in the same order. One step, and one look at the validation windows, are each recorded once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.hypotheses.recording import Recorded
from experiments.hypotheses.stacking import Stack, State, run_stacked
from experiments.hypotheses.tasks import DeviceTask, Windows

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as everywhere


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, the same for all arms.

    Attributes:
        steps: Steps of the optimiser.
        batch: Windows of a step, for each seed.
        learning_rate: Highest rate, one for all or one for each seed; a short warm-up, then half a cosine
            down to a hundredth.
        weight_decay: Decoupled weight decay.
        clip: Largest norm of a gradient, for each seed.
        checks: Times that the validation loss is measured, at steps spaced evenly in the logarithm.
        thinned: Whether training shows a random share, 10 to 100 %, of each window.
    """

    steps: int = 1000
    batch: int = 64
    learning_rate: float | tuple[float, ...] = 1e-3
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
    return train_together([make], task, schedule, seeds, validation)[0]


def train_together(
    makes: Sequence[Callable[[], nn.Module]],
    task: DeviceTask,
    schedule: Schedule,
    seeds: list[int],
    validation: Windows,
) -> list[tuple[nn.Module, Fitted]]:
    """Train several kinds of network side by side on the same batches; arguments and results as in `train`.

    On CUDA each has a stream of its own: the kernels of one are too small to fill the device.
    """
    drawn = draw(task, schedule, seeds)
    lanes = [_Lane(Training(make, task, schedule, seeds, validation, drawn)) for make in makes]
    for number in range(1, schedule.steps + 1):
        for lane in lanes:
            lane.advance(number)
    return [lane.finish() for lane in lanes]


class _Lane:
    """A training whose step and check are recorded, on a stream of its own."""

    def __init__(self, run: Training) -> None:
        self._run, device = run, run.task.device
        self._step = Recorded(run.step, run.state, device)
        self._check = Recorded(run.check, run.state, device)
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())

    def advance(self, number: int) -> None:
        """Do step `number`, and check where it is due."""
        with torch.cuda.stream(self._stream):
            self._step()
            if number in self._run.due:
                self._check()

    def finish(self) -> tuple[nn.Module, Fitted]:
        """Wait for the work, and give what was fitted."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        return self._run.stack.skeleton, self._run.fitted()


class Training:
    """The state of a training, all on the device, and the two things that change it.

    Args:
        make: See `train`, and so for the others.
        task: What to train on.
        schedule: How.
        seeds: The seeds.
        validation: Windows to choose by.
        drawn: What `draw` gave, which is the same for all arms; None: it is drawn here.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        task: DeviceTask,
        schedule: Schedule,
        seeds: list[int],
        validation: Windows,
        drawn: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:
        device, count = task.device, len(seeds)
        self.task, self.schedule, self.validation = task, schedule, validation
        self.stack = Stack(make, seeds, device)
        self.cuts, self.chance = drawn or draw(task, schedule, seeds)
        self.flat = self.stack.flat.requires_grad_()
        self.first, self.second = (torch.zeros_like(self.flat, requires_grad=False) for _ in range(2))
        self.rates = _rates(schedule, count).to(device)
        self.corrections = _corrections(schedule.steps).to(device)
        self.now = torch.zeros(1, dtype=torch.long, device=device)
        self.due = check_steps(schedule)
        self.due_tensor = torch.tensor(self.due, device=device)
        self.curve = torch.full((len(self.due), count), torch.nan, device=device)
        self.checked = torch.zeros(1, dtype=torch.long, device=device)
        self.best, self.lowest = self.flat.detach().clone(), torch.full((count,), torch.inf, device=device)
        self.best_check = torch.zeros(count, dtype=torch.long, device=device)

    @property
    def state(self) -> list[Tensor]:
        """Tensors that a step or a check changes."""
        adam = [self.flat.data, self.first, self.second, self.now]
        return [*adam, self.curve, self.checked, self.best, self.lowest, self.best_check]

    def fitted(self) -> Fitted:
        """What training leaves."""
        best = self.due_tensor[self.best_check].cpu()
        return Fitted(self.stack.named(self.best), self.stack.buffers, self.curve.cpu(), self.due, best)

    def step(self) -> None:
        """One step of the optimiser."""
        self.stack.skeleton.train()
        shown = self.task.windows(self.cuts.index_select(0, self.now)[0])
        if self.chance is not None:
            shown = shown.thin(_kept(self.chance.index_select(0, self.now)[0]))
        forecast = run_stacked(
            self.stack.skeleton, self.stack.named(self.flat), self.stack.buffers, shown, same=False
        )
        losses = squared_error(forecast, shown).mean(dim=-1)
        # a seed that diverged must not stop the others: its gradient is dropped, and its loss reported
        (gradient,) = torch.autograd.grad(torch.where(losses.isfinite(), losses, 0.0).sum(), self.flat)
        self._descend(_clipped(gradient, self.schedule.clip))
        self.now += 1

    @torch.no_grad()
    def check(self) -> None:
        """Measure the validation loss and keep the parameters of the seeds that it is lowest for."""
        parameters = self.stack.named(self.flat)
        loss = validate(self.stack.skeleton, parameters, self.stack.buffers, self.validation)
        better = loss < self.lowest
        self.curve.index_copy_(0, self.checked, loss[None])
        self.lowest.copy_(torch.where(better, loss, self.lowest))
        self.best_check.copy_(torch.where(better, self.checked, self.best_check))
        self.best.copy_(torch.where(better[:, None], self.flat, self.best))
        self.checked += 1

    @torch.no_grad()
    def _descend(self, gradient: Tensor) -> None:
        """AdamW (Loshchilov and Hutter 2019), the rate of each seed its own."""
        rate = self.rates.index_select(0, self.now)[0][:, None]
        first, second = self.corrections.index_select(0, self.now)[0]
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        move = self.first / first / ((self.second / second).sqrt() + EPSILON)
        self.flat.data.mul_(1 - rate * self.schedule.weight_decay).sub_(rate * move)


@torch.no_grad()
def predict(skeleton: nn.Module, parameters: State, buffers: State, shown: Windows) -> Tensor:
    """Forecasts `[seeds, windows, horizon]` of windows `[windows, ...]`, the same for all seeds."""
    skeleton.eval()
    return run_stacked(skeleton, parameters, buffers, shown, same=True)


def validate(skeleton: nn.Module, parameters: State, buffers: State, shown: Windows) -> Tensor:
    """Mean squared error of each seed, `[seeds]`."""
    return squared_error(predict(skeleton, parameters, buffers, shown), shown).mean(dim=-1)


def squared_error(forecast: Tensor, shown: Windows) -> Tensor:
    """Mean squared error of each window over its observed targets, `[..., windows]`."""
    square = (forecast - shown.future_values).square() * shown.future_mask
    return square.sum(-1) / shown.future_mask.sum(-1).clamp(min=1)


def draw(task: DeviceTask, schedule: Schedule, seeds: list[int]) -> tuple[Tensor, Tensor | None]:
    """All batches of all seeds: cutoffs `[steps, seeds, batch]`, and what decides which points are kept.

    The second is `[steps, seeds, batch, lookback + 1]`, uniform: the share to keep, and a number for each
    point; None where all are kept.
    """
    cuts = torch.as_tensor(task.task.cuts["train"])
    generators = [_generator(task, seed) for seed in seeds]
    shape = (schedule.steps, schedule.batch)
    picks = torch.stack([torch.randint(len(cuts), shape, generator=g) for g in generators], dim=1)
    chance = None
    if schedule.thinned:
        points = (*shape, task.task.shape.lookback + 1)
        chance = torch.stack([torch.rand(points, generator=g) for g in generators], dim=1).to(task.device)
    return cuts[picks].to(task.device), chance


def check_steps(schedule: Schedule) -> list[int]:
    """Steps at which to validate, spaced evenly in the logarithm, the last step among them."""
    first = max(1.0, schedule.steps / 50)
    ratio = (schedule.steps / first) ** (1 / max(schedule.checks - 1, 1))
    return sorted({round(first * ratio**i) for i in range(schedule.checks)})


def _kept(chance: Tensor) -> Tensor:
    """Which points training shows: each window a share of its own, at least two points."""
    keep = chance[..., 1:] < 0.1 + 0.9 * chance[..., :1]
    few = keep.sum(-1, keepdim=True) < 2
    last_two = torch.arange(keep.shape[-1], device=keep.device) >= keep.shape[-1] - 2
    return keep | (few & last_two)


def _clipped(gradient: Tensor, largest: float) -> Tensor:
    """Scale the gradient `[seeds, parameters]` of each seed to at most `largest`; not finite becomes 0."""
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return (gradient * (largest / norm.clamp(min=1e-12)).clamp(max=1.0)).nan_to_num(0.0, 0.0, 0.0)


def _generator(task: DeviceTask, seed: int) -> torch.Generator:
    """Generator of a seed's batches and masks: it knows the data set and the seed, not the arm."""
    name = zlib.crc32(task.task.name.removesuffix("-shuffled").encode())
    return torch.Generator().manual_seed(name * 1000 + seed)


def _rates(schedule: Schedule, seeds: int) -> Tensor:
    """Learning rate `[steps, seeds]`: linear over the first twentieth, then half a cosine."""
    step = torch.arange(1, schedule.steps + 1, dtype=torch.float64)
    warm = max(1, schedule.steps // 20)
    progress = (step - warm) / max(schedule.steps - warm, 1)
    factor = torch.where(step <= warm, step / warm, 0.01 + 0.99 * (1 + torch.cos(torch.pi * progress)) / 2)
    highest = torch.tensor(schedule.learning_rate, dtype=torch.float64).expand(seeds)
    return (factor[:, None] * highest).float()


def _corrections(steps: int) -> Tensor:
    """What Adam divides its two moments by, `[steps, 2]`."""
    step = torch.arange(1, steps + 1, dtype=torch.float64)[:, None]
    return (1 - torch.tensor(BETAS, dtype=torch.float64) ** step).float()
