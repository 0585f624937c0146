"""The Gluon prototype where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.kernels import gluon

COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

driver.set_active(Hopper())
from experiments.kernels.gluon import STAGES, options
from experiments.kernels.gluon_kernel import forward_kernel

x, gaps = torch.empty(1, 1, 256, 64, dtype=torch.bfloat16), torch.empty(1, 256)
for name in STAGES:
    kernel = forward_kernel.warmup(x, x, x, gaps, x, 1, 256, 0.125, grid=(2,), **options(name))
    print(name, kernel.asm["ptx"].count("wgmma.mma_async"))
"""


def test_without_a_gpu_one_sentence_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gluon", "--out", str(tmp_path / "gluon.csv")])
    with pytest.raises(SystemExit, match=r"needs a GPU of compute capability 9\.0 .* there is no GPU$"):
        gluon.main()
    assert not (tmp_path / "gluon.csv").exists()


def test_knots_that_fill_no_tile_are_refused() -> None:
    pytest.importorskip("triton", minversion="3.6")
    q = torch.zeros(1, 1, 100, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="a multiple of 64 knots"):
        gluon.gluon_forward(q, q, q, torch.zeros(1, 100))


def test_it_compiles_for_hopper_without_one(tmp_path: Path) -> None:
    pytest.importorskip("triton", minversion="3.6")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    products = dict(line.split() for line in done.stdout.splitlines())
    assert set(products) == set(gluon.STAGES)
    assert all(int(count) > 0 for count in products.values())
