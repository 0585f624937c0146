"""Run benchmarks: any data, model, mixer, horizon and seed, from the command line or TOML files.

    python -m experiments.benchmarks.run --data etth1 --model last_value --lookback 96 --horizon 96 192
    python -m experiments.benchmarks.run experiments/benchmarks/configs/long_horizon.toml --jobs 2
    python -m experiments.benchmarks.run --smoke

Runs whose rows are in the results are left out, so a call that was cut off goes on where it stopped. Each
run is a process of its own: what one does to memory or crashes on touches no other. Several machines may make
the same call on one results file, each then does what no other is at; tasks of a SLURM array begin at
different runs (experiments/scale/grid.sbatch).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctsattn.datasets import card
from ctsattn.datasets.download import locate
from experiments.benchmarks import rows
from experiments.benchmarks.plan import Run, expand, read_plan

HERE = Path(__file__).parent
_POLL = 0.2  # seconds between looks at the processes
_ELSEWHERE = 75  # exit code of a process whose run another one is at; "temporary failure" in sysexits.h


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code: 1 where a run failed."""
    options = _parser().parse_args(arguments)
    if options.one:
        return _one(json.loads(options.one), Path(options.results), options.again)
    try:
        runs = _runs(options)
    except (ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    results = Path(options.results)
    finished = set() if options.again else rows.done(results)
    left = [run for run in runs if run.hash not in finished]
    sys.stderr.write(f"{len(runs)} runs, {len(runs) - len(left)} of them done before; rows go to {results}\n")
    if options.list:
        sys.stdout.writelines(f"{run.hash} {run.as_json()}\n" for run in left)
        return 0
    jobs = options.jobs or (2 if options.smoke else 1)
    extra = ["--again"] if options.again else []
    return _run_all(_own_first(left), results, jobs, options.gpus, options.threads, extra)


def _own_first(runs: list[Run]) -> list[Run]:
    """Let each task of a SLURM array begin at another run, so that they seldom ask for the same one."""
    task, tasks = (int(os.environ.get(f"SLURM_ARRAY_TASK_{name}", 0)) for name in ("ID", "COUNT"))
    start = task * len(runs) // tasks if tasks else 0
    return runs[start:] + runs[:start]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.run",
        description=(__doc__ or "").split("\n", 1)[0],
        epilog="Example: --data etth1 --model last_value seasonal_naive --lookback 96 --horizon 96 720",
    )
    parser.add_argument("configs", nargs="*", type=Path, help="TOML files with tables `defaults` and `runs`")
    for name, kind in (("data", str), ("model", str), ("mixer", str), ("condition", str)):
        parser.add_argument(f"--{name}", nargs="+", type=kind)
    for name in ("lookback", "horizon", "seed"):
        parser.add_argument(f"--{name}", nargs="+", type=int)
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="FIELD=VALUE", help="fields of the model's config"
    )
    parser.add_argument("--train", nargs="+", default=[], metavar="FIELD=VALUE", help="fields of Training")
    parser.add_argument(
        "--load", nargs="+", default=[], metavar="OPTION=VALUE", help="options of datasets.load"
    )
    parser.add_argument("--preset", choices=["small", "base"])
    parser.add_argument("--point", choices=["mean", "median"])
    parser.add_argument("--joint", action="store_true", help="the model sees all channels together")
    parser.add_argument("--windows", type=int, help="evaluate this many windows, spread evenly")
    parser.add_argument("--no-test", action="store_true", help="validation only, while choosing")
    parser.add_argument(
        "--smoke", action="store_true", help="a minute on the CPU: one small run of each kind"
    )
    parser.add_argument("--results", default=rows.RESULTS / "runs.csv", help="CSV to append to")
    parser.add_argument("--jobs", type=int, default=0, help="processes at once; 1, or 2 with --smoke")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--gpus", nargs="*", default=[], help="GPUs to hand out in turn")
    parser.add_argument("--again", action="store_true", help="run also what is in the results")
    parser.add_argument("--list", action="store_true", help="print the runs that are left, and stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


def _runs(options: argparse.Namespace) -> list[Run]:
    """Runs of the files, of the command line, or the smoke test."""
    if options.smoke:
        options.results = HERE / "results" / "smoke.csv"
        options.results.unlink(missing_ok=True)
        return [run for run in read_plan([HERE / "configs" / "smoke.toml"]) if _at_hand(run)]
    table: dict[str, Any] = {
        key: getattr(options, key)
        for key in (
            "data",
            "model",
            "mixer",
            "condition",
            "lookback",
            "horizon",
            "seed",
            "preset",
            "point",
            "windows",
        )
        if getattr(options, key) is not None
    }
    for key, given in (("options", options.set), ("training", options.train), ("load", options.load)):
        if given:
            table[key] = dict(_pair(text) for text in given)
    table |= {"joint": True} if options.joint else {}
    table |= {"test": False} if options.no_test else {}
    if options.configs:
        return [run for config in options.configs for run in _of_file(config, table)]
    if "data" not in table or "model" not in table:
        raise ValueError("Give TOML files, or --data and --model, or --smoke. See --help.")
    return expand(table)


def _at_hand(run: Run) -> bool:
    """Whether a run needs no download; says which are left out."""
    own = os.environ.get("CTSATTN_DATA")
    sources = card(run.data).sources
    if all(own and locate(source, Path(own)) for source in sources):
        return True
    sys.stderr.write(f"{run.data} is left out: its files are not below CTSATTN_DATA\n")
    return False


def _of_file(path: Path, changes: dict[str, Any]) -> list[Run]:
    """Runs of a file, with what the command line says in place of what the file says."""
    if not changes:
        return read_plan([path])
    import tomllib

    content = tomllib.loads(path.read_text())
    return [
        run
        for table in content.get("runs", [{}])
        for run in expand({**table, **changes}, content.get("defaults"))
    ]


def _pair(text: str) -> tuple[str, Any]:
    """Read `field=value`; the value is JSON, or else text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"Expected FIELD=VALUE, found `{text}`.")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _one(fields: dict[str, Any], results: Path, again: bool = False) -> int:
    """Do one run in this process and append its rows, unless another process is at it or has done it."""
    run = Run(**fields).check()
    claim = rows.claim(results, run.hash)
    if claim is None:
        sys.stderr.write(f"{run.hash} is at work elsewhere\n")
        return _ELSEWHERE
    with claim:
        return 0 if not again and run.hash in rows.done(results) else _do(run, results)


def _do(run: Run, results: Path) -> int:
    from experiments.benchmarks.work import do

    found = do(run, {"path": results.with_suffix(".ledger.jsonl")})
    rows.append(results, found)
    scores = ", ".join(f"{row['split']} {row['metric']} {float(row['value']):.4f}" for row in found)
    sys.stderr.write(f"{run.hash} {run.data} {run.model} {run.mixer} {run.horizon}: {scores}\n")
    return 0


@dataclass
class _Child:
    """A process at work on a run."""

    run: Run
    process: subprocess.Popen[bytes]
    gpu: str | None


def _run_all(
    left: list[Run], results: Path, jobs: int, gpus: list[str], threads: int, extra: Sequence[str] = ()
) -> int:
    """Keep `jobs` processes at work until no run is left."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes below end too
    waiting, working, failed, elsewhere = list(left), list[_Child](), 0, 0
    free: list[str | None] = [gpus[i % len(gpus)] if gpus else None for i in range(jobs)]
    try:
        while waiting or working:
            while waiting and free:
                gpu = free.pop()
                run = waiting.pop(0)
                working.append(_Child(run, _start(run, results, gpu, threads, extra), gpu))
            time.sleep(_POLL)
            for child in [c for c in working if c.process.poll() is not None]:
                working.remove(child)
                free.append(child.gpu)
                if child.process.returncode == _ELSEWHERE:
                    elsewhere += 1
                elif child.process.returncode:
                    failed += 1
                    sys.stderr.write(f"{child.run.hash} failed: {child.run.as_json()}\n")
    finally:
        for child in working:
            child.process.terminate()
        signal.signal(signal.SIGTERM, before)
    told = f", {elsewhere} at work elsewhere" if elsewhere else ""
    sys.stderr.write(f"{len(left) - failed - elsewhere} runs done, {failed} failed{told}\n")
    return int(failed > 0)


def _start(
    run: Run, results: Path, gpu: str | None, threads: int, extra: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a process for a run."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    command = [
        sys.executable,
        "-m",
        "experiments.benchmarks.run",
        "--one",
        run.as_json(),
        "--results",
        str(results),
        *extra,
    ]
    return subprocess.Popen(command, env=environment, cwd=HERE.parent.parent)


if __name__ == "__main__":
    raise SystemExit(main())
