import numpy as np
import pandas as pd
import pytest

from ctsattn.cli import main


@pytest.fixture
def ctsattn(capsys):
    """Run the command line in this process: `code, out, err = ctsattn("describe", "data.csv")`."""

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return run


@pytest.fixture
def wells(tmp_path):
    """A file of two wells with names, columns and a rhythm of their own; in a folder of its own."""
    rng = np.random.default_rng(0)
    frames = []
    for well, base in (("007", 5.0), ("12", 50.0)):
        hours = np.cumsum(rng.choice([1.0, 1.0, 2.0, 5.0], size=90))
        when = pd.Timestamp("2024-03-20", tz="UTC") + pd.to_timedelta(hours, "h")
        level = base + np.sin(2 * np.pi * hours / 24) + 0.1 * rng.normal(size=90)
        frames.append(pd.DataFrame({"well": well, "when": when, "level": level}))
    path = tmp_path / "wells.csv"
    pd.concat(frames).to_csv(path, index=False)
    return path


NAMES = ("--id-col", "well", "--time-col", "when", "--target-col", "level")


@pytest.fixture
def names():
    """Options that say which columns `wells` has."""
    return NAMES
