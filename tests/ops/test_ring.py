"""The ring gives the answers and gradients of one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ctsattn.ops.ring import ring_attention

WORKER = Path(__file__).with_name("ring_worker.py")


def test_stretches_in_several_processes_are_answered_as_the_whole_in_one(tmp_path):
    size = 3
    command = [sys.executable, "-W", "ignore", str(WORKER)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=WORKER.parents[2],
        )
        for rank in range(size)
    ]
    told = [process.communicate(timeout=200) for process in processes]
    for process, (out, err) in zip(processes, told, strict=True):
        assert process.returncode == 0, err[-3000:]
        assert out == "9 ways\n"


def test_without_a_process_group_it_says_what_is_needed():
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="needs a process group"):
        ring_attention(x, x, x)
