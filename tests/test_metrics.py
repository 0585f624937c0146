import numpy as np
import pandas as pd
import polars as pl
import pytest
from utilsforecast.evaluation import evaluate as uf_evaluate
from utilsforecast.losses import mae as uf_mae

from ctsattn import metrics

QUANTILES = [0.1, 0.25, 0.5, 0.75, 0.9]

# On the arrays of `random_task`: gluonts 0.17.0 `gluonts.evaluation.metrics` (mean over series; weighted
# quantile loss is the sum over all rows divided by the sum of |y|) and fev 0.10.0 `fev.metrics`.
GLUONTS = {
    "mase": 0.6618596831497704,
    "msis-80": 4.239199536106213,
    "smape": 0.29111677728523483,
    "mse": 12.537933958333333,
    "wql": 0.21538210335813393,
}
FEV = {
    "mae": 2.780958333333333,
    "mse": 12.537933958333332,
    "rmse": 3.540894513866988,
    "mase": 0.6618596831497704,
    "wql": 0.21538210335813393,
    "smape": 0.2911167772852349,
}


def random_task() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(20)
    series, past_rows, rows = 3, 30, 8
    past = rng.normal(10, 3, (series, past_rows)).round(3)
    truth = rng.normal(10, 3, (series, rows)).round(3)
    quantiles = np.sort(rng.normal(10, 3, (series, rows, 5)).round(3), -1)
    ids = np.array(["a", "b", "c"])
    train = pd.DataFrame(
        {
            "unique_id": ids.repeat(past_rows),
            "ds": np.tile(np.arange(past_rows), series),
            "y": past.ravel(),
        }
    )
    frame = pd.DataFrame(
        {
            "unique_id": ids.repeat(rows),
            "ds": np.tile(past_rows + np.arange(rows), series),
            "y": truth.ravel(),
            "m": quantiles[..., 2].ravel(),
            "m-lo-80": quantiles[..., 0].ravel(),
            "m-hi-80": quantiles[..., 4].ravel(),
            "m-lo-50": quantiles[..., 1].ravel(),
            "m-hi-50": quantiles[..., 3].ravel(),
        }
    )
    return frame, train


def pooled(frame: pd.DataFrame, names: list[str], **options) -> dict[str, float]:
    scores = metrics.evaluate(frame, names, by=(), **options)
    return dict(zip(scores["metric"], scores["m"], strict=True))


@pytest.mark.parametrize("oracle", [GLUONTS, FEV], ids=["gluonts", "fev"])
def test_scores_agree_with_the_definitions_of_gluonts_and_fev(oracle):
    frame, train = random_task()
    names = ["mae", "mse", "rmse", "smape", "mase", "msis", "wql"]
    ours = pooled(frame, names, train_df=train, seasonality=4, level=[80])
    for name, value in oracle.items():
        assert ours[name] == pytest.approx(value, rel=1e-12), name


def test_coverage_is_the_share_of_truths_inside_the_band():
    frame, _ = random_task()
    inside = frame["y"].between(frame["m-lo-80"], frame["m-hi-80"]).mean()
    assert pooled(frame, ["coverage"], level=[80, 50])["coverage-80"] == pytest.approx(inside)
    assert 0 < inside < 1


def test_pinball_and_crps_follow_their_formula():
    frame, _ = random_task()
    columns = dict(zip(QUANTILES, ["m-lo-80", "m-lo-50", "m", "m-hi-50", "m-hi-80"], strict=True))
    error = {q: frame["y"] - frame[c] for q, c in columns.items()}
    expected = np.mean([np.maximum(q * e, (q - 1) * e).mean() for q, e in error.items()])
    ours = pooled(frame, ["pinball", "crps"])
    assert ours["pinball"] == pytest.approx(expected)
    assert ours["crps"] == pytest.approx(2 * expected)
    one = pooled(frame, ["pinball"], quantiles=[0.1])["pinball"]
    assert one == pytest.approx(np.maximum(0.1 * error[0.1], -0.9 * error[0.1]).mean())


def test_a_forecast_that_is_not_finite_is_refused_with_its_place():
    frame, _ = random_task()
    for column in ("m", "m-lo-80"):
        for bad in (np.nan, np.inf):
            broken = frame.copy()
            broken.loc[9, column] = bad
            with pytest.raises(ValueError, match=rf"'{column}' is not finite in 1 of 24 rows.*'b'.*31"):
                metrics.evaluate(broken, ["mae"])


def test_rows_without_truth_are_left_out_and_counted():
    frame, _ = random_task()
    gappy = frame.copy()
    gappy.loc[[0, 1, 8], "y"] = np.nan
    scores = metrics.evaluate(gappy, ["mae"])
    assert scores["rows"].tolist() == [6, 7, 8]
    kept = frame.drop(index=[0, 1, 8])
    assert pooled(gappy, ["mae"])["mae"] == pytest.approx((kept["y"] - kept["m"]).abs().mean())


