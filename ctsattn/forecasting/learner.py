"""The LightningModule behind `train`: loss, optimiser, best weights in memory, halt on a bad loss."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn

from ctsattn.data.batch import Batch
from ctsattn.forecasting.training import Progress, Training, TrainingLog
from ctsattn.losses import masked_mean


class HeldBatch:
    """A batch that Lightning moves whole; it would refuse to look into a frozen dataclass."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def to(self, device: torch.device, **options: Any) -> HeldBatch:
        """Move the batch to `device`."""
        return HeldBatch(self.batch.to(device, **options))


class Held:
    """An iterable of batches as Lightning takes them."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[HeldBatch]:
        return (HeldBatch(batch) for batch in self.batches)


def make_trainer(options: dict[str, Any], patience: int | None) -> lightning.Trainer:
    """Build the Trainer, with early stopping on the validation loss when `patience` is given."""
    callbacks = list(options.pop("callbacks", None) or [])
    if patience is not None:
        callbacks.append(EarlyStopping("validation_loss", patience=patience, check_finite=False))
    return lightning.Trainer(callbacks=callbacks, **options)


def mean_loss(network: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean of the head's losses over the observed queries of a batch, and their number."""
    head: Any = network.head
    losses = head.loss(network(batch), batch.future_values)
    observed = batch.future_observed & batch.future_mask[:, None, :]
    return masked_mean(losses, observed), observed.sum()


class Learner(lightning.LightningModule):
    """Trains one network on the mean loss per observed query."""

    def __init__(self, network: nn.Module, training: Training, progress: Progress | None) -> None:
        super().__init__()
        self.network = network
        self.training_options = training
        self.progress = progress
        self.started = time.perf_counter()
        self.seconds = 0.0
        self.steps = 0
        self.train_loss = math.nan
        self.best_loss: float | None = None
        self.best_step = 0
        self.best_weights: dict[str, Tensor] | None = None
        self.good_weights: dict[str, Tensor] | None = None
        self.bad_series: tuple[int, ...] = ()
        self._validation = [0.0, 0.0]

    def configure_optimizers(self) -> Any:
        """AdamW, warmed up and then lowered along a cosine to a hundredth of the peak rate."""
        options = self.training_options
        decayed = [p for p in self.network.parameters() if p.requires_grad and p.ndim >= 2]
        plain = [p for p in self.network.parameters() if p.requires_grad and p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": options.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW([g for g in groups if g["params"]], lr=options.learning_rate)
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
        loss, _ = mean_loss(self.network, held.batch)
        finite = self.trainer.strategy.reduce_boolean_decision(bool(torch.isfinite(loss)), all=True)
        if not finite:
            self.bad_series = tuple(sorted(set(held.batch.series.tolist())))
            self.trainer.should_stop = True
            # A harmless step: what it does to the weights is undone when training ends.
            return torch.stack([(p * 0.0).nan_to_num().sum() for p in self.network.parameters()]).sum()
        self.train_loss = float(loss.detach())
        self._keep_good_weights()
        self.steps = self.global_step + 1
        return loss

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
            sums = self.trainer.strategy.reduce(sums.to(self.device, torch.float32), reduce_op="sum").double()
        loss = float(sums[0] / sums[1].clamp(min=1))
        self.log("validation_loss", torch.tensor(loss if math.isfinite(loss) else math.inf))
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_loss, self.best_step = loss, self.global_step
            self.best_weights = {k: v.detach().clone() for k, v in self.network.state_dict().items()}
        self._report(f"step {self.global_step}, validation loss {loss:.4g}", last=False)

    def on_train_end(self) -> None:
        """Put the weights to keep in place and say how it went."""
        self.seconds = time.perf_counter() - self.started
        finite = all(bool(torch.isfinite(p).all()) for p in self.network.parameters())
        if self.best_weights is not None:
            self.network.load_state_dict(self.best_weights)
        elif (self.bad_series or not finite) and self.good_weights is not None:
            self.network.load_state_dict(self.good_weights)
            self.best_step = max(0, self.steps - 1)
        else:
            self.best_step = self.steps
        best = "" if self.best_loss is None else f", best validation loss {self.best_loss:.4g}"
        kept = "" if self.best_step == self.steps else f", weights of step {self.best_step}"
        self._report(f"{self.steps} steps in {self.seconds:.1f} s{best}{kept}", last=True)

    def _report(self, text: str, *, last: bool) -> None:
        if self.progress is not None and self.trainer.is_global_zero:
            self.progress(f"ctsattn: {text}", last=last)

    def log_of_run(self) -> TrainingLog:
        """What happened, as plain numbers."""
        return TrainingLog(
            steps=self.steps,
            seconds=self.seconds,
            train_loss=self.train_loss,
            validation_loss=self.best_loss,
            best_step=self.best_step,
            bad_series=self.bad_series,
        )
