"""MkDocs hooks: one page for each public object, formulas as MathML, nothing fetched from elsewhere."""

from __future__ import annotations

import html
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# Section of the reference -> module whose `__all__` (or public table) it lists.
SECTIONS = {
    "Forecaster": "ctsattn.forecasting",
    "Operator": "ctsattn.ops",
    "Models": "ctsattn.models",
    "Network parts": "ctsattn.nn",
    "Data sets": "ctsattn.datasets",
    "Scores": "ctsattn.metrics",
    "Losses": "ctsattn.losses",
    "Phi functions": "ctsattn.phi",
    "Pictures": "ctsattn.plotting",
}
# Modules that need a library of an extra cannot be imported everywhere; what they offer is named here.
_EXTRAS = (
    "ctsattn.forecasting.distributed.predict",
    "ctsattn.forecasting.distributed.cross_validation",
    "ctsattn.forecasting.sktime.SktimeForecaster",
)
_ROOT = Path(__file__).resolve().parents[1]
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def public_objects() -> dict[str, list[str]]:
    """Names of the public functions and classes of each section, in the order of their module."""
    found = {}
    for section, module_name in SECTIONS.items():
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name
        ]
        public = [name for name in names if not name.startswith("_") and callable(getattr(module, name))]
        found[section] = [f"{module_name}.{name}" for name in public]
    return found | {"Engines and other libraries": list(_EXTRAS)}


def public_tables() -> dict[str, dict[str, Any]]:
    """The tables of parts that a newcomer adds to, by their public names."""
    found = {}
    for module_name in SECTIONS.values():
        module = importlib.import_module(module_name)
        names = [name for name in getattr(module, "__all__", ()) if isinstance(getattr(module, name), dict)]
        found |= {f"{module_name}.{name}": getattr(module, name) for name in names}
    return found


def _table_page(name: str, table: dict[str, Any]) -> str:
    """A page for a table: what each of its names stands for, then the parts themselves."""
    lines = [f"# `{name}`", "", "| name | what it is |", "|---|---|"]
    lines += [f"| `{key}` | {_summary(part)} |" for key, part in table.items()]
    for part in {id(part): part for part in table.values()}.values():
        place = f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', '')}"
        if callable(part) and not place.rsplit(".", 1)[1].startswith("_") and "<" not in place:
            lines += ["", f"::: {place}", "    options:", "      heading_level: 2"]
    return "\n".join(lines) + "\n"


def _summary(part: Any) -> str:
    """The first line of what a part says of itself."""
    text = getattr(part, "title", None) or inspect.getdoc(part) or ""
    return text.split("\n", 1)[0].replace("|", "\\|")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation from the public objects."""
    reference: list[Any] = ["reference/index.md"]
    for section, names in public_objects().items():
        reference.append({section: [{name.rsplit(".", 1)[1]: f"reference/{name}.md"} for name in names]})
    tables = [{name.rsplit(".", 1)[1]: f"reference/{name}.md"} for name in public_tables()]
    reference.append({"Tables of parts": tables})
    config.nav = [
        {"Start": "index.md"},
        {"The operator": "operator.md"},
        {"Command line": "command-line.md"},
        {"Reference": reference},
        {"Changes": "changelog.md"},
        {"Contributing": "contributing.md"},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each public object, the overview, and the pages from the repository's root."""
    overview = ["# Reference", ""]
    for section, names in public_objects().items():
        overview += [f"## {section}", ""]
        for name in names:
            overview.append(f"- [`{name}`]({name}.md)")
            files.append(File.generated(config, f"reference/{name}.md", content=f"::: {name}\n"))
        overview.append("")
    overview += ["## Tables of parts", ""]
    for name, table in public_tables().items():
        overview.append(f"- [`{name}`]({name}.md): {', '.join(f'`{key}`' for key in table)}")
        files.append(File.generated(config, f"reference/{name}.md", content=_table_page(name, table)))
    files.append(File.generated(config, "reference/index.md", content="\n".join(overview)))
    files.append(File.generated(config, "command-line.md", content=_command_line()))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (_ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_content(page_html: str, **_: Any) -> str:
    """Turn TeX into MathML, which browsers draw without a script."""
    return _FORMULA.sub(_to_mathml, page_html)


def _to_mathml(match: re.Match[str]) -> str:
    tex = html.unescape(match[2]).strip()
    display = "block" if tex.startswith("\\[") else "inline"
    return convert(
        tex.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]"), display=display
    )


def _command_line() -> str:
    """The help of every command, as a shell shows it."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from ctsattn.cli import app

    runner = CliRunner(env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
    parts = ["# Command line", "", "```text", runner.invoke(app, ["--help"]).output.strip(), "```", ""]
    for name in get_command(app).commands:  # pyright: ignore[reportAttributeAccessIssue]
        shown = runner.invoke(app, [name, "--help"]).output.strip()
        parts += [f"## {name}", "", "```text", shown, "```", ""]
    return "\n".join(parts)
