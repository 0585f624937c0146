"""Break each behaviour by one change and see its test fail: `python tests/mutate.py [behaviour ...]`.

The committed tree is laid into a temporary folder; nothing else is touched. Every test is first run there as
it is. A mutation that its test survives, or a test that fails without one, ends the run with code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutations import TABLE, Mutation

_ROOT = Path(__file__).parent.parent
_QUIET = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
_NOTHING_RAN = 5


def lay_tree(folder: Path) -> None:
    """Put the committed tree into a folder."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=_ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)


def run_test(folder: Path, test: str) -> tuple[int, str]:
    """Exit code and output of pytest in a child process, which finds torch and its kin loaded already."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.chdir(folder)
        sys.path[:0] = [str(folder)]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            import pytest

            path, *options = shlex.split(test)
            code = int(pytest.main([f"tests/{path}", *options, *_QUIET]))
        os.write(writing, shown.getvalue()[-4000:].encode())
        os._exit(code)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as file:
        output = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


def load_libraries() -> None:
    """Import once what every test needs, and nothing of the package."""
    import lightning
    import numba
    import pandas
    import polars
    import pyarrow
    import scipy.stats
    import sklearn
    import torch

    del lightning, numba, pandas, polars, pyarrow, scipy, sklearn
    torch.set_num_threads(1)


def verdict(folder: Path, mutation: Mutation) -> str:
    """An empty text when the test fails under the mutation, otherwise what is wrong."""
    file = folder / "ctsattn" / mutation.file
    text = file.read_text()
    if text.count(mutation.old) != 1:
        return f"{mutation.old!r} occurs {text.count(mutation.old)} times in {mutation.file}"
    file.write_text(text.replace(mutation.old, mutation.new))
    try:
        code, output = run_test(folder, mutation.test)
    finally:
        file.write_text(text)
    if code == 0:
        return f"survives tests/{mutation.test}"
    return f"no test ran: {output[-500:]}" if code == _NOTHING_RAN else ""


def main() -> int:
    """Run the mutations of the given behaviours, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("behaviours", nargs="*", help="names such as 7, A3 or phase; all when none is given")
    parser.add_argument(
        "--mutations-only", action="store_true", help="the tests are known to pass as they are"
    )
    arguments = parser.parse_args()
    wanted = arguments.behaviours
    chosen = [m for m in TABLE if not wanted or m.behaviour in wanted]
    load_libraries()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_tree(folder)
        for test in () if arguments.mutations_only else dict.fromkeys(m.test for m in chosen):
            code, output = run_test(folder, test)
            if code:
                wrong += 1
                print(f"fails as it is: tests/{test}\n{output[-1500:]}", flush=True)
        for mutation in chosen:
            begin = time.perf_counter()
            problem = verdict(folder, mutation)
            wrong += bool(problem)
            took = time.perf_counter() - begin
            print(
                f"{mutation.behaviour:>4}  {problem or 'fails'}  ({mutation.test}, {took:.0f} s)", flush=True
            )
    print(f"{len(chosen) - wrong} of {len(chosen)} mutations are caught.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
