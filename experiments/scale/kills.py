"""Kill the process at random moments of fit, save, predict-to-disk and download; see that nothing is lost.

    for n in 0 1 2 3; do python -m experiments.scale.kills --kills 17 --seed $n --results kills_$n; done

For each kill a process does the work until `kill -9` hits it, after a random part of the time that the work
takes. Then every file that a reader could find is read, and the work is done again, without a kill: its
result must be that of a process that was never killed, to the bit. Use a checkout that nobody changes
meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.scale.stamp import RESULTS, stamp, write

if TYPE_CHECKING:
    from ctsattn import Forecaster

ROOT = Path(__file__).parents[2]
CONTENT = random.Random(0).randbytes(8 << 20)
PHASES = ("fit", "save", "predict", "download")
READY = "working\n"


def frame() -> pd.DataFrame:
    """Eight short irregular series."""
    rng = np.random.default_rng(0)
    hours = np.cumsum(rng.exponential(3.0, (8, 80)) + 0.1, axis=1)
    stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta((hours.ravel() * 3600).astype("m8[s]"))
    y = np.sin(hours * 0.26).ravel() + 0.1 * rng.standard_normal(hours.size)
    return pd.DataFrame({"unique_id": np.repeat([f"s{i}" for i in range(8)], 80), "ds": stamps, "y": y})


def forecaster(folder: Path) -> Forecaster:
    """A small model whose training writes checkpoints."""
    from ctsattn import Forecaster
    from ctsattn.forecasting import Training
    from ctsattn.models import ContinuousTransformer

    model = ContinuousTransformer(d_model=16, num_layers=1, num_heads=2)
    training = Training(
        max_steps=80, validate_every=4, batch_size=8, accelerator="cpu", checkpoint_dir=str(folder / "runs")
    )
    return Forecaster(horizon="1D", model=model, training=training, verbose=False)


def work(phase: str, folder: Path, url: str) -> None:
    """Do one phase in this process; say when the part begins that may be killed."""
    if phase == "download":
        from ctsattn.datasets.card import Source
        from ctsattn.datasets.download import fetch

        told = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        sys.stdout.write(READY)
        sys.stdout.flush()
        fetch(Source(url, ("data.bin",), told), folder)
        return
    from ctsattn import Forecaster
    from ctsattn.forecasting import parts

    parts.PART_ROWS = 80  # a file for each series
    model = forecaster(folder) if phase == "fit" else Forecaster.load(folder / "model")
    sys.stdout.write(READY)
    sys.stdout.flush()
    if phase == "fit":
        model.fit(frame())
        model.save(folder / "model", data=True)
    elif phase == "save":
        for _ in range(40):
            model.save(folder / "saved")
    else:
        model.predict(horizon="12h", level=[80], out=folder / "out")


def digest(phase: str, folder: Path) -> str:
    """Of what the phase is there for."""
    found = hashlib.sha256()
    if phase == "fit":
        from ctsattn import Forecaster

        model = Forecaster.load(folder / "model")
        for value in model.fitted_.network.state_dict().values():
            found.update(value.numpy().tobytes())
    elif phase == "save":
        from ctsattn.forecasting.checkpoint import read

        header, tensors = read(folder / "saved")
        found.update(json.dumps(header, sort_keys=True).encode())
        for name in sorted(tensors):
            found.update(tensors[name].numpy().tobytes())
    elif phase == "predict":
        table = pd.read_parquet(folder / "out")
        found.update(pd.util.hash_pandas_object(table).to_numpy().tobytes())
    else:
        found.update((folder / "data.bin").read_bytes())
    return found.hexdigest()


def readable(phase: str, folder: Path) -> int:
    """Read every file that bears a final name; returns how many. A half-written one raises.

    `.part`, hidden files and the `tmp…` of pooch are names under which nothing is looked for.
    """
    from ctsattn import Forecaster
    from ctsattn.forecasting import checkpoint

    count = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith((".", "tmp")) or path.name.endswith(".part"):
            continue
        if path.suffix == ".parquet":
            pd.read_parquet(path)
        elif path.suffix == ".ctsattn":
            checkpoint.read(path)
        elif path.name == "data.bin":
            assert path.read_bytes() == CONTENT
        elif path.name != "_SUCCESS":
            Forecaster.load(path)
        count += 1
    return count


def started(phase: str, folder: Path, url: str) -> subprocess.Popen[str]:
    """A process at work."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "experiments.scale.kills",
        "--work",
        phase,
        str(folder),
        url,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def finished(phase: str, folder: Path, url: str) -> float:
    """Do a phase without a kill; returns the seconds of the part that could have been killed."""
    process = started(phase, folder, url)
    assert process.stdout is not None
    process.stdout.readline()
    begin = time.perf_counter()
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors[-2000:])
    return time.perf_counter() - begin


