"""The LightningModule behind `train`: loss, optimiser, best weights in memory, halt on a bad loss."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn

from ctsattn.data.batch import Batch
from ctsattn.forecasting.loss_history import LossHistory, read_history
from ctsattn.forecasting.prefetch import Ahead
from ctsattn.forecasting.resuming import Checkpointing, RunFile, State
from ctsattn.forecasting.scoring import choose_targets, mean_loss
from ctsattn.forecasting.shards import whole
from ctsattn.forecasting.streams import Onward
from ctsattn.forecasting.training import Progress, Training, TrainingLog


class HeldBatch:
    """A batch that Lightning moves whole; it would refuse to look into a frozen dataclass."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def to(self, device: torch.device, **options: Any) -> HeldBatch:
        """Move the batch to `device`; Lightning asks to wait for it, which a GPU need not."""
        free = {"non_blocking": True} if device.type == "cuda" else {}
        return HeldBatch(self.batch.to(device, **{**free, **options}))


class Held:
    """An iterable of batches as Lightning takes them."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[HeldBatch]:
        return (HeldBatch(batch) for batch in self.batches)


def run(
    learner: Learner,
    batches: Any,
    validation: Iterable[Batch] | None,
    options: dict[str, Any],
    file: RunFile | None,
) -> TrainingLog:
    """Fit a learner, from its checkpoint where there is one, and keep what becomes of it.

    Args:
        learner: Holds the network, which is trained in place.
        batches: Endless training batches.
        validation: Batches to validate on, or None.
        options: Arguments of `lightning.Trainer`; `default_root_dir` is a folder of this run alone.
        file: Where to keep checkpoints, or None.

    Returns:
        The log of the run.
    """
    saved = None if file is None else file.read()
    if saved is not None and learner.restore(saved, options["max_steps"]):
        return learner.finish()
    outcome = Path(options["default_root_dir"], "outcome.json")
    learner.outcome = outcome
    trainer = _make_trainer(learner, batches, validation, options, file, saved)
    held = None if validation is None else Held(validation)
    with contextlib.closing(Ahead(Onward(batches, learner), learner)) as ahead:
        trainer.fit(learner, train_dataloaders=Held(ahead), val_dataloaders=held)
    # Processes that a strategy spawns end with what they know; only weights come back by themselves.
    if learner.log_of_run is None and not outcome.exists():
        raise learner.training_options.nothing_trained()
    log = learner.log_of_run if learner.log_of_run is not None else _read_log(outcome)
    if file is not None and trainer.is_global_zero:
        file.write(finished_state(learner.network, log))
    return log


def _make_trainer(
    learner: Learner,
    batches: Any,
    validation: Iterable[Batch] | None,
    options: dict[str, Any],
    file: RunFile | None,
    saved: State | None,
) -> lightning.Trainer:
    """A Trainer that stops early where there is a validation, and keeps checkpoints where there is a file."""
    options = dict(options)
    given = options.pop("callbacks", None) or []
    callbacks = [given] if isinstance(given, lightning.Callback) else list(given)
    patience = learner.training_options.patience
    if validation is not None and patience is not None:
        callbacks.append(EarlyStopping("validation_loss", patience=patience, check_finite=False))
    writer = None if file is None else Checkpointing(file, batches, validation is not None)
    if writer is not None:
        callbacks.append(writer)
    if options["max_steps"] > 0:
        options["max_steps"] -= learner.resumed_at
    trainer = lightning.Trainer(callbacks=callbacks, **options)
    if writer is not None and saved is not None:
        _go_on(trainer, writer, batches, saved)
    return trainer


def _go_on(trainer: lightning.Trainer, writer: Checkpointing, batches: Any, saved: State) -> None:
    """Let a new Trainer go on from a checkpoint."""
    streams = saved[0]["streams"]
    if len(streams) != trainer.world_size:
        raise ValueError(
            f"The checkpoint {str(writer.file.path)!r} was made by {len(streams)} processes, and this run "
            f"has {trainer.world_size}. Go on with as many, or name another `checkpoint_dir` to start afresh."
        )
    writer.saved = saved
    batches.start_from(saved[0]["batches"], streams[trainer.global_rank])


def finished_state(network: nn.Module, log: TrainingLog) -> State:
    """What is kept of a run that has ended: its weights and its log."""
    numbers = [log.seconds, log.train_loss, math.nan if log.validation_loss is None else log.validation_loss]
    header = {
        "finished": [log.steps, log.best_step, list(log.bad_series), log.resumed_at],
        "history": log.history,
    }
    tensors = {f"network/{k}": v for k, v in network.state_dict().items()}
    return header, {**tensors, "numbers": torch.tensor(numbers, dtype=torch.float64)}


def _read_log(path: Path) -> TrainingLog:
    found = json.loads(path.read_text())
    return TrainingLog.of(found)


class Learner(lightning.LightningModule):
    """Trains one network on the mean loss per observed query."""

    def __init__(self, network: nn.Module, training: Training, progress: Progress | None) -> None:
        super().__init__()
        self.network = network
        self.training_options = training
        self.progress = progress
        self.started = time.perf_counter()
        self.steps = 0
        self.batches = 0
        self.resumed_at = 0
        self.log_of_run: TrainingLog | None = None
        self.outcome: Path | None = None
        self.train_loss = math.nan
        self.best_loss: float | None = None
        self.best_step = 0
        self.best_weights: dict[str, Tensor] | None = None
        self.good_weights: dict[str, Tensor] | None = None
        self.bad_series: tuple[int, ...] = ()
        self.losses = LossHistory(training.validate_every)
        self._validation = [0.0, 0.0]

    @property
    def step(self) -> int:
        """Optimiser steps since the beginning of the run, those before a break included."""
        return self.global_step + self.resumed_at

    def configure_optimizers(self) -> Any:
        """AdamW, warmed up and then lowered along a cosine to a hundredth of the peak rate."""
        options = self.training_options
        decayed = [p for p in self.network.parameters() if p.requires_grad and p.ndim >= 2]
        plain = [p for p in self.network.parameters() if p.requires_grad and p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": options.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        # all weights in one step; Lightning would not clip gradients then where it lowers the precision
        lowered = options.precision != "32-true" or {"precision", "plugins"} & options.trainer.keys()
        fused = not lowered and options.strategy != "fsdp"
        groups = [group for group in groups if group["params"]]
        optimiser = torch.optim.AdamW(groups, lr=options.learning_rate, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, self._rate_at)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _rate_at(self, step: int) -> float:
        options = self.training_options
        rise = max(1, round(options.warmup * options.max_steps))
        if step < rise:
            return (step + 1) / rise
        progress = min(1.0, (step - rise) / max(1, options.max_steps - rise))
        return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * progress))

    def training_step(self, held: HeldBatch, index: int) -> Tensor:
        """Mean loss per observed query; a loss that is not finite ends the run."""
        self.batches += 1
        loss, _ = mean_loss(self.network, held.batch)
        finite = self.trainer.strategy.reduce_boolean_decision(bool(torch.isfinite(loss)), all=True)
        if not finite:
            self.bad_series = tuple(sorted(set(held.batch.series.tolist())))
            self.trainer.should_stop = True
            return self._harmless_loss()
        self.train_loss = float(loss.detach())
        self._keep_good_weights()
        self.steps = self.step + 1
        self.losses.add(self.steps, self.train_loss)
        return loss

    def _harmless_loss(self) -> Tensor:
        """A loss whose gradients are 0; what the step does to the weights is undone when training ends."""
        return torch.stack([(p * 0.0).nan_to_num().sum() for p in self.network.parameters()]).sum()

    def _keep_good_weights(self) -> None:
        """Remember the weights that gave a finite loss, in buffers made once."""
        now = self.network.state_dict()
        if self.good_weights is None:
            self.good_weights = {name: value.detach().clone() for name, value in now.items()}
            return
        with torch.no_grad():
            for name, value in now.items():
                self.good_weights[name].copy_(value)

    def on_validation_epoch_start(self) -> None:
        """Start the sums of a validation round."""
        self._validation = [0.0, 0.0]

    def validation_step(self, held: HeldBatch, index: int) -> None:
        """Add the losses and their number, so that every query counts once."""
        loss, count = mean_loss(self.network, held.batch)
        self._validation[0] += float(loss) * float(count)
        self._validation[1] += float(count)

    def on_validation_epoch_end(self) -> None:
        """Compare with the best round so far and keep the weights when they are better."""
        sums = torch.tensor(self._validation, dtype=torch.float64)
        if self.trainer.world_size > 1:
            sums = self._added(sums.to(self.device, torch.float32)).double()
        loss = float(sums[0] / sums[1].clamp(min=1))
        self.log("validation_loss", torch.tensor(loss if math.isfinite(loss) else math.inf))
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_loss, self.best_step = loss, self.step
            self.best_weights = {k: v.detach().clone() for k, v in self.network.state_dict().items()}
        self.losses.validated(self.step, loss)
        self._report(f"step {self.step}, validation loss {loss:.4g}", last=False)

    def on_train_end(self) -> None:
        """Put the weights to keep in place and say how it went."""
        log, held = self.finish(), self.trainer.val_dataloaders
        if self.best_weights is not None and held is not None:
            choose_targets(self.network, held, self._added)
        if self.outcome is not None and self.trainer.is_global_zero:
            self.outcome.write_text(json.dumps(asdict(log)))

    def _added(self, sums: Tensor) -> Tensor:
        """Sums over all processes."""
        return self.trainer.strategy.reduce(sums, reduce_op="sum") if self.trainer.world_size > 1 else sums

    def finish(self) -> TrainingLog:
        """Put the weights to keep in place, once, and write the log."""
        if self.log_of_run is not None:
            return self.log_of_run
        finite = all(bool(torch.isfinite(p).all()) for p in self.network.parameters())
        if self.best_weights is not None:
            self.network.load_state_dict(self.best_weights)
        elif (self.bad_series or not finite) and self.good_weights is not None:
            self.network.load_state_dict(self.good_weights)
            self.best_step = max(0, self.steps - 1)
        else:
            self.best_step = self.steps
        self.log_of_run = TrainingLog(
            steps=self.steps,
            seconds=time.perf_counter() - self.started,
            train_loss=self.train_loss,
            validation_loss=self.best_loss,
            best_step=self.best_step,
            bad_series=self.bad_series,
            resumed_at=self.resumed_at,
            history=self.losses.rows(),
        )
        self._report(_in_words(self.log_of_run), last=True)
        return self.log_of_run

    def _report(self, text: str, *, last: bool) -> None:
        trainer = self._trainer
        if self.progress is not None and (trainer is None or trainer.is_global_zero):
            self.progress(f"ctsattn: {text}", last=last)

    def state(self) -> State:
        """What a checkpoint keeps of this module; where weights are spread, every process must ask."""
        parts = {"network": self.network.state_dict(), "best": self.best_weights, "good": self.good_weights}
        tensors = {
            f"{part}/{name}": whole(value).clone()
            for part, values in parts.items()
            for name, value in (values or {}).items()
        }
        best = math.nan if self.best_loss is None else self.best_loss
        numbers = [time.perf_counter() - self.started, self.train_loss, best]
        header = {
            "steps": self.steps,
            "batches": self.batches,
            "best_step": self.best_step,
            "stopping": self.trainer.should_stop,
            "losses": self.losses.state(),
        }
        return header, {**tensors, "numbers": torch.tensor(numbers, dtype=torch.float64)}

    def restore(self, saved: State, max_steps: int) -> bool:
        """Take on the state of a checkpoint; returns whether nothing is left to train."""
        header, tensors = saved
        seconds, self.train_loss, best = tensors["numbers"].tolist()
        self.started -= seconds
        self.network.load_state_dict(_under(tensors, "network/"))
        self.best_loss = None if math.isnan(best) else best
        if "finished" in header:
            self.steps, self.best_step, bad, resumed_at = header["finished"]
            self.log_of_run = TrainingLog(
                self.steps,
                seconds,
                self.train_loss,
                self.best_loss,
                self.best_step,
                tuple(bad),
                resumed_at,
                read_history(header["history"]),
            )
            self._report(f"{_in_words(self.log_of_run)}, read from the checkpoint", last=True)
            return True
        self.losses.restore(header["losses"])
        self.steps = self.resumed_at = header["steps"]
        self.batches, self.best_step = header["batches"], header["best_step"]
        self.best_weights = _under(tensors, "best/") or None
        self.good_weights = _under(tensors, "good/") or None
        self._report(f"goes on from the checkpoint of step {self.steps}", last=False)
        return header["stopping"] or 0 < max_steps <= self.steps


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _in_words(log: TrainingLog) -> str:
    best = "" if log.validation_loss is None else f", best validation loss {log.validation_loss:.4g}"
    kept = "" if log.best_step == log.steps else f", weights of step {log.best_step}"
    resumed = f", from step {log.resumed_at} after a break" if log.resumed_at else ""
    return f"{log.steps} steps in {log.seconds:.1f} s{best}{kept}{resumed}"
