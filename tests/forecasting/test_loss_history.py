"""The losses of a run are kept with the model, in a table that stays small."""

import numpy as np
import pandas as pd
import pytest

from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.forecasting.loss_history import LossHistory
from ctsattn.models import SeasonalNaive


def fit(**training):
    df = pd.DataFrame({"ds": np.arange(80.0), "y": np.sin(np.arange(80) / 3)})
    return Forecaster(horizon=6.0, training=Training(**training), verbose=False).fit(df)


def test_each_row_holds_the_mean_training_loss_since_the_row_before_and_the_round_at_its_step():
    history = LossHistory(2)
    for step, loss in enumerate([4.0, 2.0, 1.0, 3.0, 5.0], start=1):
        history.add(step, loss)
        if step == 2:
            history.validated(step, 2.5)
    assert history.rows() == ((2, 3.0, 2.5), (4, 2.0, None), (5, 5.0, None))


def test_a_round_between_two_rows_has_a_row_of_its_own():
    history = LossHistory(10)
    history.add(1, 4.0)
    history.validated(1, 3.0)
    history.add(2, 2.0)
    history.validated(2, float("inf"))
    assert history.rows() == ((1, 4.0, 3.0), (2, 2.0, None))


def test_a_long_run_keeps_few_rows_and_the_mean_of_its_losses():
    history = LossHistory(1)
    for step in range(1, 100_001):
        history.add(step, float(step))
    rows = history.rows()
    assert len(rows) <= 400 and rows[-1][0] == 100_000
    steps = np.diff([0, *(row[0] for row in rows)])
    assert np.average([row[1] for row in rows], weights=steps) == pytest.approx(50_000.5)


def test_a_history_goes_on_from_what_it_wrote_down():
    one, other = LossHistory(3), LossHistory(3)
    for step in range(1, 6):
        one.add(step, 1.0 / step)
    other.restore(one.state())
    for history in (one, other):
        history.add(6, 0.1)
        history.validated(6, 0.2)
    assert one.rows() == other.rows()


def test_a_fit_shows_its_losses_and_a_loaded_model_the_same(tmp_path):
    forecaster = fit(max_steps=7, validate_every=2)
    losses = forecaster.losses_
    assert losses["step"].tolist() == [2, 4, 6, 7]
    assert losses["train"].notna().all()
    assert losses["val"].min() == forecaster.training_log_.validation_loss
    forecaster.save(tmp_path / "m.ctsattn")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "m.ctsattn").losses_, losses)


def test_without_validation_there_are_training_losses_alone():
    losses = fit(max_steps=5, validate_every=2, patience=None).losses_
    assert losses["step"].tolist() == [2, 4, 5] and losses["val"].isna().all()


def test_a_model_without_parameters_has_an_empty_table():
    df = pd.DataFrame({"ds": np.arange(30.0), "y": np.arange(30.0)})
    assert Forecaster(model=SeasonalNaive(), verbose=False).fit(df).losses_.empty
