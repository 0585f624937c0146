"""Time and memory of `fit`, `predict` and `import`, beside neuralforecast's PatchTST at equal work.

    python -m experiments.benchmarks.speed --peer-python PEER/bin/python
    python -m experiments.benchmarks.speed --table

Equal are the data, steps, windows in a step, look-back, horizon, squared error, float32, and within a few
percent the parameters. Each measurement is a process of its own; the systems take turns, so that whatever
else the machine does falls on both. Times are those of the public calls, from a frame to a frame.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.benchmarks import rows

RESULTS = rows.RESULTS / "speed" / "times.csv"
_README = Path(__file__).parent / "README.md"
_BEGIN, _END = "<!-- speed begin -->", "<!-- speed end -->"
_LOOKBACK, _HORIZON, _WINDOWS, _SERIES_ROWS = 336, 96, 64, 1440
_OURS = "ctsattn"
_MEASURES = (
    "import_seconds",
    "class_seconds",
    "fit_seconds",
    "fit_cpu_seconds",
    "predict_seconds",
    "peak_mib",
)
_IMPORTS = {
    _OURS: {"import_seconds": "import ctsattn", "class_seconds": "from ctsattn import Forecaster"},
    "PatchTST": {
        "import_seconds": "import neuralforecast",
        "class_seconds": "from neuralforecast import NeuralForecast",
    },
}
_COLUMNS = (
    "system",
    "size",
    "device",
    "steps",
    "round",
    "params",
    *_MEASURES,
    "commit",
    "versions",
    "config",
)
_SHAPE = ("lookback", "horizon", "windows", "threads")
_SHOWN = (*_MEASURES[:3], "wait_seconds", *_MEASURES[3:])
_HEAD = (
    "| | parameters | import, s | and class, s | fit, s | class and fit, s | fit's CPU, s | predict, s "
    "| peak, MiB |"
)
_WARM: set[tuple[str, str]] = set()
_PATCHES = {"num_heads": 4, "patch": 16, "stride": 8, "query_patch": 16}
# Widths are chosen so that both have as many parameters; PatchTST's are its paper's for ETTh1, and
# neuralforecast's defaults. Patches of 16 hours every 8 are PatchTST's.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {
        _OURS: {"d_model": 48, "num_layers": 1, **_PATCHES},
        "PatchTST": {"hidden_size": 16, "n_heads": 4, "linear_hidden_size": 128, "encoder_layers": 3},
    },
    "default": {
        _OURS: {"d_model": 144, "num_layers": 2, "num_decoder_layers": 3, **_PATCHES},
        "PatchTST": {"hidden_size": 128, "n_heads": 16, "linear_hidden_size": 256, "encoder_layers": 3},
    },
}


def frame() -> pd.DataFrame:
    """ETTh1 cut into series of 1440 hours: 84 of them, `unique_id, ds, y`."""
    from ctsattn import datasets

    table = datasets.load_table("etth1")
    count = len(table.times) // _SERIES_ROWS
    parts = [
        pd.DataFrame({"ds": table.times[cut], "y": table.values[cut, channel]}).assign(
            unique_id=f"{name}{part:02}"
        )
        for part in range(count)
        for cut in [slice(part * _SERIES_ROWS, (part + 1) * _SERIES_ROWS)]
        for channel, name in enumerate(table.names)
    ]
    return pd.concat(parts, ignore_index=True)[["unique_id", "ds", "y"]]


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = work()
    return time.perf_counter() - begin, found


def _fitted(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of a fit, and those that processors worked on it, which others on the machine change less."""
    begin = time.process_time()
    seconds, _ = _timed(work)
    return {"fit_seconds": seconds, "fit_cpu_seconds": time.process_time() - begin}


def ours(df: pd.DataFrame, size: str, steps: int, device: str) -> dict[str, Any]:
    """Fit and predict with ctsattn."""
    from ctsattn import Forecaster
    from ctsattn.forecasting import Training
    from ctsattn.models import ContinuousTransformer

    forecaster = Forecaster(
        horizon=_HORIZON,
        lookback=_LOOKBACK,
        model=ContinuousTransformer(head="squared_error", **SIZES[size][_OURS]),
        training=Training(
            max_steps=steps, batch_size=_WINDOWS, patience=None, impute_share=0.0, accelerator=device
        ),
        random_state=0,
        verbose=False,
    )
    fit = _fitted(lambda: forecaster.fit(df))
    predict, answer = _timed(forecaster.predict)
    network = forecaster.fitted_.network
    return _found(fit, predict, answer, network)


def theirs(df: pd.DataFrame, size: str, steps: int, device: str) -> dict[str, Any]:
    """Fit and predict with neuralforecast."""
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MSE
    from neuralforecast.models import PatchTST

    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    model = PatchTST(
        h=_HORIZON,
        input_size=_LOOKBACK,
        loss=MSE(),
        max_steps=steps,
        windows_batch_size=_WINDOWS,
        random_seed=0,
        accelerator=device,
        devices=1,
        enable_model_summary=False,
        **quiet,
        **SIZES[size]["PatchTST"],
    )
    forecaster = NeuralForecast(models=[model], freq="h")
    fit = _fitted(lambda: forecaster.fit(df))
    predict, answer = _timed(forecaster.predict)
    return _found(fit, predict, answer, forecaster.models[0])


