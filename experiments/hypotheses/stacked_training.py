"""Train a stacked network: the same batches for all arms, operators exchanged on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.hypotheses.recording import Recorded
from experiments.hypotheses.stacked import StackedNetwork
from experiments.hypotheses.streams import Stream

Snapshot = list[Tensor]


@dataclass(frozen=True)
class Course:
    """How a stacked network is trained.

    Attributes:
        steps: Steps of the optimiser.
        batch: Windows of a step, for each seed.
        learning_rate: Highest rate; a short warm-up, then half a cosine down to a hundredth.
        weight_decay: Decoupled weight decay.
        clip: Largest norm of a gradient, for each seed.
        checks: Times that the validation loss is measured, at steps spaced evenly in the logarithm.
    """

    steps: int
    batch: int
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    checks: int = 40

    def rate(self, step: int) -> float:
        """Learning rate of a step; steps count from 1."""
        warm = max(1, self.steps // 20)
        if step <= warm:
            return self.learning_rate * step / warm
        progress = (step - warm) / max(self.steps - warm, 1)
        return self.learning_rate * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)

    def due(self) -> list[int]:
        """Steps after which to validate, 0 and the last among them."""
        ratio = self.steps ** (1 / max(self.checks - 2, 1))
        return sorted({0, *(round(ratio**i) for i in range(self.checks - 1)), self.steps})


class Trainer:
    """All seeds of one arm on one stream.

    Args:
        network: The network, on the device of the stream.
        stream: What to learn.
        course: How.
        seeds: The seeds, which decide the batches.
    """

    def __init__(self, network: StackedNetwork, stream: Stream, course: Course, seeds: list[int]) -> None:
        self.network, self.stream, self.course = network, stream, course
        self.parameters = list(network.parameters())
        device = stream.device
        on_gpu = device.type == "cuda"
        picks = [_picks(stream, course, seed) for seed in seeds]
        self.picks = torch.stack(picks, dim=1).to(device)  # [steps, seeds, batch]
        rates = [0.0, *(course.rate(step) for step in range(1, course.steps + 1))]
        self.rates = torch.tensor(rates, device=device)
        self.rate, self.now = self.rates[0].clone(), self.picks[0].clone()
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            weight_decay=course.weight_decay,
            capturable=on_gpu,
            foreach=on_gpu,
        )
        self.steps: dict[str, Recorded] = {}
        self.done = 0
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # at rate 0, so that the optimiser's state exists
        self.reset_optimizer()

    def advance(self, steps: int) -> None:
        """Take steps."""
        for _ in range(steps):
            self.now.copy_(self.picks[self.done])
            self.rate.copy_(self.rates[self.done + 1])
            self._recorded()()
            self.done += 1

    @torch.no_grad()
    def loss(self, part: str) -> Tensor:
        """Loss of each seed on a part of the stream, `[seeds]`."""
        with self._mode(training=False):
            return self.stream.evaluate(self.network, part).cpu()

    def until(self, step: int) -> Tensor:
        """Train until after a step; the validation loss of each seed there."""
        self.advance(step - self.done)
        return self.loss("val")

    def snapshot(self) -> Snapshot:
        """Copies of parameters and the optimiser's state."""
        return [x.clone() for x in self._state()]

    def restore(self, saved: Snapshot, done: int) -> None:
        """Go back to a snapshot, taken after `done` steps."""
        for x, old in zip(self._state(), saved, strict=True):
            x.copy_(old)
        self.done = done

    def reset_optimizer(self) -> None:
        """Forget the optimiser's moments."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def _state(self) -> list[Tensor]:
        moments = [x for p in self.parameters for x in self.optimizer.state[p].values()]
        return [*(p.detach() for p in self.parameters), *moments]

    def _step(self) -> None:
        with self._mode(training=True):
            losses = self.stream.loss(self.network, self.now)
        # a seed that diverged must not stop the others: its gradient is dropped, and its loss reported
        total = torch.where(losses.isfinite(), losses, 0.0).sum()
        gradients = torch.autograd.grad(total, self.parameters)
        self._clip(gradients)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def _clip(self, gradients: Sequence[Tensor]) -> None:
        """Scale the gradient of each seed to at most `clip`; one that is not finite becomes 0."""
        norms = torch.stack([g.flatten(1).square().sum(dim=1) for g in gradients]).sum(dim=0).sqrt()
        factor = (self.course.clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        for g in gradients:
            g.mul_(factor.reshape(-1, *(1,) * (g.dim() - 1))).nan_to_num_(0.0, 0.0, 0.0)

    def _recorded(self) -> Recorded:
        """A step with the present operator."""
        mixer = self.network.mixer
        if mixer not in self.steps:
            self.steps[mixer] = Recorded(self._step, self._state(), self.stream.device)
        return self.steps[mixer]

    @contextmanager
    def _mode(self, training: bool) -> Iterator[None]:
        self.network.train(training)
        yield


def _picks(stream: Stream, course: Course, seed: int) -> Tensor:
    """Windows of each step of a seed, `[steps, batch]`; the same for all arms."""
    generator = torch.Generator().manual_seed(stream.identity * 1000 + seed)
    return torch.randint(stream.train_windows, (course.steps, course.batch), generator=generator)
