"""Ranks of values in their channel, maps of each channel, and what questions know of their channel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ctsattn.data.batch import Batch
from ctsattn.models import ContinuousTransformer
from ctsattn.models.ranks import ChannelLinear, Ranks
from tests.models.batches import SPEC, make_batch

SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2}


def long_batch() -> Batch:
    """Many windows, each channel full."""
    torch.manual_seed(0)
    batch = make_batch(rows=200)
    return replace(batch, past_values=torch.randn(200, 4, 20), past_mask=torch.ones(200, 4, 20).bool())


def learned(batch: Batch) -> Ranks:
    ranks = Ranks(4)
    ranks.learn([batch])
    return ranks


def test_scores_of_any_law_are_normal_and_its_wild_values_move_no_other():
    batch = long_batch()
    skewed = replace(batch, past_values=batch.past_values.exp())
    plain, distorted = learned(batch), learned(skewed)
    scores = distorted(skewed.past_values)
    assert scores.mean().item() == pytest.approx(0.0, abs=0.02)
    assert scores.std().item() == pytest.approx(1.0, abs=0.03)
    assert torch.allclose(scores, plain(batch.past_values), atol=0.06)
    wild = skewed.past_values.clone()
    wild[0, 0, 0] = 1e6
    again = learned(replace(skewed, past_values=wild))
    assert torch.allclose(again(skewed.past_values)[1:], scores[1:], atol=1e-2)


def test_hidden_values_and_channels_without_any_teach_nothing():
    batch = long_batch()
    mask = batch.past_mask.clone()
    mask[:, 2] = False
    mask[:100, 0] = False
    values = torch.where(mask, batch.past_values, 50.0)
    ranks, other = learned(replace(batch, past_values=values, past_mask=mask)), Ranks(4)
    assert torch.equal(ranks.knots[2], other.knots[2])
    assert ranks.knots[0].max() < 5.0


def test_levels_of_equal_values_stay_finite():
    batch = long_batch()
    ranks = learned(replace(batch, past_values=batch.past_values.round().clamp(0, 1)))
    scores = ranks(batch.past_values)
    assert scores.isfinite().all()
    assert (ranks(torch.ones(1, 4, 1)) > ranks(torch.zeros(1, 4, 1))).all()


def test_maps_of_channels_start_as_the_shared_one_and_then_differ():
    layer = ChannelLinear(3, 5, 7)
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(layer(x), layer.shared(x))
    with torch.no_grad():
        layer.own[1] += 1.0
    assert torch.equal(layer(x)[:, [0, 2]], layer.shared(x)[:, [0, 2]])
    assert torch.allclose(layer(x)[:, 1], layer.shared(x)[:, 1] + x[:, 1].sum(-1, keepdim=True), atol=1e-5)


def test_questions_know_the_last_value_the_mean_and_how_long_the_window_is():
    network = ContinuousTransformer(**SMALL, show_level=True).build(SPEC)
    batch = make_batch()
    last, mean, length = network._levels(batch)
    row, channel = 1, 0
    seen = batch.past_values[row, channel][batch.past_mask[row, channel]]
    assert last[row, channel] == seen[-1]
    assert mean[row, channel] == pytest.approx(seen.mean().item(), rel=1e-5)
    earliest = batch.past_times[row][batch.past_mask[row]].min()
    assert torch.allclose(length[row], -earliest / SPEC.lookback)


def test_a_warm_up_teaches_the_ranks():
    network = ContinuousTransformer(**SMALL, show_ranks=True, patch=None).build(SPEC)
    before = network.tokens.ranks.knots.clone()
    network.warm_up([make_batch(rows=64)])
    assert not torch.equal(network.tokens.ranks.knots[0], before[0])


def test_ranks_of_patches_are_refused():
    with pytest.raises(ValueError, match=r"`show_ranks` shows observations.*Give `patch=None`"):
        ContinuousTransformer(**SMALL, show_ranks=True, patch=4).build(SPEC)
