"""Faults of disks and files: a clear error, nothing lost, nothing executed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ctsattn.forecasting import checkpoint
from ctsattn.forecasting.files import whole_file

TENSORS = {"network/a": torch.arange(24.0).reshape(4, 6), "data/b": torch.tensor([True, False])}
NOBODY = 65534


def model_file(folder: Path) -> Path:
    path = folder / "m.ctsattn"
    checkpoint.write(path, {"n": 1, "text": "a header"}, TENSORS)
    return path


@contextmanager
def without_privileges() -> Iterator[None]:
    """Give up what root may do, so that the rights of files count."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("width", [1, 8, 64])
def test_a_file_with_any_bytes_flipped_is_refused_and_says_so(tmp_path, width):
    path = model_file(tmp_path)
    whole = path.read_bytes()
    for start in range(0, len(whole), width):
        damaged = bytearray(whole)
        damaged[start : start + width] = bytes(b ^ 0xFF for b in whole[start : start + width])
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|no ctsattn model|not a model file"):
            checkpoint.read(path)
    path.write_bytes(whole)
    assert checkpoint.read(path)[0]["n"] == 1


@pytest.mark.parametrize("bit", range(8))
def test_a_file_with_any_single_bit_flipped_is_refused(tmp_path, bit):
    path = model_file(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|no ctsattn model|not a model file"):
            checkpoint.read(path)


def test_a_file_cut_off_at_any_length_is_refused(tmp_path):
    path = model_file(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            checkpoint.read(path)


def test_files_of_the_first_schema_without_a_checksum_are_read_and_later_ones_are_not(tmp_path):
    for version in (1, 2):
        header = json.dumps({"schema_version": version})
        save_file(TENSORS, tmp_path / str(version), metadata={"ctsattn": header})
    assert checkpoint.read(tmp_path / "1")[0] == {"schema_version": 1}
    with pytest.raises(ValueError, match="has no checksum"):
        checkpoint.read(tmp_path / "2")


FULL = """
import resource, sys, torch
from ctsattn.forecasting import checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
checkpoint.write(sys.argv[1], {"n": 2}, {"a": torch.zeros(100_000)})
"""


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path):
    path = model_file(tmp_path)
    run = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "is full, so" in run.stderr and "The file that stood there is as it was" in run.stderr
    assert checkpoint.read(path)[0]["n"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.ctsattn"]


def test_no_space_left_names_the_file_and_keeps_the_number_of_the_error(tmp_path):
    told = pytest.raises(OSError, match=r"is full, so .*No file was left there")
    with told as caught, whole_file(tmp_path / "x") as temporary:
        temporary.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_to_is_named(open_folder):
    path = model_file(open_folder)
    open_folder.chmod(0o555)
    with without_privileges(), pytest.raises(PermissionError, match="may not be written to"):
        checkpoint.write(path, {"n": 2}, TENSORS)
    open_folder.chmod(0o755)
    assert checkpoint.read(path)[0]["n"] == 1


def test_a_file_that_may_not_be_read_is_named(open_folder):
    path = model_file(open_folder)
    path.chmod(0o000)
    with without_privileges(), pytest.raises(PermissionError, match="may not be read by this user"):
        checkpoint.read(path)
