"""How a network is trained: the options (`Training`) and the run itself (`train`)."""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, Protocol

import torch
from torch import nn

from ctsattn._options import (
    Count,
    LostShare,
    NotNegative,
    OneOf,
    Positive,
    Share,
    Within,
    check_option,
    check_options,
)
from ctsattn.data.batch import Batch
from ctsattn.forecasting.loss_history import History, read_history

_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
_NO_VALIDATION = "To hold nothing out, set `patience=None`."
# Arguments of `lightning.Trainer` of which some values would leave nothing to train, or end in a raw error.
_PASSED: dict[str, Any] = {
    "max_steps": Count | Literal[-1],
    "max_epochs": Optional[Count | Literal[-1]],  # noqa: UP045 (type checkers know no `|` of such a union)
    "limit_train_batches": Optional[Positive],  # noqa: UP045
    "accumulate_grad_batches": Count,
}
_one_fit_at_a_time = threading.RLock()


def _renew_lock() -> None:
    global _one_fit_at_a_time
    _one_fit_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A process forked during a fit must not inherit a lock that nobody will release.
    os.register_at_fork(after_in_child=_renew_lock)


class Progress(Protocol):
    """Shows the state of a run."""

    def __call__(self, text: str, *, last: bool) -> None:
        """Show `text`; `last` ends the line."""
        ...


class TrainingWarning(UserWarning):
    """Training ended early or could not use all data; the model is usable, the text says why."""


@dataclass(frozen=True)
class Training:
    """Options of a training run.

    Attributes:
        max_steps: Optimiser steps at most.
        learning_rate: Peak rate of AdamW; warmed up, then lowered along a cosine.
        batch_size: Windows per step, summed over devices.
        weight_decay: Decoupled weight decay.
        gradient_clip: Largest norm of a gradient; 0 turns clipping off.
        warmup: Share of `max_steps` during which the rate rises.
        patience: Validation rounds without a better loss before stopping; None never stops early, and
            then nothing is held out and the last weights are kept.
        validate_every: Steps between validation rounds.
        validation_share: Largest share of a series' time span held out, at its end, for validation.
        impute_share: Share of training windows that also ask for hidden values of their past, so that the
            model learns to fill gaps.
        start_windows: Windows from which a network with a part in closed form learns it before training. A
            long look-back over many series is worth more of them.
        average: Share of the past in a moving average of the weights, which is validated and kept in place of
            the weights of single steps; 0: no average. 0.99 looks back some hundred steps.
        precision: "32-true", "bf16-mixed" or "16-mixed". Times stay in float32 in all of them.
        accelerator: As in `lightning.Trainer`.
        devices: As in `lightning.Trainer`.
        strategy: As in `lightning.Trainer`: "ddp" holds all weights on each device, "fsdp" spreads them over
            the devices (PyTorch's `fully_shard`). Others that spread weights are refused.
        num_nodes: As in `lightning.Trainer`.
        checkpoint_dir: Folder for checkpoints, written every `validate_every` steps. A `fit` with the same
            data, options and `random_state` goes on from the latest one, to the same result as without the
            break; a finished run is read and not trained again. None writes no file.
        trainer: Further arguments of `lightning.Trainer`, passed on as they are.
    """

    max_steps: Count = 600
    learning_rate: Positive = 2e-3
    batch_size: Count = 32
    weight_decay: NotNegative = 1e-2
    gradient_clip: NotNegative = 1.0
    warmup: Share = 0.1
    patience: Annotated[int, Within(0)] | None = 8
    validate_every: Count = 25
    validation_share: Annotated[float, Within(0, 1, above=True, below=True), _NO_VALIDATION] = 0.2
    impute_share: Share = 0.2
    start_windows: Count = 2048
    average: LostShare = 0.0
    precision: Annotated[str, OneOf(_PRECISIONS)] = "32-true"
    accelerator: str = "auto"
    devices: int | str | list[int] = 1
    strategy: str = "auto"
    num_nodes: Count = 1
    checkpoint_dir: str | os.PathLike[str] | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `ValueError` when an option is out of range; called by `fit`, not when storing."""
        check_options(self, "training")
        self._check_trainer()
        self._check_strategy()

    def nothing_trained(self) -> ValueError:
        """What to raise after a run that took no step."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.trainer.items())
        return ValueError(
            f"Training ended before its first step. What `lightning.Trainer` was told besides says when to "
            f"end: {given}. Take it out of `Training.trainer`."
        )

    def _check_trainer(self) -> None:
        if not self.trainer:
            return
        import lightning

        known = inspect.signature(lightning.Trainer).parameters
        for name in self.trainer:
            if name not in known:
                near = ", ".join(difflib.get_close_matches(str(name), known) or known)
                raise ValueError(
                    f"`Training.trainer` holds {name!r}, and `lightning.Trainer` has no such argument. Near "
                    f"it are {near}."
                )
            mended = "Take it out of `Training.trainer`."
            check_option(f"Training.trainer[{name!r}]", self.trainer[name], _PASSED.get(name, Any), mended)

    def _check_strategy(self) -> None:
        other = self.trainer.get("strategy", self.strategy)
        name = other if isinstance(other, str) else type(other).__name__
        spreads = name.lower().startswith(("fsdp", "deepspeed", "modelparallel"))
        if spreads and (name != "fsdp" or "strategy" in self.trainer):
            raise ValueError(
                f"Training with {name!r} leaves each device with a part of the weights that cannot be "
                'brought together here. Use `Training(strategy="fsdp")` to spread them, or "ddp".'
            )
        if name == "fsdp" and self.average:
            raise ValueError(
                '`Training.average` needs whole weights on each device, and strategy "fsdp" spreads them. '
                'Use "ddp".'
            )
        if name == "fsdp" and self.precision == "16-mixed":
            raise ValueError(
                '`Training.precision` "16-mixed" scales its loss, which strategy "fsdp" cannot do. Use '
                '"bf16-mixed" or "32-true".'
            )


