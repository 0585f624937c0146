"""What stacked networks learn: text, recall of pairs, and series, each as windows cut on the device.

A stream knows its windows by numbers; a step of training reads nothing else from the host.
"""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ctsattn.datasets.card import Source
from ctsattn.datasets.download import cache_folder, fetch
from experiments.hypotheses.stacked import StackedNetwork
from experiments.hypotheses.tasks import Task

TEXT = Source(
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ("tinyshakespeare.txt", "input.txt"),
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
PARTS = {"train": (0.0, 0.9), "val": (0.9, 0.95), "test": (0.95, 1.0)}
_CHUNK = 128  # windows that are evaluated together
HELD = 256  # windows of validation at the most, and a quarter of those of test


class Stream(ABC):
    """Windows to learn from, and the loss on them.

    Attributes:
        name: Name of the data.
        device: Where the windows are.
        inputs: Features of an input, or the size of the vocabulary.
        outputs: Numbers that the network answers for each token.
        tokens: Whether inputs are tokens of a vocabulary.
        train_windows: Number of windows to train on.
    """

    name: str
    device: torch.device
    inputs: int
    outputs: int
    tokens: bool
    train_windows: int

    @property
    def identity(self) -> int:
        """A number that stands for the data in the seeds of its batches."""
        return zlib.crc32(self.name.encode())

    @abstractmethod
    def loss(self, network: StackedNetwork, picks: Tensor) -> Tensor:
        """Training loss of each seed, `[seeds]`, on windows `picks` `[seeds, batch]`."""

    @abstractmethod
    def evaluate(self, network: StackedNetwork, part: str) -> Tensor:
        """Loss of each seed, `[seeds]`, on "val" or "test"; all seeds see the same windows."""


def read_text() -> str:
    """Tiny Shakespeare, from the folder in CTSATTN_DATA or from its address.

    References:
        Karpathy, char-rnn (2015); the plays are in the public domain.
    """
    path = Path(fetch(TEXT, cache_folder() / "tinyshakespeare"))
    return (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()


class Text(Stream):
    """Predict the next character from those before it; the loss is in nats for each character.

    Args:
        text: The text; its last tenth is for validation and test, in halves.
        length: Characters that a window shows.
        device: Where to keep it.
        name: Name of the text.
        held: Windows of validation at the most, and a quarter of those of test.
    """

    tokens = True

    def __init__(
        self, text: str, length: int, device: torch.device | str, name: str = "text", held: int = HELD
    ) -> None:
        self.held = {"val": held, "test": 4 * held}
        self.name, self.device, self.length = name, torch.device(device), length
        letters = sorted(set(text))
        number = {letter: i for i, letter in enumerate(letters)}
        self.codes = torch.tensor([number[letter] for letter in text], device=device)
        self.inputs = self.outputs = len(letters)
        self.borders = {part: (int(a * len(text)), int(b * len(text))) for part, (a, b) in PARTS.items()}
        self.train_windows = self.borders["train"][1] - length
        self.steps = torch.arange(length + 1, device=device)

    def loss(self, network: StackedNetwork, picks: Tensor) -> Tensor:
        """Mean over the characters of a window."""
        window = self.codes[picks.unsqueeze(-1) + self.steps]
        return self._nats(network, window).mean(dim=(1, 2))

    def evaluate(self, network: StackedNetwork, part: str) -> Tensor:
        """Mean over the second halves of windows, which tile the part, so that each has some context."""
        begin, end = self.borders[part]
        half = self.length // 2
        starts = torch.arange(begin, end - self.length, half, device=self.device)
        starts = starts[:: -(-len(starts) // self.held[part])]
        seeds = network.answer.weight.shape[0]
        windows = self.codes[starts[:, None] + self.steps].expand(seeds, -1, -1)
        chunks = [self._nats(network, part)[..., half:] for part in windows.split(_CHUNK, dim=1)]
        return torch.cat(chunks, dim=1).mean(dim=(1, 2))

    def _nats(self, network: StackedNetwork, window: Tensor) -> Tensor:
        """Surprise at each character `[seeds, windows, length]`."""
        shown = window[..., :-1]
        scores = network(shown, self.steps[:-1].float().expand(shown.shape))
        return F.cross_entropy(scores.movedim(-1, 1), window[..., 1:], reduction="none")


class Recall(Stream):
    """Multi-query associative recall: pairs of a key and a value, then the keys again in another order.

    The token after each repeated key is its value; the loss is on these alone.

    Args:
        pairs: Pairs in a sequence.
        vocabulary: Keys and as many values.
        windows: Sequences to train on.
        device: Where to keep them.
        name: Name of the task.
        held: Sequences of validation at the most, and a quarter of those of test.

    References:
        Arora et al., "Zoology: measuring and improving recall in efficient language models" (2024).
    """

    tokens = True

    def __init__(
        self,
        pairs: int,
        vocabulary: int,
        windows: int,
        device: torch.device | str,
        name: str = "mqar",
        held: int = HELD,
    ) -> None:
        self.name, self.device, self.pairs = name, torch.device(device), pairs
        self.inputs, self.outputs, self.train_windows = 2 * vocabulary, vocabulary, windows
        rng = np.random.default_rng(pairs)
        self.codes = {
            part: torch.as_tensor(_recall(rng, count, pairs, vocabulary), device=device)
            for part, count in (("train", windows), ("val", held), ("test", 4 * held))
        }
        self.values = vocabulary

    def loss(self, network: StackedNetwork, picks: Tensor) -> Tensor:
        """Mean surprise at the values of repeated keys."""
        return self._nats(network, self.codes["train"][picks]).mean(dim=(1, 2))

    def evaluate(self, network: StackedNetwork, part: str) -> Tensor:
        """Mean surprise at the values of repeated keys."""
        seeds = network.answer.weight.shape[0]
        windows = self.codes[part].expand(seeds, -1, -1)
        return torch.cat([self._nats(network, x) for x in windows.split(_CHUNK, dim=1)], dim=1).mean(
            dim=(1, 2)
        )

    def _nats(self, network: StackedNetwork, window: Tensor) -> Tensor:
        place = torch.arange(window.shape[-1], device=self.device).float().expand(window.shape)
        asked = network(window, place)[:, :, 2 * self.pairs :: 2]
        answer = window[:, :, 2 * self.pairs + 1 :: 2] - self.values
        return F.cross_entropy(asked.movedim(-1, 1), answer, reduction="none")


def _recall(rng: np.random.Generator, count: int, pairs: int, vocabulary: int) -> np.ndarray:
    """Sequences `[count, 4 * pairs]`; keys are numbered from 0, values from `vocabulary`."""
    keys = rng.random((count, vocabulary)).argsort(axis=1)[:, :pairs]
    values = rng.integers(vocabulary, size=keys.shape) + vocabulary
    again = rng.random(keys.shape).argsort(axis=1)
    first = np.stack([keys, values], axis=2).reshape(count, -1)
    asked = np.stack([np.take_along_axis(x, again, axis=1) for x in (keys, values)], axis=2)
    return np.concatenate([first, asked.reshape(count, -1)], axis=1)


class Series(Stream):
    """From every observation of a series, predict the next ones at their times; the loss is their MSE.

    A token carries its value, the gap before it and the gaps to the times that are asked for; the network
    answers the changes from the present value.

    Args:
        task: The series; `task.shape` says how many observations a window shows and asks for.
        device: Where to keep them.
        held: Windows of validation at the most, and a quarter of those of test.

    Raises:
        ValueError: No window of a part is full.
    """

    tokens = False

    def __init__(self, task: Task, device: torch.device | str, held: int = HELD) -> None:
        self.name, self.device = task.name, torch.device(device)
        lookback, horizon = task.shape.lookback, task.shape.horizon
        self.inputs, self.outputs = 2 + horizon, horizon
        self.times = torch.as_tensor(task.times, device=device)
        self.values = torch.as_tensor(task.values, dtype=torch.float32, device=device)
        clock = np.searchsorted(task.ends, np.arange(len(task.values)), side="right") - 1
        self.cuts = {}
        for part, cuts in task.cuts.items():
            whole = cuts[cuts - task.ends[clock[cuts]] >= lookback]
            if not len(whole):
                raise ValueError(f"No window of `{part}` of `{task.name}` shows {lookback} observations.")
            most = {"train": len(whole), "val": held, "test": 4 * held}[part]
            thin = whole[:: -(-len(whole) // most)]
            self.cuts[part] = torch.as_tensor(thin, device=device)
        self.train_windows = len(self.cuts["train"])
        self.past = torch.arange(-lookback, 1, device=device)
        self.ahead = torch.arange(1, horizon + 1, device=device)

    def loss(self, network: StackedNetwork, picks: Tensor) -> Tensor:
        """Mean over all tokens of a window."""
        return self._errors(network, self.cuts["train"][picks]).mean(dim=(1, 2, 3))

    def evaluate(self, network: StackedNetwork, part: str) -> Tensor:
        """Mean over the last token of each window, whose future lies in the part."""
        seeds = network.answer.weight.shape[0]
        cuts = self.cuts[part].expand(seeds, -1)
        errors = [self._errors(network, x)[:, :, -1] for x in cuts.split(_CHUNK, dim=1)]
        return torch.cat(errors, dim=1).mean(dim=(1, 2))

    def _errors(self, network: StackedNetwork, cuts: Tensor) -> Tensor:
        """Squared errors `[seeds, windows, lookback, horizon]`."""
        place = cuts.unsqueeze(-1) + self.past  # one before the window, for the first gap
        times, values = self.times[place], self.values[place][..., 1:]
        future = place[..., 1:, None] + self.ahead
        wait = torch.log1p(self.times[future] - times[..., 1:, None]).float()
        gap = torch.log1p(times.diff(dim=-1)).float()
        features = torch.cat([values[..., None], gap[..., None], wait], dim=-1)
        clock = (times[..., 1:] - times[..., -1:]).float()
        forecast = network(features, clock) + values[..., None]
        return (forecast - self.values[future]).square()


def rotary_ladder(head_dim: int, base: float = 10_000.0) -> tuple[float, ...]:
    """Angular frequencies of language models, whose tokens are 1 apart: from 1 down to `1 / base`.

    References:
        Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
    """
    return tuple(base ** (-2 * i / head_dim) for i in range(head_dim // 2))