def killed(phase: str, folder: Path, url: str, seconds: float) -> bool:
    """Kill a process so many seconds after it began; whether it was still at work."""
    process = started(phase, folder, url)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


class Slow(http.server.BaseHTTPRequestHandler):
    """Serves the content, slowly and from any byte on."""

    def do_GET(self) -> None:
        """Answer with what is asked for."""
        wanted = self.headers.get("Range")
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        for start in range(begin, len(CONTENT), 1 << 17):
            try:
                self.wfile.write(CONTENT[start : start + (1 << 17)])
            except OSError:
                return
            time.sleep(0.01)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve() -> str:
    """Address of a server on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/data.bin"


def prepare(folder: Path, phase: str, model: Path) -> Path:
    """An empty folder, with a trained model where the phase needs one."""
    folder.mkdir()
    if phase in ("save", "predict"):
        os.link(model, folder / "model")
    return folder


def trial(phase: str, number: int, base: Path, url: str, whole: tuple[float, str], share: float) -> dict:
    """Kill once, look, and go on."""
    seconds, expected = whole
    folder = prepare(base / f"{phase}-{number}", phase, base / "fit-whole" / "model")
    hit = killed(phase, folder, url, share * seconds)
    before = readable(phase, folder)
    finished(phase, folder, url)
    after = readable(phase, folder)
    row = {"phase": phase, "kill": number, "after_seconds": round(share * seconds, 3), "hit": int(hit)}
    resumed = ""
    if phase == "fit":
        from ctsattn import Forecaster

        log = Forecaster.load(folder / "model").training_log_
        resumed = str(log.resumed_at) if log is not None else ""
    same = digest(phase, folder) == expected
    return {**row, "files_read": before + after, "resumed_at": resumed, "same_result": int(same)}


def run(kills: int, seed: int, tell: Callable[[str], object], phases: Sequence[str] = PHASES) -> list[dict]:
    """All kills, the phases in turn; "fit" comes first, because others need a model."""
    rng, url, rows = random.Random(seed), serve(), []
    with tempfile.TemporaryDirectory() as place:
        base, whole = Path(place), {}
        for phase in phases:
            for name in ("warm", "whole"):  # the first one compiles what is compiled once, and takes longer
                folder = prepare(base / f"{phase}-{name}", phase, base / "fit-whole" / "model")
                seconds = finished(phase, folder, url)
            whole[phase] = seconds, digest(phase, folder)
        for number in range(kills):
            phase = phases[number % len(phases)]
            rows.append(trial(phase, number, base, url, whole[phase], rng.uniform(0.02, 0.8)))
            tell(json.dumps(rows[-1]) + "\n")
    return rows


def main() -> int:
    """Command line; the exit code is 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", default="kills", help="name of the CSV; empty writes none")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        phase, folder, url = options.work
        work(phase, Path(folder), url)
        return 0
    rows = run(options.kills, options.seed, sys.stderr.write)
    if options.results:
        write(options.results, [{**row, **stamp(options.seed)} for row in rows])
        sys.stderr.write(f"rows went to {RESULTS / options.results}.csv\n")
    lost = sum(not row["same_result"] for row in rows)
    sys.stdout.write(f"{len(rows)} kills, {sum(r['hit'] for r in rows)} of them at work, {lost} lost\n")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
