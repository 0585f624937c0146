"""Run the notebooks in place, so that what they show was made by what they say: `make notebooks`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent


def run(path: Path) -> None:
    """Execute one notebook and write it back with its outputs, without timings and ids of the run."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, path)


def main(names: list[str]) -> None:
    """Run the notebooks whose names begin with one of `names`; all without any."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.name.startswith(tuple(names)):
            start = time.perf_counter()
            run(path)
            sys.stderr.write(f"{path.name}: {time.perf_counter() - start:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
