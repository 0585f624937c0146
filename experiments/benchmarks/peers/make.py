"""Make the environment of a peer: its own interpreter packages, so that it binds none of ours.

python experiments/benchmarks/peers/make.py neuralforecast
experiments/benchmarks/peers/.venvs/neuralforecast/bin/python -m experiments.benchmarks.peers.neural --help
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent


def peers() -> list[str]:
    """Names of the peers: the requirement files beside this script."""
    return sorted(path.stem for path in HERE.glob("*.txt"))


def make(name: str, folder: Path = HERE / ".venvs") -> Path:
    """Create the environment of a peer unless it is there; returns its Python."""
    python = folder / name / "bin" / "python"
    mark = folder / name / ".installed"
    wanted = (HERE / f"{name}.txt").read_text()
    if mark.exists() and mark.read_text() == wanted:
        return python
    venv.create(folder / name, with_pip=True, clear=True)
    requirements = str(HERE / f"{name}.txt")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
    mark.write_text(wanted)
    return python


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="+", choices=peers())
    for name in parser.parse_args(arguments).names:
        sys.stdout.write(f"{make(name)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
