"""Statistics of paired comparisons over data sets: log ratios, bootstrap, Wilcoxon, Holm, equivalence.

The unit is r = log(error of an arm / error of its baseline) for one data set, condition, horizon and seed.
Seeds are averaged first, then horizons, then conditions: a data set is one observation, however often it was
forecast. 100 (e^r - 1) is the change in percent; below zero the arm is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

# A run that diverged counts as an error twice that of its partner: a loss, but not one that decides alone.
FAILURE_RATIO = 2.0
CELL = ["data", "condition", "horizon", "seed"]


@dataclass(frozen=True)
class Interval:
    """A mean over data sets with its bootstrap interval, all as log ratios.

    Attributes:
        mean: Mean over data sets.
        low: Lower end.
        high: Upper end.
        datasets: Number of data sets.
        confidence: Coverage that the interval aims at.
    """

    mean: float
    low: float
    high: float
    datasets: int
    confidence: float = 0.95

    def percent(self) -> tuple[float, float, float]:
        """Mean, lower and upper end as changes in percent."""
        mean, low, high = (100 * np.expm1(x) for x in (self.mean, self.low, self.high))
        return float(mean), float(low), float(high)

    def within(self, margin_percent: float) -> bool:
        """Whether the whole interval lies within plus or minus `margin_percent`: equivalence."""
        _, low, high = self.percent()
        return -margin_percent < low and high < margin_percent


def paired_log_ratios(rows: pd.DataFrame, arm: str, baseline: str, metric: str = "mse") -> pd.DataFrame:
    """Log ratios of `arm` to `baseline`, one row per cell that both were run on.

    Args:
        rows: Result rows with the columns arm, data, condition, horizon, seed, metric and value.
        arm: Name of the arm.
        baseline: Name of the arm it is measured against.
        metric: Metric to compare; lower is better.

    Returns:
        Columns data, condition, horizon, seed and r, and `blocks`, errors of both on stretches of windows
        `[2, stretches]`, where the rows have them. A run that is not finite counts as a loss by the factor
        `FAILURE_RATIO`, two such runs as a draw.

    Raises:
        ValueError: A cell was run by only one of the two, or twice by one.
    """
    wanted = rows[rows["metric"].eq(metric) & rows["arm"].isin([arm, baseline])]
    twice = wanted.duplicated([*CELL, "arm"])
    if twice.any():
        raise ValueError(
            f"{int(twice.sum())} runs stand twice in the rows, first {wanted[twice].iloc[0][CELL].to_dict()}."
        )
    indexed = wanted.set_index([*CELL, "arm"])
    table = indexed["value"].unstack("arm")
    lonely = table.reindex(columns=[arm, baseline]).index.size - _both_present(wanted, arm, baseline)
    if lonely:
        raise ValueError(
            f"{lonely} cells were run by only one of {arm!r} and {baseline!r}. Finish the runs first."
        )
    found = table.assign(r=_log_ratio(table[arm], table[baseline]))[["r"]]
    if "blocks" in indexed and indexed["blocks"].notna().all():
        found["blocks"] = _block_pairs(indexed["blocks"].unstack("arm"), arm, baseline, found["r"])
    return found.reset_index()


def dataset_means(ratios: pd.DataFrame) -> pd.Series:
    """One number per data set: the mean over seeds, then horizons, then conditions."""
    cells = ratios.groupby(["data", "condition", "horizon"])["r"].mean()
    return cells.groupby(["data", "condition"]).mean().groupby("data").mean()


def bootstrap(ratios: pd.DataFrame, draws: int = 10_000, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Mean over data sets with a bias-corrected and accelerated interval.

    Drawn anew are data sets, within each its seeds, and stretches of test windows where the ratios have them.

    Args:
        ratios: What `paired_log_ratios` returns.
        draws: Bootstrap samples.
        confidence: Coverage of the interval.
        seed: Seed of the resampling.

    References:
        Efron, "Better bootstrap confidence intervals", JASA 82 (1987).
    """
    values = dataset_means(ratios).to_numpy()
    sample = _resampled_means(ratios, draws, np.random.default_rng(seed))
    low, high = _bca(sample, values, np.mean, confidence)
    return Interval(float(values.mean()), low, high, len(values), confidence)


def difference(first: pd.DataFrame, second: pd.DataFrame, draws: int = 10_000, seed: int = 0) -> Interval:
    """Difference of two mean log ratios over their own data sets, with a percentile interval."""
    rng = np.random.default_rng(seed)
    sample = _resampled_means(first, draws, rng) - _resampled_means(second, draws, rng)
    low, high = np.quantile(sample, [0.025, 0.975])
    one, two = dataset_means(first), dataset_means(second)
    return Interval(float(one.mean() - two.mean()), float(low), float(high), len(one) + len(two))


