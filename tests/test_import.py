"""`import ctsattn` is quiet and cheap, and its public names are where they should be."""

import subprocess
import sys

import pytest

import ctsattn

HEAVY = ("torch", "pandas", "lightning", "sklearn", "triton", "matplotlib")


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )


def test_import_prints_nothing_and_loads_nothing_heavy():
    done = run(f"import ctsattn, sys; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert done.stdout.strip() == "[]" and done.stderr == ""


def test_the_operator_alone_loads_no_data_or_training_library():
    done = run(
        "import sys; from ctsattn import continuous_attention\n"
        "print([name for name in ('pandas', 'lightning', 'sklearn', 'matplotlib') if name in sys.modules])"
    )
    assert done.stdout.strip() == "[]"


def test_import_adds_less_than_a_second_to_torch():
    done = run(
        "import torch, time; start = time.perf_counter(); import ctsattn; print(time.perf_counter() - start)"
    )
    assert float(done.stdout) < 1.0


@pytest.mark.parametrize("name", ctsattn.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(ctsattn, name) is getattr(ctsattn, name)
    assert name in dir(ctsattn)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = ctsattn.nonsense
