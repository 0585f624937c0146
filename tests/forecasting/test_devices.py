"""Several devices give the rows that one gives, in the same order."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from ctsattn import Forecaster
from ctsattn.forecasting import predicting
from ctsattn.forecasting.devices import collect, devices_of, on_devices, share_of

from .conftest import QUICK, irregular, tiny

ROOT = Path(__file__).parents[2]
TINY_RUN = [
    "--length",
    "60",
    "--steps",
    "4",
    "--width",
    "8",
    "--layers",
    "1",
    "--batch-size",
    "8",
    "--accelerator",
    "cpu",
]
CPU = torch.device("cpu")


def run(folder: Path, *options: str, processes: int = 0) -> dict:
    """Run the script of several devices, under torchrun or alone; what it wrote of the run."""
    module = ["-m", "experiments.scale.several_devices", "--out", str(folder), *TINY_RUN, *options]
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(starter if processes else []), *module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "run.json").read_text())


def test_two_processes_train_one_model_and_share_a_forecast_of_one_series(tmp_path):
    told = run(tmp_path, "--series", "1", processes=2)  # fewer series than devices
    assert told["processes"] == 2 and told["same_weights"] and told["steps"] == 4
    answer = pd.read_parquet(tmp_path / "forecast.parquet")
    alone = Forecaster.load(tmp_path / "model.ctsattn").predict(horizon="12h", level=[80])
    pd.testing.assert_frame_equal(answer, alone, rtol=0, atol=1e-6)


def test_processes_that_lightning_forks_bring_their_weights_and_their_log_home(tmp_path):
    told = run(tmp_path, "--series", "5", "--devices", "2", "--strategy", "ddp_fork")
    assert told["steps"] == 4
    answer = pd.read_parquet(tmp_path / "forecast.parquet")
    assert answer["unique_id"].unique().tolist() == [f"s{i:05d}" for i in range(5)]
    alone = Forecaster.load(tmp_path / "model.ctsattn").predict(horizon="12h", level=[80])
    pd.testing.assert_frame_equal(answer, alone)


@pytest.mark.parametrize("ids", [("only",), ("b", "a", "c", "e", "d")])
def test_two_devices_answer_the_rows_of_one_in_the_same_order(ids, monkeypatch):
    model = tiny().fit(irregular(ids))
    asked = {"horizon": "1D", "level": [80], "batch_size": 2}
    one = model.predict(**asked)
    used: list[str] = []

    def two(*_: object) -> list[torch.device]:
        used.append("two")
        return [CPU, CPU]

    monkeypatch.setattr(predicting, "devices_of", two)
    pd.testing.assert_frame_equal(model.predict(**asked), one)
    assert used == ["two"]


@pytest.mark.gpu
def test_two_gpus_of_one_process_answer_the_rows_of_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    model = tiny(training=replace(QUICK, accelerator="gpu")).fit(irregular(("b", "a", "c", "e", "d")))
    asked = {"horizon": "1D", "level": [80], "batch_size": 2}
    one = model.predict(**asked)
    model.set_params(training__devices=2)
    assert devices_of("gpu", 2) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    pd.testing.assert_frame_equal(model.predict(**asked), one, rtol=0, atol=1e-6)


def test_each_device_has_a_copy_of_its_own_and_results_keep_the_order_of_the_jobs():
    seen: dict[int, set[int]] = {}

    def work(network: nn.Module, device: torch.device, job: int) -> int:
        seen.setdefault(id(network), set()).add(threading.get_ident())
        return job * job

    found = list(on_devices(nn.Linear(1, 1), range(7), [CPU, CPU, CPU], work))
    assert found == [0, 1, 4, 9, 16, 25, 36]
    assert len(seen) == 3 and all(len(threads) == 1 for threads in seen.values())


def test_a_process_alone_does_all_the_work():
    assert list(share_of(range(5))) == [0, 1, 2, 3, 4]
    assert collect(["a", "b"]) == ["a", "b"]
    assert devices_of("cpu", 4) == [CPU]