def wilcoxon(ratios: pd.DataFrame) -> float:
    """Two-sided p of the signed-rank test that the data sets' means are centred at 0."""
    means = dataset_means(ratios).to_numpy()
    if not np.any(means):
        return 1.0
    return float(stats.wilcoxon(means).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values of a family by Holm's step-down rule, in the given order."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def slope(ratios: pd.DataFrame, covariate: str, draws: int = 10_000, seed: int = 0) -> tuple[Interval, float]:
    """Slope of r on a covariate within data sets: cluster bootstrap, and one-sided p that it is not negative.

    Args:
        ratios: Log ratios with a column named `covariate`; each data set has its own level.
        covariate: What r is regressed on.
        draws: Bootstrap samples of data sets.
        seed: Seed of the resampling.
    """
    centred = ratios[["r", covariate]] - ratios.groupby("data")[["r", covariate]].transform("mean")
    products = pd.DataFrame({"xy": centred["r"] * centred[covariate], "xx": centred[covariate] ** 2})
    sums = products.groupby(ratios["data"]).sum().to_numpy()
    if not sums[:, 1].any():
        raise ValueError(f"`{covariate}` does not vary within any data set.")
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(sums), size=(draws, len(sums)))
    drawn = sums[picks].sum(axis=1)
    sample = drawn[:, 0] / np.where(drawn[:, 1] > 0, drawn[:, 1], np.nan)
    low, high = np.nanquantile(sample, [0.025, 0.975])
    estimate = sums[:, 0].sum() / sums[:, 1].sum()
    return Interval(float(estimate), float(low), float(high), len(sums)), float(np.nanmean(sample >= 0))


def _both_present(wanted: pd.DataFrame, arm: str, baseline: str) -> int:
    """Number of cells in which both arms have a row, finite or not."""
    arms = wanted.groupby(CELL)["arm"].nunique()
    return int((arms == len({arm, baseline})).sum())


def _log_ratio(arm: pd.Series, baseline: pd.Series) -> pd.Series:
    ours, theirs = (np.isfinite(x) & (x > 0) for x in (arm, baseline))
    ratio = pd.Series(0.0, index=arm.index)
    ratio[ours & theirs] = np.log(arm[ours & theirs] / baseline[ours & theirs])
    ratio[~ours & theirs] = np.log(FAILURE_RATIO)
    ratio[ours & ~theirs] = -np.log(FAILURE_RATIO)
    return ratio


def _block_pairs(blocks: pd.DataFrame, arm: str, baseline: str, r: pd.Series) -> list[np.ndarray]:
    """Errors of both arms on stretches of windows, `[2, stretches]`; of a failed run what its r says."""
    pairs = []
    for ours, theirs, ratio in zip(blocks[arm], blocks[baseline], r, strict=True):
        pair = np.array([[float(x) for x in text.split()] for text in (ours, theirs)])
        failed = ~np.isfinite(pair).all() or (pair <= 0).any()
        pairs.append(
            np.stack([np.full(pair.shape[1], np.exp(ratio)), np.ones(pair.shape[1])]) if failed else pair
        )
    return pairs


def _resampled_means(ratios: pd.DataFrame, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Means over data sets drawn with replacement, each with seeds and stretches drawn anew, `[draws]`."""
    inner = np.stack([_resampled(table, draws, rng) for _, table in ratios.groupby("data")])
    picks = rng.integers(len(inner), size=(draws, len(inner)))
    # the same data set drawn twice brings two inner draws
    return inner[picks, rng.integers(draws, size=picks.shape)].mean(axis=1)


def _resampled(table: pd.DataFrame, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Mean log ratio of one data set with its seeds and stretches of windows drawn anew, `[draws]`."""
    cells = table.sort_values(["condition", "horizon", "seed"])
    seeds = cells["seed"].nunique()
    if len(cells) != seeds * len(cells[["condition", "horizon"]].drop_duplicates()):
        raise ValueError(f"Some seeds of {table['data'].iloc[0]} lack a condition. Finish the runs first.")
    weight = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
    if "blocks" not in cells:
        return (cells["r"].to_numpy().reshape(-1, seeds) @ weight.T).mean(axis=0)
    # [conditions, seeds, arms, stretches]
    blocks = np.stack(cells["blocks"].to_list()).reshape(-1, seeds, 2, cells["blocks"].iloc[0].shape[1])
    stretches = blocks.shape[-1]
    share = rng.multinomial(stretches, np.full(stretches, 1 / stretches), size=draws) / stretches
    errors = np.log(blocks @ share.T)
    return ((errors[:, :, 0] - errors[:, :, 1]) * weight.T).sum(axis=1).mean(axis=0)


def _bca(
    sample: np.ndarray, values: np.ndarray, statistic: Callable[[np.ndarray], float], confidence: float
) -> tuple[float, float]:
    """Ends of the bias-corrected and accelerated interval; acceleration by leaving out each data set."""
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if np.ptp(sample) == 0:
        return float(sample[0]), float(sample[0])
    below = np.mean(sample < statistic(values)) + np.mean(sample == statistic(values)) / 2
    bias = stats.norm.ppf(np.clip(below, 1 / len(sample), 1 - 1 / len(sample)))
    left_out = (
        np.array([statistic(np.delete(values, i)) for i in range(len(values))]) if len(values) > 1 else values
    )
    pull = left_out.mean() - left_out
    spread = np.sum(pull**2) ** 1.5
    acceleration = np.sum(pull**3) / (6 * spread) if spread > 0 else 0.0
    z = bias + stats.norm.ppf(tails)
    low, high = np.quantile(sample, stats.norm.cdf(bias + z / (1 - acceleration * z)))
    return float(low), float(high)
