"""The catalogue in `datasets/` and its script."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from ctsattn.datasets import DATASETS

FOLDER = Path(__file__).parents[2] / "datasets"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_datasets", FOLDER / "prepare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_those_that_the_cards_give(prepare):
    stale = [
        str(path) for path, text in prepare.pages().items() if not path.exists() or path.read_text() != text
    ]
    assert not stale, f"run `python datasets/prepare.py --cards`; out of date: {stale}"


def test_every_set_has_a_page_and_every_page_a_set():
    assert {path.parent.name for path in FOLDER.glob("*/README.md")} == set(DATASETS)


def test_the_folder_is_no_package():
    assert not (FOLDER / "__init__.py").exists()


def test_a_set_at_hand_is_told_and_one_that_cannot_be_had_says_why(
    prepare, made_up, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CTSATTN_DATA", str(made_up("groundwater")[0].parent))
    assert prepare.main(["groundwater", "--cache", str(tmp_path)]) == 0
    out = capsys.readouterr()
    assert "groundwater: 30 rows, 2 series, 2030-01-01" in out.out
    assert "should have 26764 rows" in out.err
    assert prepare.main(["nonsense", "--cache", str(tmp_path)]) == 1
    assert "No data set is called `nonsense`" in capsys.readouterr().err