def _found(fit: dict[str, float], predict: float, answer: pd.DataFrame, network: Any) -> dict[str, Any]:
    expected = frame()["unique_id"].nunique() * _HORIZON
    if len(answer) != expected or answer.isna().to_numpy().any():
        raise ValueError(f"Expected {expected} forecasts without NaN, found {len(answer)} rows.")
    params = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return fit | {"predict_seconds": predict, "params": params}


def measure(system: str, size: str, steps: int, device: str) -> dict[str, Any]:
    """`fit` and `predict` of one system in this process."""
    if device == "gpu":
        import torch

        torch.cuda.reset_peak_memory_stats()
    found = (ours if system == _OURS else theirs)(frame(), size, steps, device)
    packages = ("lightning" if system == _OURS else "neuralforecast", "torch", "numpy", "pandas")
    versions = rows.versions(*packages)
    return found | {"peak_mib": _peak(device), "versions": versions, "device": rows.device_name()}


def _peak(device: str) -> float:
    """Largest memory of the process in MiB: resident, or of the GPU."""
    if device == "gpu":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _import_seconds(python: str, statement: str) -> float:
    """What a statement takes in an interpreter that has imported nothing."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = subprocess.run([python, "-W", "ignore", "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.strip().splitlines()[-1])


def _process(python: str, system: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in processes of their own."""
    imports = {name: _import_seconds(python, text) for name, text in _IMPORTS[system].items()}
    command = [python, "-m", "experiments.benchmarks.speed", "--one", system, "--sizes", size]
    command += ["--steps", str(options.steps), "--device", options.device]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return imports | json.loads(done.stdout.strip().splitlines()[-1])


def _here(system: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in this process; a short fit before the first takes what is loaded once."""
    if (system, size) not in _WARM:
        measure(system, size, 2, options.device)
        _WARM.add((system, size))
    missing = dict.fromkeys(_IMPORTS[system], float("nan"))
    return missing | measure(system, size, options.steps, options.device)


def _append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def compare(options: argparse.Namespace) -> None:
    """Let the systems take turns and append a row for each process."""
    pythons = {_OURS: sys.executable, "PatchTST": options.peer_python}
    shape = {"lookback": _LOOKBACK, "horizon": _HORIZON, "windows": _WINDOWS, "threads": options.threads}
    for round_ in range(options.rounds):
        for size in options.sizes:
            for system, python in pythons.items():
                if options.here:
                    found = _here(system, size, options)
                else:
                    found = _process(python, system, size, options)
                config = json.dumps({**shape, **SIZES[size][system]}, sort_keys=True)
                row = {"system": system, "size": size, "steps": options.steps, "round": round_}
                measured = {key: round(found[key], 4) for key in _MEASURES}
                row |= found | measured | {"commit": rows.commit(), "config": config}
                _append(options.results, row)
                sys.stderr.write(f"{system} {size}: {measured}, {found['params']} parameters\n")


def _line(name: object, row: pd.Series, params: str) -> str:
    """A row of the table; what was not measured is left empty."""
    cells = [f"{row[key]:.2f}" if pd.notna(row[key]) else "" for key in _SHOWN]
    return f"| {name} | {params} | {' | '.join(cells)} |"


def table(path: Path) -> str:
    """Markdown: the median of the rounds of the latest commit that was measured, and how they compare.

    Rows of other sizes than the present ones stay in the file and out of the table.
    """
    measured = pd.read_csv(path)
    measured = measured[[_is_present(*row) for row in measured[["system", "size", "config"]].to_numpy()]]
    measured["wait_seconds"] = measured["class_seconds"] + measured["fit_seconds"]
    blocks = []
    for (device, size, steps), group in measured.groupby(["device", "size", "steps"], sort=True):
        commit = group["commit"].iloc[-1]
        group = group[group["commit"] == commit]
        middle = group.groupby("system")[["params", *_SHOWN]].median()
        if set(middle.index) != {_OURS, "PatchTST"}:
            continue
        lines = [_line(system, row, f"{int(row['params']):,}") for system, row in middle.iterrows()]
        ratio = middle.loc["PatchTST"] / middle.loc[_OURS]
        lines.append(_line("*PatchTST ÷ ctsattn*", ratio, f"{ratio['params']:.2f}"))
        rounds = len(group) // len(middle)
        note = f"{device}; {steps} steps of {_WINDOWS} windows, median of {rounds} rounds, commit {commit}"
        blocks.append("\n".join([f"*{size}*: {note}.", "", _HEAD, "| --- |" + " ---: |" * 8, *lines]))
    return "\n\n".join(blocks)


def _is_present(system: str, size: str, config: str) -> bool:
    """Whether a row was measured with the present settings of its size."""
    present = SIZES[size][system]
    return {key: value for key, value in json.loads(config).items() if key not in _SHAPE} == present


def write(path: Path) -> None:
    """Put the table between the markers of the README of the benchmarks."""
    before, rest = _README.read_text().split(_BEGIN, 1)
    after = rest.split(_END, 1)[1]
    _README.write_text(f"{before}{_BEGIN}\n\n{table(path)}\n\n{_END}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has neuralforecast")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--here", action="store_true", help="all in this process, which has both")
    parser.add_argument("--table", action="store_true", help="write the table of the rows, measure nothing")
    parser.add_argument("--one", choices=[_OURS, "PatchTST"], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        found = measure(options.one, options.sizes[0], options.steps, options.device)
        sys.stdout.write(json.dumps(found) + "\n")
    elif options.table:
        write(options.results)
    else:
        compare(options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
