"""Checkpoints of a training run: what it takes to go on after a crash as if there had been none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import lightning
import torch
from torch import Tensor

from ctsattn.forecasting import checkpoint
from ctsattn.forecasting.averaging import weight_average
from ctsattn.forecasting.shards import holds_shards, shard_like, whole
from ctsattn.forecasting.training import Training

State = tuple[dict[str, Any], dict[str, Tensor]]


class ResumableStream(Protocol):
    """Batches whose place can be written down."""

    def state_before(self, number: int) -> dict[str, Any]:
        """What JSON can hold of the generator before it draws batch `number`, one of the latest few."""
        ...

    def start_from(self, number: int, state: dict[str, Any]) -> None:
        """Let the next iteration begin with batch `number`."""
        ...


@dataclass(frozen=True)
class RunFile:
    """The file of one run in the folder that the user named.

    Attributes:
        path: Where the latest checkpoint stands.
        every: Steps between checkpoints.
    """

    path: Path
    every: int

    @staticmethod
    def of(training: Training, name: str) -> RunFile | None:
        """The file of a run, its folder made; None where no folder is named."""
        if training.checkpoint_dir is None:
            return None
        folder = Path(training.checkpoint_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"`Training.checkpoint_dir` {str(folder)!r} cannot be made: {error.strerror}. Name a folder "
                "that you may write to.",
            ) from error
        return RunFile(folder / f"run-{name}.ctsattn", training.validate_every)

    def read(self) -> State | None:
        """The latest checkpoint, None where the run has not come so far.

        Raises:
            ValueError: The file is damaged.
        """
        return checkpoint.read(self.path) if self.path.exists() else None

    def write(self, state: State) -> None:
        """Replace the checkpoint; the older one stays whole until the new one is."""
        checkpoint.write(self.path, *state)


class Checkpointing(lightning.Callback):
    """Writes a checkpoint after each validation round, or as often where there is none."""

    def __init__(self, file: RunFile, stream: ResumableStream, validates: bool) -> None:
        self.file = file
        self.stream = stream
        self.validates = validates
        self.saved: State | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put optimiser, schedule, precision and random states where they were."""
        if self.saved is not None:
            restore_trainer(trainer, self.saved)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Write after the round, when it is known whether it was the last."""
        self._write(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write every so many steps when nothing is validated."""
        if not self.validates and pl_module.steps and pl_module.steps % self.file.every == 0:
            self._write(trainer, pl_module)

    def _write(self, trainer: Any, pl_module: Any) -> None:
        if pl_module.bad_series or pl_module.step != pl_module.steps:
            return  # the last good checkpoint is the one to keep; half a step cannot be written down
        processes = gathered(
            {"stream": self.stream.state_before(pl_module.batches), "random": _random_states()}
        )
        if not trainer.is_global_zero and not holds_shards(pl_module):
            return  # shards are gathered by all processes, whole weights are those of the first
        header, tensors = pl_module.state()
        more, arrays = _trainer_state(trainer, processes)
        if trainer.is_global_zero:
            self.file.write(({**header, **more}, {**tensors, **arrays}))


def gathered(own: Any) -> list[Any]:
    """What each process of a distributed run has, in the order of their ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [own]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, own)
    return found


def _random_states() -> list[Tensor]:
    """States of torch's generators: the processor's, then those of the GPUs."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *cuda]


def _trainer_state(trainer: Any, processes: list[dict[str, Any]]) -> State:
    """What Lightning and torch keep outside the network."""
    optimiser = trainer.optimizers[0].state_dict()
    tensors = {
        f"optimiser/{number}/{name}": whole(value)
        for number, values in optimiser["state"].items()
        for name, value in values.items()
    }
    for rank, process in enumerate(processes):
        tensors |= {f"random/{rank}/{i}": state for i, state in enumerate(process["random"])}
    header = {
        "groups": optimiser["param_groups"],
        "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "precision": trainer.precision_plugin.state_dict(),
        "streams": [process["stream"] for process in processes],
    }
    if (average := weight_average(trainer)) is not None and average.average is not None:
        tensors |= {f"average/{name}": value.clone() for name, value in average.average.items()}
    stopping = trainer.early_stopping_callback
    if stopping is not None:
        tensors["best_score"] = stopping.best_score
        header["waited"] = stopping.wait_count
    return header, tensors


def restore_trainer(trainer: Any, saved: State) -> None:
    """Inverse of what the checkpoint keeps of the trainer, once its optimiser is there."""
    header, tensors = saved
    weights = [p for group in trainer.optimizers[0].param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser/"):
            _, number, field = name.split("/")
            state.setdefault(int(number), {})[field] = shard_like(value, weights[int(number)])
    trainer.optimizers[0].load_state_dict({"state": state, "param_groups": header["groups"]})
    trainer.lr_scheduler_configs[0].scheduler.load_state_dict(dict(header["schedule"]))
    trainer.precision_plugin.load_state_dict(header["precision"])
    if (average := weight_average(trainer)) is not None:
        kept = {k.removeprefix("average/"): v for k, v in tensors.items() if k.startswith("average/")}
        average.restore(kept, weights[0].device)
    stopping = trainer.early_stopping_callback
    if stopping is not None and "waited" in header:
        stopping.wait_count, stopping.best_score = header["waited"], tensors["best_score"]
    _restore_random(tensors, trainer.global_rank)


def _restore_random(tensors: Mapping[str, Tensor], rank: int) -> None:
    torch.set_rng_state(tensors[f"random/{rank}/0"])
    cuda = [tensors[key] for i in range(1, 65) if (key := f"random/{rank}/{i}") in tensors]
    if cuda and torch.cuda.device_count() == len(cuda):
        torch.cuda.set_rng_state_all(cuda)
