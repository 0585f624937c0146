"""A broken run goes on from its last checkpoint to the same weights, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch

from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.models import ContinuousTransformer

from .conftest import QUICK, TINY, irregular, tiny

RUN = replace(QUICK, max_steps=10, validate_every=3)
DROPS = replace(TINY, dropout=0.2)  # draws from torch's generator in every step


class Crash(lightning.Callback):
    """Ends the process's run as a fault would, in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.seen = 0

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.seen += 1
        if self.seen == self.step:
            raise ConnectionAbortedError("power cut")


def weights(model: Forecaster) -> dict[str, torch.Tensor]:
    return model.fitted_.network.state_dict()


def assert_equal_weights(one: Forecaster, two: Forecaster) -> None:
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def crashed(training: Training, step: int) -> Training:
    return replace(training, trainer={"callbacks": [Crash(step)]})


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("patience", [None, 2])
def test_a_run_broken_again_and_again_ends_with_the_weights_of_one_that_was_not(tmp_path, patience, average):
    training = replace(RUN, patience=patience, average=average)
    df = irregular(length=60)
    whole = tiny(model=DROPS, training=training).fit(df)
    kept = replace(training, checkpoint_dir=str(tmp_path))
    for step in (2, 5, 4):  # before the first checkpoint, after it, and after the next one
        with pytest.raises(ConnectionAbortedError):
            tiny(model=DROPS, training=crashed(kept, step)).fit(df)
    again = tiny(model=DROPS, training=kept).fit(df)
    assert_equal_weights(again, whole)
    assert again.training_log_.resumed_at == 6
    first, second = whole.training_log_, again.training_log_
    for name in ("steps", "train_loss", "validation_loss", "best_step", "history"):
        assert getattr(first, name) == getattr(second, name), name
    assert again.predict(h=3).equals(whole.predict(h=3))


def test_a_finished_run_is_read_and_not_trained_again(tmp_path, capfd):
    df = irregular()
    kept = replace(RUN, checkpoint_dir=str(tmp_path / "new" / "folder"))
    first = tiny(training=kept).fit(df)
    again = tiny(training=crashed(kept, 1), verbose=True).fit(df)
    assert_equal_weights(first, again)
    assert replace(again.training_log_, seconds=0) == replace(first.training_log_, seconds=0)
    assert "read from the checkpoint" in capfd.readouterr().err


def test_another_run_in_the_same_folder_starts_afresh_and_disturbs_nothing(tmp_path):
    df = irregular()
    kept = replace(RUN, max_steps=1, checkpoint_dir=str(tmp_path))
    tiny(training=kept).fit(df)
    (first,) = tmp_path.iterdir()
    content = first.read_bytes()
    tiny(training=kept, random_state=1).fit(df)
    tiny(training=replace(kept, batch_size=4)).fit(df)
    tiny(training=kept).fit(df.assign(y=df["y"] * 2))
    assert len(list(tmp_path.iterdir())) == 4
    assert first.read_bytes() == content


def test_a_damaged_checkpoint_is_named_and_left_alone(tmp_path):
    df = irregular()
    kept = replace(RUN, max_steps=1, checkpoint_dir=str(tmp_path))
    tiny(training=kept).fit(df)
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{path.name}.* is damaged: its content does not match"):
        tiny(training=kept).fit(df)
    assert path.read_bytes() == damaged


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"`Training.checkpoint_dir` .* cannot be made"):
        tiny(training=replace(RUN, checkpoint_dir=str(tmp_path / "file" / "below"))).fit(irregular())


def test_early_stopping_counts_across_a_break(tmp_path):
    # A rate so small that no round is better than the first: the run stops after `patience` further rounds.
    training = Training(
        max_steps=50, validate_every=2, patience=3, learning_rate=1e-30, batch_size=4, accelerator="cpu"
    )
    df = irregular(length=60)
    model = ContinuousTransformer(d_model=8, num_layers=1, num_heads=2, dropout=0.0)
    whole = Forecaster(horizon="2D", model=model, training=training, verbose=False).fit(df)
    kept = replace(training, checkpoint_dir=str(tmp_path))
    with pytest.raises(ConnectionAbortedError):
        Forecaster(horizon="2D", model=model, training=crashed(kept, 6), verbose=False).fit(df)
    again = Forecaster(horizon="2D", model=model, training=kept, verbose=False).fit(df)
    assert again.training_log_.steps == whole.training_log_.steps < 50


def test_without_a_folder_no_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny(training=RUN).fit(irregular())
    assert list(Path().iterdir()) == []
