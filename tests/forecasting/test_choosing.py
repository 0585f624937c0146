"""Targets that a trained network is not heard on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ctsattn.forecasting.learner import HeldBatch
from ctsattn.forecasting.scoring import choose_targets
from ctsattn.forecasting.training import Training, train
from ctsattn.models import ContinuousTransformer
from tests.models.batches import SPEC, make_batch

SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0, "head": "squared_error"}


def network_of(**options) -> nn.Module:
    network = ContinuousTransformer(**SMALL, choose_targets=True, **options).build(SPEC)
    nn.init.normal_(network.out.weight)
    return network.eval()


def said(network: nn.Module, batch, heard: float) -> torch.Tensor:
    network.heard_targets.fill_(heard)
    with torch.no_grad():
        return network(batch)[..., 0]


@pytest.mark.parametrize("joined", [False, True])
def test_a_target_is_left_to_the_path_where_that_is_nearer_to_the_truth(joined):
    network, batch = network_of(join_channels=joined, mix_channels=not joined), make_batch(rows=8)
    whole, path = (said(network, batch, heard) for heard in (1.0, 0.0))
    assert not torch.allclose(whole, path, atol=1e-2)
    truth = torch.stack(
        [path[:, 0], whole[:, 1]], dim=1
    )  # the first target is the path's own, the second not
    held = [HeldBatch(replace(batch, future_values=truth))]
    choose_targets(network, held)
    assert network.heard_targets.tolist() == [0.0, 1.0]
    assert not network.training
    torch.testing.assert_close(network(batch)[..., 0], truth, atol=1e-5, rtol=1e-4)


def test_sums_of_other_processes_count_and_networks_without_a_choice_stay_as_they_are():
    network, batch = network_of(), make_batch(rows=8)
    truth = said(network, batch, 1.0)
    others = iter([torch.tensor([1e9, 0.0]), torch.zeros(2)])
    choose_targets(
        network, [HeldBatch(replace(batch, future_values=truth))], lambda sums: sums + next(others)
    )
    assert network.heard_targets.tolist() == [0.0, 1.0]
    plain = ContinuousTransformer(**SMALL).build(SPEC)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    choose_targets(plain, [HeldBatch(batch)])
    assert before.keys() == plain.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in plain.state_dict().items())


def test_training_ends_with_the_choice_that_its_validation_windows_call_for():
    network, held = network_of(), make_batch(rows=16)
    path = said(network, held, 0.0)
    truth = torch.stack([path[:, 0], torch.full_like(path[:, 1], 9.0)], dim=1)
    held = replace(held, future_values=truth)
    network.heard_targets.fill_(1.0)
    batch = replace(make_batch(rows=16), future_values=torch.full_like(truth, 9.0))
    options = Training(max_steps=40, validate_every=10, patience=100, accelerator="cpu", learning_rate=1e-2)
    network.linear.requires_grad_(False)
    train(network, _Endless(batch), [held], options, seed=0)
    assert network.heard_targets.tolist() == [0.0, 1.0]


class _Endless:
    def __init__(self, batch) -> None:
        self.batch = batch

    def __iter__(self):
        while True:
            yield self.batch
