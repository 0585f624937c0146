"""Weights spread over two processes train the model that whole ones train, and come back whole."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctsattn.forecasting import Training, streams
from ctsattn.forecasting.fitting import split_by_time, validation_windows
from ctsattn.forecasting.shards import holds_shards, is_spread, shard_like, whole
from ctsattn.forecasting.streams import HeldOut

from .conftest import irregular, tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes of `sharded_run` found."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.forecasting.sharded_run", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_spread_weights_train_to_what_whole_ones_train_to(found):
    for one in found:
        assert one["moved"] > 1e-3  # the steps between change more than what is compared
        assert one["ddp"] < 1e-6


def test_after_training_each_process_has_the_whole_network(found):
    first, second = found
    assert first["plain"] and second["plain"]
    assert first["forecast"] == second["forecast"]
    assert first["best_step"] > 0  # the weights of the best round, which were kept in shards


def test_a_checkpoint_holds_whole_weights_and_a_broken_run_goes_on_from_it_to_the_bit(found):
    for one in found:
        assert one["resumed_at"] == 6
        assert one["resumed"] == 0.0
        shapes = {name: one["kept"][f"network/{name}"] for name in one["shapes"]}
        assert shapes == one["shapes"]
        assert any(name.startswith("optimiser/") for name in one["kept"])


def test_a_loss_that_is_not_finite_brings_the_last_good_weights_back_in_each_process(found):
    for one in found:
        assert one["burst_steps"] >= 1 and one["burst"] and one["finite"]


@pytest.mark.parametrize("strategy", ["fsdp_cpu_offload", "deepspeed_stage_3"])
def test_strategies_whose_shards_cannot_be_brought_together_are_refused(strategy):
    with pytest.raises(ValueError, match=r'Use `Training\(strategy="fsdp"\)` to spread them, or "ddp"'):
        Training(strategy=strategy).check()
    with pytest.raises(ValueError, match="cannot be brought together here"):
        Training(trainer={"strategy": strategy}).check()


def test_what_fsdp_cannot_do_is_said_before_training():
    fsdp = Training(strategy="fsdp")
    fsdp.check()
    with pytest.raises(ValueError, match=r'"16-mixed" .* Use "bf16-mixed" or "32-true"'):
        replace(fsdp, precision="16-mixed").check()
    with pytest.raises(ValueError, match="cannot be brought together here"):
        replace(fsdp, trainer={"strategy": "fsdp"}).check()


@pytest.mark.parametrize("size", [1, 3])
def test_processes_validate_in_equally_many_batches_and_each_truth_counts_once(monkeypatch, size):
    model = tiny().fit(irregular(length=60))
    fitted, store = model.fitted_, model.fitted_.store
    split, can = split_by_time(store, fitted.spec, 0.2)
    windows = validation_windows(store, fitted.spec, split, can).take(np.arange(5))
    held = HeldOut(store, windows, fitted.collator, size)
    alone = [int(batch.future_observed.sum()) for batch in held]
    shares = []
    for rank in range(3):
        monkeypatch.setattr(streams, "place_among_processes", lambda rank=rank: (rank, 3))
        shares.append([int(batch.future_observed.sum()) for batch in held])
    assert {len(share) for share in shares} == {-(-len(alone) // 3)}
    assert sum(map(sum, shares)) == sum(alone) > 0


def test_whole_tensors_stay_as_they_are():
    value = torch.arange(3.0)
    assert whole(value) is value and not is_spread(value)
    assert shard_like(value, torch.zeros(3)) is value
    assert not holds_shards(torch.nn.Linear(1, 1))