@dataclass(frozen=True)
class TrainingLog:
    """What happened in a training run.

    Attributes:
        steps: Optimiser steps taken.
        seconds: Wall-clock seconds.
        train_loss: Last finite training loss.
        validation_loss: Best validation loss, None without validation.
        best_step: Step of the weights that were kept.
        bad_series: Series of the batch whose loss was not finite; empty when all went well.
        resumed_at: Step of the checkpoint from which the run went on; 0 for a run without a break.
        history: Step, mean training loss since the row before, and validation loss (None where there was no
            round), at each validation round or as often; at most some hundred rows.
    """

    steps: int
    seconds: float
    train_loss: float
    validation_loss: float | None
    best_step: int
    bad_series: tuple[int, ...] = ()
    resumed_at: int = 0
    history: History = ()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> TrainingLog:
        """The log from its fields as JSON gives them; a log of an older file has no history."""
        history = read_history(found.get("history", ()))
        return cls(**{**found, "bad_series": tuple(found["bad_series"]), "history": history})


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Run a block under its own torch seed, one block at a time, and restore the caller's states."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with _one_fit_at_a_time, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's notes (devices found, steps reached) and its hints about data loaders."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.", category=UserWarning)
            warnings.filterwarnings("ignore", module=r"lightning\.", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interrupt leave as it came: Lightning makes an exit of it and is deaf to all further ones."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as left:
        if isinstance(left.__context__, KeyboardInterrupt):
            raise left.__context__ from None
        raise
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _trainer_options(training: Training, validate: bool, folder: str) -> dict[str, Any]:
    from ctsattn.forecasting.sharding import sharding_strategy

    options: dict[str, Any] = {
        "max_steps": training.max_steps,
        "max_epochs": -1,
        "accelerator": training.accelerator,
        "devices": training.devices,
        "strategy": sharding_strategy() if training.strategy == "fsdp" else training.strategy,
        "num_nodes": training.num_nodes,
        "precision": training.precision,
        "gradient_clip_val": training.gradient_clip or None,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
    }
    if validate:
        options["val_check_interval"] = min(training.validate_every, training.max_steps)
        options["check_val_every_n_epoch"] = None
    options |= dict(training.trainer)
    if training.average:
        from ctsattn.forecasting.averaging import WeightAverage

        given = options.get("callbacks") or []
        options["callbacks"] = [
            WeightAverage(training.average),
            *(given if isinstance(given, list) else [given]),
        ]
    return options


def train(
    network: nn.Module,
    batches: Iterable[Batch],
    validation: Iterable[Batch] | None,
    training: Training,
    *,
    seed: int,
    progress: Progress | None = None,
    name: str = "",
) -> TrainingLog:
    """Train `network` in place with Lightning.

    The weights that remain are those of the best validation round, or the last ones without validation.
    A loss that is not finite ends the run at once: the last good weights are restored and the log names
    the series of the batch.

    Args:
        network: Module of the model seam: `network(batch)` are parameters for `network.head`.
        batches: Endless training batches. Each process draws its own. With `training.checkpoint_dir` it must
            be a `resuming.ResumableStream`.
        validation: Batches to validate on, iterated anew at each round; None for no validation.
        training: The options.
        seed: Seed of dropout and of whatever else draws from torch during the run.
        progress: Called with the progress line at each validation round and at the end.
        name: What tells this run from others in `training.checkpoint_dir`.

    Returns:
        The log of the run.

    Raises:
        ValueError: The checkpoint of this run is damaged, or was made by another number of processes.
    """
    from ctsattn.forecasting.learner import Learner, run
    from ctsattn.forecasting.resuming import RunFile
    from ctsattn.forecasting.sharding import ShardedLearner

    kind = ShardedLearner if training.strategy == "fsdp" else Learner
    learner = kind(network, training, progress)
    file = RunFile.of(training, name)
    quiet, interruptible = _quiet_lightning(), _interruptible()
    with own_randomness(seed), quiet, interruptible, tempfile.TemporaryDirectory() as folder:
        options = _trainer_options(training, validation is not None, folder)
        log = run(learner, batches, validation, options, file)
    network.eval()
    return log
