"""Tables of the project's README, written from the committed result files: `make tables`.

    python -m experiments.readme

Nothing is measured here and no number is typed in. A table stands between `<!-- NAME begin -->` and
`<!-- NAME end -->`; a test demands that the README is what this script writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from experiments.benchmarks import report

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_LENGTHS = (2048, 8192)
_PASSES = ("forward", "backward")
_RATIOS = ("ratio_to_flash", "ratio_to_cudnn")
_NAIVE = {"last_value", "seasonal_naive", "window_mean"}
_ONLY_NAIVE = """

Only naive forecasts so far: no row of a trained model is committed yet, so this table shows what is to be
beaten and says nothing about how `ctsattn` does."""


def kernels() -> str:
    """Time of our kernels, and how fast they are relative to the two stock ones, at two lengths."""
    found = _rows("kernels")
    if found is None:
        return _nothing("python -m experiments.kernels.gpu", "on a machine with a GPU")
    shape = ["head_dim", "causal", "keys"]
    ours = found[(found["backend"] == "triton") & found["keys"].isin(_LENGTHS)]
    ours = ours[ours["pass"].isin(_PASSES)].drop_duplicates([*shape, "pass", "dtype"], keep="last")
    wide = ours.pivot(index=shape, columns="pass", values=["ms", *_RATIOS])
    lines = [
        [
            f"{width} {'causal' if causal else 'full'}",
            f"{keys:,}",
            *(f"{row[value, name]:.2f}" for name in _PASSES for value in ("ms", *_RATIOS)),
        ]
        for (width, causal, keys), row in wide.sort_index(ascending=[True, False, True]).iterrows()
    ]
    head = ["head width", "length"]
    head += [f"{name}{what}" for name in _PASSES for what in (", ms", " × flash", " × cuDNN")]
    named = (", ".join(ours[column].unique()) for column in ("device", "dtype"))
    commits = ours.groupby("head_dim")["commit"].unique()
    timed = "; ".join(f"width {width} at commit {', '.join(found)}" for width, found in commits.items())
    return (
        f"{_markdown(head, lines)}\n\n{', '.join(named)}; above 1 ours is faster. Largest relative error "
        f"{ours['error'].max():.1e}. Timed: {timed}."
    )


def accuracy() -> str:
    """Test error of each model at the first horizon of each data set, settings chosen on validation."""
    found = _rows("benchmarks")
    if found is None:
        return _nothing("python -m experiments.benchmarks.run experiments/benchmarks/configs/*.toml", "")
    found = found.drop_duplicates(
        ["config_hash", "split", "metric"], keep="last"
    )  # a run done again counts once
    best = report.chosen(report.settings(found))
    best = best[(best["condition"] == "all") & (best["members"] == 1)]
    measure = pd.Series("", index=best.index)
    value = pd.Series(float("nan"), index=best.index)
    for name in ("mae", "mase", "smape", "owa", "mse"):
        if f"test {name}/mean" in best:
            there = best[f"test {name}/mean"].notna()
            measure[there], value[there] = name.upper(), best.loc[there, f"test {name}/mean"]
    best = best.assign(measure=measure, value=value, label=_labels(best))[value.notna()]
    first = best["horizon"] == best.groupby("data")["horizon"].transform("min")
    table = best[first].pivot_table(
        index=["data", "horizon", "measure"], columns="label", values="value", sort=False
    )
    lines = [
        [
            str(data),
            f"{horizon:g}" if horizon else "its own",
            str(name),
            *("" if pd.isna(v) else f"{v:.3f}" if v >= 0.1 else f"{v:#.3g}" for v in row),
        ]
        for (data, horizon, name), row in zip(table.index, table.to_numpy(), strict=True)
    ]
    note = "" if set(found["model"]) - _NAIVE else _ONLY_NAIVE
    return _markdown(["data", "horizon", "error", *map(str, table.columns)], lines) + note


def verdict() -> str:
    """The sentences of the verdict on the post's guess."""
    path = HERE / "hypotheses" / "verdict.md"
    if not path.exists():
        return _nothing("make verdict", "once the rows of the experiment are there")
    sentences = re.findall(r"^- .*$", path.read_text(encoding="utf-8").split("\n## ")[0], re.MULTILINE)
    return "\n".join(sentences)


TABLES: dict[str, Callable[[], str]] = {"kernels": kernels, "accuracy": accuracy, "verdict": verdict}


def render(text: str) -> str:
    """Put each table into its place in the text of the README.

    Raises:
        ValueError: If the place of a table is missing.
    """
    for name, table in TABLES.items():
        match = re.search(rf"<!-- {name} begin -->\n(.*?)<!-- {name} end -->", text, re.DOTALL)
        if match is None:
            raise ValueError(f"The README has no place for the table {name!r}.")
        begin, end = match.span(1)
        text = f"{text[:begin]}\n{table()}\n\n{text[end:]}"
    return text


def _rows(kind: str) -> pd.DataFrame | None:
    """All committed rows of a kind of result; None where there are none."""
    files = sorted((HERE / kind / "results").glob("*.csv"))
    frames = [pd.read_csv(file) for file in files if file.stem != "smoke"]
    return pd.concat(frames, ignore_index=True) if frames else None


def _labels(best: pd.DataFrame) -> list[str]:
    pairs = zip(best["model"], best["mixer"], strict=True)
    return [f"{model}, {mixer}" if mixer else str(model) for model, mixer in pairs]


def _nothing(command: str, when: str) -> str:
    return f"*No rows are committed yet: `{command}`{f' {when}' if when else ''}.*"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def main() -> int:
    """Rewrite the tables of the README."""
    README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
