"""Which setting of a closed form the stretches take: the rule, and what it says in words and tables.

The rows are those of `blocked.py`; the test part has no row there. The rule is stated in the README.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.benchmarks.plan import Run

_BEFORE = ", from before"  # at the end of the condition of a stretch that was forecast from those before it
_ANCHORS = {"last": "the last value", "mean": "the mean", "seasonal_mean_0": "the mean by phase"}
_SCALERS = {
    "none": "windows in their own units",
    "log": "logarithms",
    "soft_log": "logarithms above the median",
}
_TOGETHER = ("scaler", "level", "by phase", "by target", "network")  # changes that are also shown together


def scores(table: pd.DataFrame, *, before: bool = False) -> pd.DataFrame:
    """Logarithm of the mean over horizons of the MSE: rows are data sets and settings, columns stretches."""
    table = table[table["condition"].str.endswith(_BEFORE) == before]
    means = table.pivot_table("value", ["data", "config", "condition"], "horizon").mean(axis=1)
    return np.log(means).unstack("condition").dropna()


def choose(found: pd.DataFrame, weights: Sequence[float]) -> tuple[int, pd.DataFrame]:
    """The rule, for one data set: the fewest weights within a standard error of the least mean log error.

    Args:
        found: `[settings, stretches]` log errors.
        weights: How many weights each setting fits.

    Returns:
        Place of the chosen setting; and for each its mean log error less the least, the standard error of
        that difference over the stretches, and its weights.
    """
    best = found.iloc[int(found.mean(axis=1).to_numpy().argmin())]
    less = found - best
    table = pd.DataFrame({"more": less.mean(axis=1), "error": less.sem(axis=1), "weights": list(weights)})
    within = (table["more"] <= table["error"]).to_numpy() | (table["more"] == 0).to_numpy()
    order = np.lexsort((table["more"], table["weights"], ~within))
    return int(order[0]), table


def confirmed(place: int, found: pd.DataFrame, runs: Sequence[Run], before: pd.DataFrame) -> int:
    """The chosen setting, or the choice among those without a level where the level fails going forward.

    Args:
        place: What `choose` took.
        found: `[settings, stretches]` log errors.
        runs: The settings.
        before: Log errors of stretches that were forecast from those before alone, by setting; a level that
            has no rows there is not taken.
    """
    if not runs[place].config().by_level:
        return place
    plain = _plain(found, runs)
    ahead = before.mean(axis=1).reindex(found.index[[place, plain]]).to_numpy()
    return place if ahead[0] <= ahead[1] else plain


def _plain(found: pd.DataFrame, runs: Sequence[Run]) -> int:
    """What the rule takes of the settings without a level."""
    places = [i for i, run in enumerate(runs) if not run.config().by_level]
    chosen, _ = choose(found.iloc[places], [fitted_weights(runs[i]) for i in places])
    return places[chosen]


def fitted_weights(run: Run) -> int:
    """Weights that the closed form fits for the longest horizon, and about those of a network besides."""
    config, own = run.config(), min(run.lookback, 384)
    channels = {"exchange": 8, "weather": 21}.get(run.data, 7)
    more = own * (8 * config.by_phase + channels * config.by_target)
    level = 3 * (1 if config.by_level == "shared" else channels) if config.by_level else 0
    mixture = channels * 12 * max(len(config.anchors) - 1, 0)
    network = 12 * config.num_layers * config.d_model**2 if run.model != "linear" else 0
    return int(run.horizon * (run.lookback + more + level) + mixture + network)


@dataclass(frozen=True)
class Found:
    """What the rows say of one data set.

    Attributes:
        data: Its name.
        runs: The settings.
        logs: `[settings, stretches]` logarithms of the MSE, its mean over the horizons.
        chosen: Place of the setting that the rule takes.
        taken: Place of what is taken now that levels are withdrawn: of the settings without one, where the
            rule takes one that has.
        table: As `choose` returns it.
        ahead: Mean log error of each setting where it was forecast from the stretches before; else NaN.
    """

    data: str
    runs: list[Run]
    logs: np.ndarray
    chosen: int
    taken: int
    table: pd.DataFrame
    ahead: np.ndarray


def read(*paths: Path) -> list[Found]:
    """What the rows say of each data set, in the order of their names."""
    table = pd.concat([pd.read_csv(path) for path in paths])
    logs, later = scores(table), scores(table, before=True)
    return [_found(data, logs.loc[data], later) for data in logs.index.unique("data")]


def _found(data: str, logs: pd.DataFrame, later: pd.DataFrame) -> Found:
    runs = [Run(**json.loads(config)) for config in logs.index]
    before = later.loc[data] if data in later.index.unique("data") else later.droplevel("data")[:0]
    chosen, table = choose(logs, [fitted_weights(run) for run in runs])
    ahead = before.mean(axis=1).reindex(logs.index).to_numpy()
    chosen = confirmed(chosen, logs, runs, before)
    taken = _plain(logs, runs) if runs[chosen].config().by_level else chosen
    return Found(data, runs, logs.to_numpy(), chosen, taken, table, ahead)


def rivals(*paths: Path) -> list[Run]:
    """For each data set what the rule takes of the settings without a level."""
    return [one.runs[_plain(pd.DataFrame(one.logs), one.runs)] for one in read(*paths)]


def report(found: Sequence[Found]) -> str:
    """Markdown: what is chosen for each data set, and what each change of the plain setting gives."""
    lines = [
        "| data | taken | MSE | settings within a standard error | by rules 1 to 4, levels and all | MSE |"
    ]
    lines += ["| --- | --- | ---: | ---: | --- | ---: |"]
    for one in found:
        close = int((one.table["more"] <= one.table["error"]).sum())
        cells = [one.data, *_taken(one, one.taken), f"{close} of {len(one.runs)}"]
        cells += _taken(one, one.chosen) if one.chosen != one.taken else ["the same", ""]
        lines.append(f"| {' | '.join(cells)} |")
    changes = {one.data: _changes(one) for one in found}
    names = sorted({name for some in changes.values() for name in some}, key=_order)
    lines += ["", f"| change | {' | '.join(changes)} |", f"| --- |{' ---: |' * len(changes)}"]
    lines += [f"| {n} | {' | '.join(some.get(n, '') for some in changes.values())} |" for n in names]
    return "\n".join(lines)


def _taken(one: Found, place: int) -> list[str]:
    """A setting in words, and the geometric mean of its errors."""
    return [words(one.runs[place]), f"{np.exp(one.logs[place].mean()):.3f}"]


def _changes(one: Found) -> dict[str, str]:
    """In per cent of the MSE, with its standard error, what a change of the plain setting gives.

    Plain is one kernel over the chosen look-back, from the mean of windows that are scaled.
    """
    plain: dict[str, Any] = {"from": "the mean", "scaler": "standard", "averaged": False, "level": False}
    plain |= {"by phase": False, "by target": False, "network": ""}
    plain = {"look-back": one.runs[one.taken].lookback, **plain}
    known = [_parts(run) for run in one.runs]
    base, cells = one.logs[known.index(plain)], {}
    for parts, logs in zip(known, one.logs, strict=True):
        differ = [key for key in plain if plain[key] != parts[key]]
        if len(differ) == 1 or (differ and set(differ) <= set(_TOGETHER)):
            less = 100 * (logs - base)
            name = " and ".join(_named(key, parts[key]) for key in differ)
            cells[name] = f"{less.mean():+.1f} ± {less.std(ddof=1) / np.sqrt(len(less)):.1f}"
    return cells


def _parts(run: Run) -> dict[str, Any]:
    """What may differ between settings."""
    config = run.config()
    return {
        "look-back": run.lookback,
        "from": " and ".join(_ANCHORS.get(name, name) for name in config.anchors) or "all anchors",
        "scaler": config.scaler,
        "averaged": config.average_lookbacks,
        "level": config.by_level,
        "by phase": config.by_phase,
        "by target": config.by_target,
        "network": "" if run.model == "linear" else _network(run),
    }


def _network(run: Run) -> str:
    """The network on the closed form in words."""
    return f"a network {run.config().d_model} wide, {run.training['max_steps']} steps"


def _named(key: str, value: Any) -> str:
    """A change in words."""
    if key in ("look-back", "from"):
        return f"{key} {value}"
    if key == "scaler":
        return _SCALERS[value]
    if key == "level":
        return "one level" if value == "shared" else "a level for each target"
    return {"averaged": "kernels averaged over look-backs", "network": value}.get(key, key)


def _order(name: str) -> tuple[bool, int, str]:
    """Look-backs last and by their length."""
    is_lookback = name.startswith("look-back")
    return is_lookback, int(name.split()[-1]) if is_lookback else 0, name


def words(run: Run) -> str:
    """A setting in a few words."""
    parts = _parts(run)
    usual = {"scaler": "standard", "averaged": False, "level": False, "by phase": False, "by target": False}
    changed = [key for key, value in {**usual, "network": ""}.items() if parts[key] != value]
    named = [_named(key, parts[key]) for key in changed]
    return ", ".join([f"look-back {parts['look-back']}", f"from {parts['from']}", *named])
