"""Examples in docstrings and in the README run; formulas and tables in the README are up to date."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ctsattn
from ctsattn.cli import main
from ctsattn.forecasting import Training

ROOT = Path(__file__).resolve().parents[1]
# Kernels can only be imported where Triton is; what they show is shown by the operator. The adapter of sktime
# can only be imported where sktime is, whose conformance suite looks at its example.
SKIPPED = ("ctsattn.ops.continuous.triton", "ctsattn.forecasting.sktime")


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


def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_of_the_readme_are_what_the_committed_rows_say():
    from experiments.readme import render

    assert render(readme()) == readme(), "run `make tables` and commit README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", readme(), re.DOTALL)


@pytest.fixture
def wells(tmp_path, monkeypatch):
    """An empty folder in which the ten lines of the README have run, with a short training."""
    monkeypatch.chdir(tmp_path)
    ten_lines, operator = blocks("python")
    assert len(ten_lines.strip().splitlines()) <= 11
    quick = ten_lines.replace('horizon="90D").fit', 'horizon="90D", training=QUICK, verbose=False).fit')
    names = {"QUICK": Training(max_steps=2)}
    for block in (quick, operator):
        exec(compile(block, "README.md", "exec"), names)
    return names


def test_python_in_the_readme_runs(wells, tmp_path):
    assert len(wells["out"].shape) == 4 and len(wells["forecast"]) == 2
    assert (tmp_path / "wells.png").exists() and (tmp_path / "wells.ctsattn").exists()


def test_the_shell_lines_of_the_readme_run_on_the_file_of_its_python(wells, tmp_path, capsys):
    lines = [line.split("#")[0].split() for block in blocks("sh") for line in block.splitlines()]
    commands = [words[1:] for words in lines if words[:1] == ["ctsattn"]]
    assert [words[0] for words in commands] == ["describe", "fit", "predict", "plot", "benchmark"]
    for words in commands:
        quick = ("--max-steps", "2", "--quiet") if words[0] in ("fit", "benchmark") else ()
        with pytest.raises(SystemExit) as left:
            main([*words, *quick])
        assert not left.value.code, capsys.readouterr().err
    assert (tmp_path / "forecast.csv").exists()


def test_links_of_the_readme_lead_to_files():
    targets = re.findall(r"\]\(([^)#:]+)\)", readme())
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert targets and missing == []


def test_every_make_command_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in set(re.findall(r"(?:`|^)make ([a-z-]+)", readme(), re.MULTILINE)):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command


def test_the_reference_builds_without_a_warning_and_has_a_page_for_each_public_object(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--config-file", ROOT / "docs" / "mkdocs.yml"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*build, "--strict", "--quiet", "--site-dir", tmp_path],
        env=quiet,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    sections = ("forecasting", "ops", "models", "nn", "datasets", "metrics", "plotting")
    for module in (getattr(ctsattn, section) for section in sections):
        for name in module.__all__:
            page = tmp_path / "reference" / f"{module.__name__}.{name}" / "index.html"
            assert name in page.read_text(encoding="utf-8"), page
