"""What every test may use: seeded generators, the shared data folder, and rules about devices."""

from __future__ import annotations

import os

# One thread per worker: the tests run in two processes on two cores. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Without a GPU the kernels are tested in Triton's interpreter. Read when triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the data files that the project shares; its place is in the variable CTSATTN_DATA."""
    place = os.environ.get("CTSATTN_DATA")
    if not place:
        pytest.skip("CTSATTN_DATA names no folder of shared data files")
    folder = Path(place)
    if not folder.is_dir():
        pytest.skip(f"CTSATTN_DATA names no folder that exists: {folder}")
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded NumPy generator, fresh for each test."""
    return np.random.default_rng(0)


@pytest.fixture
def generator() -> torch.Generator:
    """Seeded torch generator on the CPU, fresh for each test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start each test from the same global random states, whatever ran before it in this process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def global_rng_untouched() -> Iterator[None]:
    """Fail the test if it leaves the global state of Python's, NumPy's or torch's generator changed."""
    python, numpy, cpu = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    yield
    after = np.random.get_state(legacy=False)
    assert random.getstate() == python, "Python's global generator was used"
    assert isinstance(numpy, dict) and isinstance(after, dict)
    assert np.array_equal(after["state"]["key"], numpy["state"]["key"]), "NumPy's global generator was used"
    assert after["state"]["pos"] == numpy["state"]["pos"], "NumPy's global generator was used"
    assert torch.equal(torch.get_rng_state(), cpu), "torch's global generator was used"
