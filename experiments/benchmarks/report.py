"""Tables and plots of the committed rows, written into the README of the benchmarks.

    python -m experiments.benchmarks.report
    python -m experiments.benchmarks.report --choose experiments/benchmarks/configs/chosen.toml

Of several settings of a model the one with the least validation error is shown, and no other: the test
part chooses nothing. With `--choose` these settings are written as a plan that also evaluates the test part.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctsattn.datasets.protocols import PROTOCOLS
from experiments.benchmarks import rows
from experiments.benchmarks.plan import Run

HERE = Path(__file__).parent
_CONDITIONS = ("random-50", "random-25", "bursty-50", "bursty-25", "on_change-50", "on_change-25")
_CELL = ["data", "condition", "horizon", "model", "mixer", "fill", "windows", "members"]


def settings(table: pd.DataFrame) -> pd.DataFrame:
    """One line for each setting: mean and deviation over seeds of each part and metric.

    A setting is a run without its seed and without whether the test part was asked for.
    """
    configs = [json.loads(text) for text in table["config"]]
    without = [{k: v for k, v in config.items() if k not in ("seed", "test")} for config in configs]
    table = table.assign(setting=[json.dumps(config, sort_keys=True) for config in without])
    table["name"] = table["split"] + " " + table["metric"]
    table["mixer"] = table["mixer"].astype(object).fillna("")
    fills = [config.get("options", {}).get("fill", "lines") for config in configs]
    table["fill"] = ["" if fill == "lines" else fill for fill in fills]
    table["windows"] = [config.get("windows", 0) for config in configs]
    table["members"] = [config.get("members", 1) for config in configs]
    value = table.pivot_table(
        index=[*_CELL, "setting"], columns="name", values="value", aggfunc=["mean", "std", "count"]
    )
    extra = table.groupby([*_CELL, "setting"])[
        ["fit_seconds", "predict_seconds", "peak_mib", "params"]
    ].mean()
    value.columns = [f"{name}/{what}" for what, name in value.columns]
    return value.join(extra).reset_index()


def chosen(lines: pd.DataFrame) -> pd.DataFrame:
    """For each cell the setting with the least validation error; the only one where none was validated."""
    lines = lines.copy()
    by = [column for column in ("val mse/mean", "val mase/mean", "val mae/mean") if column in lines]
    lines["_rank"] = lines[by].bfill(axis=1).iloc[:, 0].fillna(0.0) if by else 0.0
    best = lines.sort_values("_rank", kind="stable").drop_duplicates(_CELL)
    return best.drop(columns="_rank").sort_values(_CELL, ignore_index=True)


def tables(lines: pd.DataFrame) -> Iterator[str]:
    """Markdown of all tables."""
    published = tomllib.loads((HERE / "published.toml").read_text())
    best = chosen(lines)
    yield from _long_horizon(best[best["condition"] == "all"], published["long_horizon"])
    yield from _thinned(best[best["condition"] != "all"])
    yield from _records(best, published["records"])
    yield from _competitions(best, published["m4"])


def _long_horizon(best: pd.DataFrame, published: dict[str, Any]) -> Iterator[str]:
    """MSE at the horizons of each table, ours above what was published."""
    source = published.pop("source")
    for data in [d for d in best["data"].unique() if any(d in row for row in published.values())]:
        mine = best[(best["data"] == data) & best["horizon"].gt(0)]
        horizons = sorted(mine["horizon"].unique())
        lines = [
            [_label(*key), *_over(group, horizons, "test mse")]
            for key, group in mine.groupby(["model", "mixer"])
        ]
        standard = [24, 36, 48, 60] if data == "ili" else [96, 192, 336, 720]
        for name, row in published.items():
            known = dict(zip(standard, row.get(data, []), strict=False))
            if set(horizons) <= set(known):
                values = [known[h] for h in horizons]
                lines.append([f"*{name}*", *(f"{v:.3f}" for v in values), f"{np.mean(values):.3f}"])
        yield f"### {data}: MSE at the horizons\n\n{_markdown(['model', *map(str, horizons), 'mean'], lines)}"
    yield f"Published rows in italics: {source}."


def _over(group: pd.DataFrame, horizons: list[int], name: str) -> list[str]:
    """Mean and deviation at each horizon, and the mean over all where all are there."""
    found = group.set_index("horizon")
    means = [found[f"{name}/mean"].get(h, np.nan) for h in horizons]
    spread = found.get(f"{name}/std", pd.Series(dtype=float))
    cells = [_cell(mean, spread.get(h, np.nan)) for h, mean in zip(horizons, means, strict=True)]
    return [*cells, f"{np.mean(means):.3f}" if np.isfinite(means).all() else ""]


def _thinned(best: pd.DataFrame) -> Iterator[str]:
    """MSE of each table under each sampling condition: of all windows, or of some where a peer is slow."""
    if "test mse/mean" not in best:
        return
    for (data, windows), group in best[best["test mse/mean"].notna()].groupby(["data", "windows"]):
        conditions = [name for name in _CONDITIONS if name in set(group["condition"])]
        conditions += sorted(set(group["condition"]) - set(conditions))
        lines = [
            [_label(*key), *(_of(_at(rows_, name), "test mse", 3) for name in conditions)]
            for key, rows_ in group.groupby(["model", "mixer", "fill"])
        ]
        where = f"on {windows} test windows, spread evenly" if windows else "all test windows"
        yield f"### {data}, thinned: MSE, {where}\n\n{_markdown(['model', *conditions], lines)}"


def _at(group: pd.DataFrame, condition: str) -> pd.Series:
    """The line of a condition; empty where there is none."""
    found = group[group["condition"] == condition]
    return found.iloc[0] if len(found) else pd.Series(dtype=float)


def _records(best: pd.DataFrame, published: dict[str, Any]) -> Iterator[str]:
    """MSE and MAE of irregular records."""
    source = published.pop("source")
    for data in [name for name in best["data"].unique() if name in PROTOCOLS]:
        mine, known = best[best["data"] == data], published.get(data, {})
        lines = [
            [
                _label(line["model"], line["mixer"], _averaged(line["members"])),
                *(_of(line, f"test {m}", 5) for m in ("mse", "mae")),
            ]
            for _, line in mine.iterrows()
        ]
        lines += [[f"*{name}*", *(f"{v:.5f}" for v in values)] for name, values in known.items()]
        note = f"\n\nPublished rows in italics: {source}." if known else ""
        yield f"### {data}\n\n{_markdown(['model', 'MSE', 'MAE'], lines)}{note}"


def _averaged(members: int) -> str:
    """How many networks a forecast is the mean of, where there are several."""
    return f"mean of {members} networks" if members > 1 else ""


def _competitions(best: pd.DataFrame, published: dict[str, Any]) -> Iterator[str]:
    """Scores of the ends of series."""
    source = published.pop("source")
    if "test smape/mean" not in best:
        return
    names = [m for m in ("smape", "mase", "owa", "wql", "mae") if f"test {m}/mean" in best]
    for data, mine in best[best["test smape/mean"].notna()].groupby("data"):
        lines = [
            [_label(line["model"], line["mixer"]), *(_of(line, f"test {m}", 3) for m in names)]
            for _, line in mine.iterrows()
        ]
        for name, values in published.get(data, {}).items():
            lines.append([f"*{name}*", *(f"{v:.3f}" for v in values), *[""] * (len(names) - 3)])
        note = f"\n\nPublished rows in italics: {source}." if data in published else ""
        yield f"### {data}\n\n{_markdown(['model', *names], lines)}{note}"


def _label(*words: str) -> str:
    return ", ".join(word for word in words if word)


def _of(line: pd.Series, name: str, digits: int) -> str:
    return _cell(line.get(f"{name}/mean", np.nan), line.get(f"{name}/std", np.nan), digits)


def _cell(mean: float, spread: float = np.nan, digits: int = 3) -> str:
    if not np.isfinite(mean):
        return ""
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if np.isfinite(spread) else "")


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def plots(lines: pd.DataFrame, folder: Path) -> list[Path]:
    """MSE against the horizon for each table, one picture for all; the paths written."""
    from ctsattn.plotting.style import CYCLE, MARKERS, legend_below, panels

    best = chosen(lines)
    best = best[(best["condition"] == "all") & best["horizon"].gt(0)]
    names = [data for data, group in best.groupby("data") if group["horizon"].nunique() > 1]
    if not names:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    columns = min(3, len(names))
    kinds = sorted(best.groupby(["model", "mixer"]).groups)
    looks = {
        key: {"color": CYCLE[place % len(CYCLE)], "marker": MARKERS[place // len(CYCLE) % len(MARKERS)]}
        for place, key in enumerate(kinds)
    }
    figure, axes = panels(len(names), columns=columns)
    for axis, data in zip(axes, names, strict=True):
        for key, group in best[best["data"] == data].groupby(["model", "mixer"]):
            group = group.sort_values("horizon")
            spread = group.get("test mse/std")
            label = _label(*key)
            axis.errorbar(group["horizon"], group["test mse/mean"], spread, label=label, **looks[key])
        axis.set(title=data, xlabel="steps ahead", ylabel="MSE", ylim=(0, 1.06 * axis.dataLim.y1))
        axis.set_xticks(sorted(best.loc[best["data"] == data, "horizon"].unique()))
    legend_below(figure, axes)
    path = folder / "long_horizon.png"
    figure.savefig(path, dpi=120)
    return [path]


def as_plan(lines: pd.DataFrame, seeds: Sequence[int]) -> str:
    """TOML of the chosen settings, the test part asked for, with some seeds."""
    parts = ["# Chosen on validation by report.py; the test part was not looked at."]
    settled = [json.loads(text) for text in chosen(lines)["setting"]]
    for config in [config for config in settled if "peer" not in config]:
        config["seed"] = list(seeds)
        Run(**{**config, "seed": 0}).check()
        parts.append("\n".join(["[[runs]]", *(f"{key} = {_toml(value)}" for key, value in config.items())]))
    return "\n\n".join(parts) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML's form, tables inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + " }"
    return json.dumps(value)


def write(readme: Path, body: str, name: str = "tables") -> None:
    """Put the tables of a name between its markers in the README.

    Raises:
        ValueError: The README has no markers.
    """
    text, begin, end = readme.read_text(), f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if begin not in text or end not in text:
        raise ValueError(f"{readme} has no lines `{begin}` and `{end}` to write between.")
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    readme.write_text(f"{before}{begin}\n\n{body}\n\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", nargs="*", type=Path, help="CSVs of rows; all in results/ by default")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md")
    parser.add_argument("--figures", type=Path, default=HERE / "results" / "figures")
    parser.add_argument("--choose", type=Path, help="write the chosen settings as a plan, and nothing else")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    options = parser.parse_args(arguments)
    paths = options.results or [p for p in sorted(rows.RESULTS.glob("*.csv")) if p.stem != "smoke"]
    table = rows.read(*paths)
    if table.empty:
        sys.stderr.write("There are no rows yet. Make some with experiments.benchmarks.run.\n")
        return 1
    lines = settings(table)
    if options.choose:
        options.choose.write_text(as_plan(lines, options.seeds))
        return 0
    pictures = [
        f"![MSE at the horizons]({p.relative_to(options.readme.parent)})"
        for p in plots(lines, options.figures)
    ]
    write(options.readme, "\n\n".join([*tables(lines), *pictures]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