def test_a_series_without_any_truth_is_shown_with_no_rows_and_no_score():
    frame, _ = random_task()
    frame.loc[frame["unique_id"] == "b", "y"] = np.nan
    scores = metrics.evaluate(frame, ["mae", "rmse"])
    row = scores[(scores["unique_id"] == "b") & (scores["metric"] == "rmse")]
    assert row["rows"].item() == 0
    assert np.isnan(row["m"].item())


def test_pooling_counts_every_row_once_whatever_the_lengths_of_the_series():
    frame, _ = random_task()
    uneven = frame.drop(index=range(1, 8))  # series a keeps one row
    assert pooled(uneven, ["mae"])["mae"] == pytest.approx((uneven["y"] - uneven["m"]).abs().mean())
    per_series = metrics.evaluate(uneven, ["mae"])
    weighted = np.average(per_series["m"], weights=per_series["rows"])
    assert pooled(uneven, ["mae"])["mae"] == pytest.approx(weighted)


@pytest.mark.parametrize(("past", "truth", "expected"), [(5.0, 5.0, 0.0), (5.0, 10.0, 1.0), (0.0, 3.0, 3.0)])
def test_scaled_scores_of_constant_series_are_defined(past, truth, expected):
    train = pd.DataFrame({"unique_id": "a", "ds": range(6), "y": past})
    frame = pd.DataFrame({"unique_id": "a", "ds": [6, 7], "y": truth, "m": past})
    assert pooled(frame, ["mase"], train_df=train)["mase"] == pytest.approx(expected)


def test_the_error_scale_uses_only_training_rows_up_to_the_cutoff():
    train = pd.DataFrame({"unique_id": "a", "ds": range(8), "y": [0.0, 1, 0, 1, 0, 100, 0, 100]})
    frame = pd.DataFrame({"unique_id": "a", "ds": [5, 8], "cutoff": [4, 7], "y": 1.0, "m": 3.0})
    scores = metrics.evaluate(frame, ["mase"], train_df=train)
    assert scores["m"].tolist() == pytest.approx([2.0 / 1.0, 2.0 / np.abs(np.diff(train["y"])).mean()])


def test_scores_of_one_series_do_not_depend_on_the_others_or_on_the_order_of_rows():
    frame, train = random_task()
    names = ["mae", "mase", "msis", "wql"]
    options = {"train_df": train, "seasonality": 4}
    whole = metrics.evaluate(frame.sample(frac=1, random_state=1), names, **options)
    alone = metrics.evaluate(frame[frame["unique_id"] == "b"], names, **options)
    of_b = whole[whole["unique_id"] == "b"]
    np.testing.assert_allclose(of_b["m"], alone["m"], rtol=1e-12)


def test_polars_in_gives_polars_out_with_the_same_numbers():
    frame, train = random_task()
    ours = metrics.evaluate(pl.from_pandas(frame), ["mae", "mase"], train_df=pl.from_pandas(train))
    assert isinstance(ours, pl.DataFrame)
    expected = metrics.evaluate(frame, ["mae", "mase"], train_df=train)
    assert ours["unique_id"].to_list() == expected["unique_id"].tolist()
    np.testing.assert_allclose(ours["m"].to_numpy(), expected["m"])


def test_where_nothing_is_missing_the_numbers_are_those_of_utilsforecast():
    frame, _ = random_task()
    theirs = uf_evaluate(frame, [uf_mae], models=["m"])
    np.testing.assert_allclose(metrics.evaluate(frame, ["mae"])["m"], theirs["m"])


def test_owa_is_the_mean_of_the_two_relative_scores():
    frame, train = random_task()
    frame["naive2"] = frame["m"] + 1.0
    scores = metrics.evaluate(frame, ["smape", "mase"], by=(), models=["m", "naive2"], train_df=train)
    table = scores.set_index("metric")
    expected = (table["m"] / table["naive2"]).mean()
    assert metrics.owa(scores, "naive2") == {"m": pytest.approx(expected)}
    with pytest.raises(ValueError, match="needs the scores 'smape' and 'mase'"):
        metrics.owa(scores, "other")


def test_missing_columns_and_unknown_scores_are_named():
    frame, _ = random_task()
    with pytest.raises(ValueError, match=r"Unknown scores \['mea'\]"):
        metrics.evaluate(frame, ["mea"])
    with pytest.raises(ValueError, match=r"level 95 needs the columns 'm-lo-95', 'm-hi-95'"):
        metrics.evaluate(frame, ["coverage"], level=[95])
    with pytest.raises(ValueError, match=r"Pass it: evaluate\(\.\.\., train_df"):
        metrics.evaluate(frame, ["mase"])
    with pytest.raises(ValueError, match=r"no column \['z'\]"):
        metrics.evaluate(frame, ["mae"], target_col="z")
