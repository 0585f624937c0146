"""A trainer that is told of epochs trains on the batches that it would see without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor

from .conftest import QUICK, irregular, tiny

EPOCHS = {"limit_train_batches": 2}


class Stop(lightning.Callback):
    """Breaks a run off."""

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step == 5:
            raise RuntimeError("broken off")


def weights(**options: Any) -> dict[str, Tensor]:
    training = replace(QUICK, **{"max_steps": 7, "validate_every": 3, **options})
    return tiny(training=training).fit(irregular()).fitted_.network.state_dict()


def test_the_next_epoch_goes_on_with_the_stream():
    whole, parted = weights(), weights(trainer=EPOCHS)
    assert all(torch.equal(whole[name], parted[name]) for name in whole)


def test_a_run_in_epochs_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    with pytest.raises(RuntimeError, match="broken off"):
        weights(checkpoint_dir=tmp_path, trainer={**EPOCHS, "callbacks": [Stop()]})
    whole, resumed = weights(), weights(checkpoint_dir=tmp_path, trainer=EPOCHS)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
