"""Made-up files in the format of each source, twenty rows or so, and frames read once a session."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctsattn.datasets import DATASETS, load
from ctsattn.datasets.download import locate

FIXTURE_ROWS = 20


def _numbers(count: int, columns: int = 1) -> np.ndarray:
    return np.round(np.random.default_rng(7).normal(10.0, 3.0, (count, columns)), 3)


def _dated_table(folder: Path, name: str, channels: list[str]) -> list[Path]:
    stamps = pd.date_range("2030-01-01", periods=FIXTURE_ROWS, freq="h").strftime("%Y-%m-%d %H:%M:%S")
    rows = [
        ",".join([stamp, *map(str, row)])
        for stamp, row in zip(stamps, _numbers(20, len(channels)), strict=True)
    ]
    path = folder / name
    path.write_text("\n".join([",".join(["date", *channels]), *rows]) + "\n")
    return [path]


def _bare_table(folder: Path, name: str, channels: int) -> list[Path]:
    path = folder / f"{name}.gz"
    text = "\n".join(",".join(f"{value:.6f}" for value in row) for row in _numbers(20, channels)) + "\n"
    path.write_bytes(gzip.compress(text.encode()))
    return [path]


def _tsf(folder: Path, name: str) -> list[Path]:
    lines = ["# A café of made-up numbers", "@relation made_up", "@attribute series_name string"]
    lines += ["@attribute start_timestamp date", "@frequency monthly", "@horizon 2", "@missing true", "@data"]
    for i, row in enumerate(_numbers(4, 5)):
        values = [str(value) for value in row]
        values[2] = "?" if i == 1 else values[2]
        lines.append(f"T{i + 1}:19{70 + i}-0{i + 1}-31 00-00-00:{','.join(values)}")
    lines = [line.replace("-02-31", "-02-28").replace("-04-31", "-04-30") for line in lines]
    path = folder / f"{name}_dataset.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}_dataset.tsf", "\n".join(lines).encode("latin-1"))
    return [path]


def _m4(folder: Path, letter: str) -> list[Path]:
    header = lambda n: ",".join(f'"V{i + 1}"' for i in range(n + 1))  # noqa: E731
    train = [header(4), f'"{letter}1","1","2","3","4"', f'"{letter}2","5","6",,']
    test = [header(7), f'"{letter}1",' + ",".join(f'"{i}"' for i in range(10, 17))]
    test.append(f'"{letter}2",' + ",".join(f'"{i}"' for i in range(20, 27)))
    starts = ["series_name,start_timestamp", "T1,1990-01-31 12-00-00", "T2,1991-06-15 12-00-00"]
    paths = [folder / name for name in ("train.csv", "test.csv", "starts.csv")]
    for path, lines in zip(paths, (train, test, starts), strict=True):
        path.write_text("\n".join(lines) + "\n")
    return paths


_ICU_RECORD = """Time,Parameter,Value
00:00,RecordID,{id}
00:00,Age,61
00:00,Gender,1
00:00,Height,-1
00:00,ICUType,3
00:00,Weight,70.5
00:37,HR,88
00:37,HR,90
09:05,Temp,36.9
26:10,,1.9
47:59,HR,77
"""


def _physionet(folder: Path, name: str) -> list[Path]:
    paths = []
    for letter, number in zip("abc", (900001, 900002, 900003), strict=True):
        path = folder / f"set-{letter}.tar.gz"
        record = _ICU_RECORD.format(id=number).encode()
        with tarfile.open(path, "w:gz") as archive:
            entry = tarfile.TarInfo(f"./set-{letter}/{number}.txt")
            entry.size = len(record)
            archive.addfile(entry, io.BytesIO(record))
        paths.append(path)
    return paths


def _activity(folder: Path, name: str) -> list[Path]:
    tags = ["010-000-024-033", "010-000-030-096", "020-000-033-111", "020-000-032-221"]
    lines = []
    for i in range(20):
        ticks = 633_790_226_000_000_000 + 270_000 * i + (1 if i == 5 else 0)
        record = "A01" if i < 12 else "A02"
        lines.append(f"{record},{tags[i % 4]},{ticks},27.05.2009 14:03:25:127,{i}.5,{-i}.25,1.0,walking")
    lines[1] = (
        lines[1].replace(tags[1], tags[0]).replace(str(633_790_226_000_270_000), str(633_790_226_000_000_001))
    )
    path = folder / "ConfLongDemo_JSI.txt"
    path.write_text("\n".join(lines) + "\n")
    return [path]


def _ushcn(folder: Path, name: str) -> list[Path]:
    rng = np.random.default_rng(3)
    values, mask = _numbers(20, 5), (rng.uniform(size=(20, 5)) < 0.5).astype(int)
    columns = {f"Value_{i}": values[:, i] for i in range(5)} | {f"Mask_{i}": mask[:, i] for i in range(5)}
    table = pd.DataFrame({"Time": np.repeat([7.0, 3.5, 160.0, 0.0], 5) + np.tile(np.arange(5), 4), **columns})
    table.index = pd.Index(np.repeat([4, 2], 10), name="ID")
    path = folder / "small_chunked_sporadic.csv"
    table.to_csv(path)
    return [path]


def _asas(folder: Path, name: str) -> list[Path]:
    curves = folder / "asas_training_set.tar.gz"
    with tarfile.open(curves, "w:gz") as archive:
        for star in (777002, 777001):
            lines = [f"{1800.5 + 3 * i + star % 10:.5f},{9 + i / 10:.3f},0.05" for i in range(10)]
            content = ("\n".join(lines) + "\n").encode()
            entry = tarfile.TarInfo(f"asas_training_set/{star}.dat")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    classes = folder / "asas_training_set_classes.dat"
    classes.write_text("filename,class\n777001,Mira\n777002,W_Ursae_Maj\n")
    return [curves, classes]


def _groundwater(folder: Path, name: str) -> list[Path]:
    days = pd.date_range("2030-01-01", periods=20, freq="14D").strftime("%Y-%m-%d")
    lines = [",B00A0001_HERE,B00A0002_THERE"]
    lines += [f"{day},{i / 10},{'' if i % 2 else i / 20}" for i, day in enumerate(days)]
    path = folder / "heads.csv"
    path.write_text("\n".join(lines) + "\n")
    return [path]


_FLASK_COLUMNS = (
    "site_code year month day hour minute second datetime time_decimal air_sample_container_id value "
    "value_unc latitude longitude altitude elevation intake_height method event_number instrument "
    "analysis_datetime qcflag"
)


def _flasks(folder: Path, name: str) -> list[Path]:
    lines = ["# a made-up file", "#", _FLASK_COLUMNS]
    for i in range(20):
        value, flag = -999.99 if i == 4 else 400.0 + i, "N.." if i == 7 else "..."
        moment = pd.Timestamp("2030-01-01T08:30:00") + pd.Timedelta(weeks=i // 2)
        stamp = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        sample = f"2030.0 {i}-00 {value} 0.1 0 0 0 0 0 P {i} L1 2030-02-01T00:00:00 {flag}"
        lines.append(f"XYZ 2030 1 1 8 30 0 {stamp} {sample}")
    path = folder / "co2_mlo_surface-flask_1_ccgg_event.txt"
    path.write_text("\n".join(lines) + "\n")
    return [path]


def _rivers(folder: Path, name: str) -> list[Path]:
    sites = ["choptank_nitrate", "arkansas_ammonia", "potomac_total_phosphorus", "susquehanna_phosphate"]
    table = pd.DataFrame(
        {
            "site": np.repeat(sites, 5),
            "Date": np.tile(pd.date_range("2030-01-01", periods=5, freq="17D"), 4),
            "ConcLow": np.where(np.arange(20) % 6 == 0, np.nan, 1.0),
            "ConcHigh": np.arange(20) / 10 + 1,
            "Uncen": (np.arange(20) % 6 != 0).astype(float),
            "ConcAve": 1.0,
            "Q": 3.0,
        }
    )
    path = folder / "river_samples.parquet"
    table.to_parquet(path)
    return [path] * 4


_ETT = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
_MAKERS: dict[str, Callable[[Path, str], list[Path]]] = {
    **{
        name: lambda f, n: _dated_table(f, f"{n}.csv", _ETT)
        for name in ("etth1", "etth2", "ettm1", "ettm2", "ili")
    },
    "exchange": lambda f, n: _bare_table(f, "exchange_rate.txt", 8),
    "weather": lambda f, n: _dated_table(f, "weather.csv", ["p (mbar)", "wv (m/s)", "OT"]),
    "ecl": lambda f, n: _dated_table(f, "electricity.csv", ["0", "1", "OT"]),
    "traffic": lambda f, n: _bare_table(f, "traffic.txt", 3),
    "solar": lambda f, n: _bare_table(f, "solar_AL.txt", 4),
    "physionet2012": _physionet,
    "activity": _activity,
    "ushcn": _ushcn,
    "asas": _asas,
    "groundwater": _groundwater,
    "co2_flasks": _flasks,
    "river_samples": _rivers,
}


def _make(name: str, folder: Path) -> list[Path]:
    """Write the made-up files of a set and unpack them as `fetch` would."""
    from ctsattn.datasets.download import _member, unpack

    if name in _MAKERS:
        paths = _MAKERS[name](folder, name)
    elif name.startswith("m4_"):
        paths = _m4(folder, name[3].upper())
    else:
        paths = _tsf(folder, name)
    sources = DATASETS[name].sources
    return [
        _member(unpack(path, folder / "unpacked"), source.member)
        if path.name.endswith((".zip", ".tar.gz"))
        else path
        for path, source in zip(paths, sources, strict=True)
    ]


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Path]]:
    """Name of a data set to the paths of its made-up files."""
    done: dict[str, list[Path]] = {}

    def paths(name: str) -> list[Path]:
        if name not in done:
            done[name] = _make(name, tmp_path_factory.mktemp(name))
        return done[name]

    return paths


@pytest.fixture(scope="session")
def real_frame(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pd.DataFrame]:
    """Name of a data set to its real frame; skips where its files are not below CTSATTN_DATA."""
    done: dict[str, pd.DataFrame] = {}
    cache = tmp_path_factory.mktemp("cache")

    def frame(name: str) -> pd.DataFrame:
        place = os.environ.get("CTSATTN_DATA")
        if not place or not Path(place).is_dir():
            pytest.skip("CTSATTN_DATA names no folder of data files")
        missing = [s.names[0] for s in DATASETS[name].sources if locate(s, Path(place)) is None]
        if missing:
            pytest.skip(f"not below CTSATTN_DATA: {', '.join(missing)}")
        if name not in done:
            done[name] = load(name, cache=cache)
        return done[name]

    return frame
