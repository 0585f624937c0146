"""Examples in docstrings and in the README run; formulas and tables in the README are up to date."""

import doctest
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import ctsattn

ROOT = Path(__file__).resolve().parents[1]
# Kernels can only be imported where Triton is; what they show is shown by the operator.
SKIPPED = ("ctsattn.ops.continuous.triton",)


def modules():
    found = pkgutil.walk_packages(ctsattn.__path__, "ctsattn.", onerror=lambda name: None)
    return sorted(
        one.name for one in found if not one.name.startswith(SKIPPED) and "__main__" not in one.name
    )


def has_example(name):
    spec = importlib.util.find_spec(name)
    return (
        spec is not None
        and spec.origin is not None
        and ">>> " in Path(spec.origin).read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", [name for name in modules() if has_example(name)])
def test_examples_in_docstrings_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {ctsattn.__version__}\n" in citation
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == ctsattn.__version__


def test_every_dependency_of_the_tests_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    names = {re.match(r"[\w.-]+", one)[0].lower() for one in wanted} - {"ctsattn"}
    assert names <= pinned, names - pinned
