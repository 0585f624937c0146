"""Training runs on a toy network, so that the loop itself is what is tested."""

import math
import random
import threading
from dataclasses import fields
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch import nn

from ctsattn.data.batch import Batch
from ctsattn.forecasting.training import Training, train


class SquaredError(nn.Module):
    def loss(self, params: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (params[..., 0] - values).square()


class Constant(nn.Module):
    """Predicts one number."""

    def __init__(self, start: float = 0.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor([start]))
        self.drop = nn.Dropout(dropout)
        self.head = SquaredError()

    def forward(self, batch: Batch) -> torch.Tensor:
        noise = self.drop(torch.ones_like(batch.future_values))
        return (self.level * noise).unsqueeze(-1)


def batch_of(value: float, series: int = 0, queries: int = 3, observed: int = 3) -> Batch:
    nothing, codes = torch.zeros(1, 0), torch.zeros(1, 0, dtype=torch.int64)
    known = torch.arange(queries) < observed
    return Batch(
        past_times=torch.zeros(1, 1, 1),
        past_values=torch.zeros(1, 1, 1),
        past_codes=torch.zeros(1, 1, 1, dtype=torch.int64),
        past_mask=torch.ones(1, 1, 1, dtype=torch.bool),
        past_known=torch.zeros(1, 1, 1, 0),
        past_known_codes=torch.zeros(1, 1, 1, 0, dtype=torch.int64),
        static=nothing,
        static_codes=codes,
        future_times=torch.arange(1, queries + 1).float()[None],
        future_mask=torch.ones(1, queries, dtype=torch.bool),
        future_known=torch.zeros(1, queries, 0),
        future_known_codes=torch.zeros(1, queries, 0, dtype=torch.int64),
        future_values=torch.full((1, 1, queries), value),
        future_observed=known.expand(1, 1, queries),
        loc=torch.zeros(1, 1, dtype=torch.float64),
        scale=torch.ones(1, 1, dtype=torch.float64),
        series=torch.tensor([series]),
        cutoff=torch.zeros(1, dtype=torch.float64),
    )


class Stream:
    """Endless batches from a function of the step."""

    def __init__(self, make) -> None:
        self.make = make

    def __iter__(self):
        step = 0
        while True:
            yield self.make(step)
            step += 1


def fast(**options) -> Training:
    return Training(
        **{"max_steps": 60, "learning_rate": 0.1, "weight_decay": 0.0, "accelerator": "cpu"} | options
    )


def test_training_reaches_the_minimum_of_a_known_problem():
    network = Constant()
    log = train(network, Stream(lambda step: batch_of(2.0)), None, fast(max_steps=200), seed=0)
    assert network.level.item() == pytest.approx(2.0, abs=0.02)
    assert log.steps == log.best_step == 200
    assert log.validation_loss is None
    assert not network.training


def test_unobserved_queries_do_not_enter_the_loss():
    def make(step):
        batch = batch_of(2.0, observed=1)
        batch.future_values[..., 1:] = 1e3
        return batch

    network = Constant()
    train(network, Stream(make), None, fast(max_steps=200), seed=0)
    assert network.level.item() == pytest.approx(2.0, abs=0.02)


def test_the_weights_of_the_best_validation_round_are_kept_and_training_stops_when_it_worsens():
    # The training data pull the level to 2, past the validation optimum at 1.
    network = Constant()
    options = fast(max_steps=500, validate_every=5, patience=3)
    log = train(network, Stream(lambda step: batch_of(2.0)), [batch_of(1.0)], options, seed=0)
    assert network.level.item() == pytest.approx(1.0, abs=0.2)
    assert log.validation_loss == pytest.approx((network.level.item() - 1.0) ** 2, rel=1e-4)
    assert log.steps == log.best_step + 3 * 5


def test_validation_counts_every_query_once_whatever_the_sizes_of_the_batches():
    network = Constant(start=0.0)
    rounds = [batch_of(1.0, observed=3), batch_of(3.0, observed=1)]
    options = fast(max_steps=1, validate_every=1, learning_rate=1e-12)
    log = train(network, Stream(lambda step: batch_of(0.0)), rounds, options, seed=0)
    assert log.validation_loss == pytest.approx((3 * 1.0 + 1 * 9.0) / 4)


def test_a_loss_that_is_not_finite_stops_at_once_and_restores_the_last_good_weights():
    levels = []
    network = Constant()
    network.register_forward_pre_hook(lambda module, args: levels.append(module.level.item()))
    bad = 5
    batches = Stream(lambda step: batch_of(math.nan if step == bad else 2.0, series=step))
    log = train(network, batches, None, fast(), seed=0)
    assert log.bad_series == (5,)
    assert log.steps == 5
    # The last finite loss was that of step 4, taken with the weights that step 4 began with.
    assert network.level.item() == levels[4] != levels[5]
    assert len(levels) == 6


class Break(lightning.Callback):
    """Breaks the weights, as a step that goes too far does."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3:
            with torch.no_grad():
                pl_module.network.level.fill_(math.nan)


def test_a_step_that_breaks_the_weights_is_undone():
    network = Constant(start=1.0)
    options = fast(trainer={"callbacks": [Break()]})
    log = train(network, Stream(lambda step: batch_of(1.0)), None, options, seed=0)
    assert log.bad_series == (0,) and log.steps == 3
    assert math.isfinite(network.level.item())


def test_training_leaves_the_random_states_of_python_numpy_and_torch_alone():
    torch.manual_seed(7)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    train(Constant(dropout=0.5), Stream(lambda step: batch_of(1.0)), None, fast(max_steps=5), seed=3)
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


def level_after(seed: int) -> float:
    network = Constant(dropout=0.5)
    train(network, Stream(lambda step: batch_of(1.0)), None, fast(max_steps=10), seed=seed)
    return network.level.item()


def test_the_seed_decides_the_run_also_when_runs_share_a_process():
    alone = [level_after(seed) for seed in range(4)]
    assert len(set(alone)) > 1
    together: dict[int, float] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: together.__setitem__(seed, level_after(seed)))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(4)] == alone


def test_training_writes_nothing_anywhere_and_says_nothing(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    train(Constant(), Stream(lambda step: batch_of(1.0)), [batch_of(1.0)], fast(max_steps=5), seed=0)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_lightning_options_pass_through():
    class Counter(lightning.Callback):
        steps = 0

        def on_train_batch_end(self, *args) -> None:
            Counter.steps += 1

    options = fast(trainer={"callbacks": [Counter()], "max_steps": 4})
    train(Constant(), Stream(lambda step: batch_of(1.0)), None, options, seed=0)
    assert Counter.steps == 4


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("max_steps", 0, "must be an integer of at least 1, but it is 0"),
        ("max_steps", True, "must be an integer of at least 1, but it is True"),
        ("batch_size", 2.5, "must be an integer of at least 1, but it is 2.5"),
        ("start_windows", 0, "must be an integer of at least 1, but it is 0"),
        ("learning_rate", 0.0, "must be a number above 0, but it is 0.0"),
        ("learning_rate", math.inf, "must be a number above 0, but it is inf"),
        ("learning_rate", "fast", "must be a number above 0, but it is 'fast'"),
        ("precision", "half", "must be one of 32-true, bf16-mixed, 16-mixed, but it is 'half'"),
        ("validation_share", 0.0, "must be a number above 0 and below 1, .* set `patience=None`"),
        ("validation_share", 1, "must be a number above 0 and below 1"),
        ("average", 1.0, "must be a number of at least 0 and below 1, but it is 1.0"),
        ("average", None, "must be a number of at least 0 and below 1, but it is None"),
        ("warmup", math.nan, "must be a number of at least 0 and at most 1, but it is nan"),
        ("warmup", 1.5, "must be a number of at least 0 and at most 1, but it is 1.5"),
        ("impute_share", -1.0, "must be a number of at least 0 and at most 1, but it is -1.0"),
        ("weight_decay", -1.0, "must be a number of at least 0, but it is -1.0"),
        ("gradient_clip", "x", "must be a number of at least 0, but it is 'x'"),
        ("patience", "x", "must be an integer of at least 0 or None, but it is 'x'"),
        ("patience", -1, "must be an integer of at least 0 or None, but it is -1"),
        ("validate_every", 0, "must be an integer of at least 1, but it is 0"),
        ("num_nodes", 0, "must be an integer of at least 1, but it is 0"),
        ("accelerator", 3, "must be a text, but it is 3"),
        ("devices", 1.5, "must be an integer, a text or a list of integers, but it is 1.5"),
        ("strategy", None, "must be a text, but it is None"),
        ("checkpoint_dir", 3, "must be a text, a path or None, but it is 3"),
        ("trainer", None, r"must be a mapping, but it is None. Write set_params\(training__trainer={}\)."),
    ],
)
def test_options_out_of_range_are_refused_by_name(option, value, text):
    with pytest.raises(ValueError, match=f"`Training.{option}` {text}"):
        Training(**{option: value}).check()


@pytest.mark.parametrize("option", [field.name for field in fields(Training)])
def test_every_option_refuses_what_is_nothing(option):
    with pytest.raises(ValueError, match=rf"`Training.{option}` must be .* set_params.training__{option}="):
        Training(**{option: object()}).check()


@pytest.mark.parametrize(
    ("passed", "text"),
    [
        ({"max_steps": 0}, r"`Training.trainer\['max_steps'\]` must be an integer of at least 1 or -1"),
        ({"max_steps": None}, "must be an integer of at least 1 or -1, but it is None"),
        ({"max_epochs": 0}, "must be an integer of at least 1, -1 or None, but it is 0"),
        ({"limit_train_batches": 0}, "must be a number above 0 or None, but it is 0. Take it out"),
        ({"accumulate_grad_batches": 0}, "must be an integer of at least 1, but it is 0"),
        ({"callback": []}, "holds 'callback', and `lightning.Trainer` has no such argument. .* callbacks"),
    ],
)
def test_arguments_of_lightning_that_lead_nowhere_are_refused_by_name(passed, text):
    with pytest.raises(ValueError, match=text):
        fast(trainer=passed).check()


def test_a_run_that_ends_before_its_first_step_says_what_ended_it():
    options = fast(trainer={"max_time": "00:00:00:00"})
    options.check()
    with pytest.raises(ValueError, match=r"before its first step.* max_time='00:00:00:00'. Take it out"):
        train(Constant(), Stream(lambda step: batch_of(1.0)), None, options, seed=0)


def test_one_callback_needs_no_list():
    class Ended(lightning.Callback):
        steps = 0

        def on_train_end(self, trainer: Any, *args: Any) -> None:
            Ended.steps = trainer.global_step

    options = fast(trainer={"callbacks": Ended(), "max_steps": 2})
    train(Constant(), Stream(lambda step: batch_of(1.0)), None, options, seed=0)
    assert Ended.steps == 2
