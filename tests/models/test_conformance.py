"""Conformance: what every model in `MODELS` owes the Forecaster."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.losses import masked_mean
from ctsattn.models import MODELS, ContinuousTransformer, Linear, SeasonalNaive
from ctsattn.models.continuous_transformer import target_weights
from ctsattn.models.joining import join, only_observed, part
from ctsattn.models.naive import main_period
from ctsattn.models.tokens import ObservationTokens, PatchTokens, make_tokens
from ctsattn.nn import MIXERS
from tests.models.batches import SPEC, ask, make_batch, pad_past, rows_of

SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2}
CONFIGS = {
    **{
        name: kind(**SMALL) if issubclass(kind, ContinuousTransformer) else kind()
        for name, kind in MODELS.items()
    },
    "patches": ContinuousTransformer(**SMALL, patch=4, linear_share=0.5),
    "unscaled": ContinuousTransformer(**SMALL, scaler="none"),
    "joined": ContinuousTransformer(**SMALL, join_channels=True, scaler="channel", balance=1.0),
    "groups": ContinuousTransformer(**SMALL, groups=3),
    "linear_groups": Linear(groups=2),
    "one_by_one": ContinuousTransformer(**SMALL, join_channels=True, mix_channels=False),
    "own_maps": ContinuousTransformer(
        **SMALL, join_channels=True, mix_channels=False, own_maps=True, show_ranks=True, show_level=True
    ),
    "chosen_targets": ContinuousTransformer(**SMALL, choose_targets=True),
    "hidden_tokens": ContinuousTransformer(**SMALL, token_dropout=0.5),
    "levels_of_patches": ContinuousTransformer(**SMALL, patch=4, own_maps=True, show_level=True),
    "joined_patches": ContinuousTransformer(**SMALL, join_channels=True, patch=4),
    "stretches": ContinuousTransformer(**SMALL, patch=4, query_patch=4),
    "stretches_of_observations": ContinuousTransformer(**SMALL, query_patch=5, is_causal=True),
    "joined_stretches": ContinuousTransformer(**SMALL, join_channels=True, query_patch=3),
    "stretches_one_by_one": ContinuousTransformer(
        **SMALL, join_channels=True, mix_channels=False, query_patch=3
    ),
    "no_channel_mixing": ContinuousTransformer(**SMALL, mix_channels=False),
    "causal_squared_error": ContinuousTransformer(**SMALL, is_causal=True, head="squared_error"),
    "seasonal_naive_drift": SeasonalNaive(drift=True),
    **{f"mixer_{mixer}": ContinuousTransformer(**SMALL, mixer=mixer) for mixer in MIXERS},
}


def build_fresh(name: str, spec: TaskSpec = SPEC) -> nn.Module:
    """A network as it is before training."""
    if "stretches" in name:  # questions that know nothing of the future
        spec = replace(spec, num_known=0, known_codes=())
    return CONFIGS[name].build(spec)


def build(name: str, spec: TaskSpec = SPEC) -> nn.Module:
    """A network whose parameters are all away from their starts, so that no part hides behind a zero."""
    network = build_fresh(name, spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network.eval()


@pytest.fixture(params=CONFIGS)
def name(request) -> str:
    return request.param


@pytest.fixture
def network(name) -> nn.Module:
    return build(name)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_output_holds_the_heads_parameters_for_each_target_and_query(network):
    params = network(make_batch())
    assert params.shape == (3, 2, 6, network.head.num_params)
    assert params.dtype == torch.float32
    assert params.isfinite().all()


def test_a_query_depends_on_no_other_query(network):
    batch = make_batch()
    assert_same(network(ask(batch, [4, 1])), network(batch)[:, :, [4, 1]])


def test_a_window_depends_on_no_other_window(network):
    batch = make_batch()
    assert_same(network(rows_of(batch, slice(1, 2))), network(batch)[1:2])


def test_padding_plays_no_part(network):
    batch = make_batch()
    assert_same(network(pad_past(batch, 5)), network(batch))


def test_the_truth_plays_no_part(network):
    batch = make_batch()
    hidden = replace(
        batch,
        future_values=torch.full_like(batch.future_values, torch.nan),
        future_observed=torch.zeros_like(batch.future_observed),
    )
    assert torch.equal(network(hidden), network(batch))


def test_real_times_play_a_part(name, network):
    batch = make_batch()
    stretched = replace(batch, past_times=batch.past_times * 1.3)
    assert not torch.allclose(network(stretched), network(batch), atol=1e-4)


def test_loss_and_gradients_are_finite(network):
    batch = make_batch()
    network.train()
    loss = masked_mean(network.head.loss(network(batch), batch.future_values), batch.future_observed)
    assert loss.isfinite()
    if not network.trainable:
        assert not list(network.parameters())
        return
    loss.backward()
    missing = [n for n, p in network.named_parameters() if p.grad is None]
    assert not missing
    assert all(p.grad.isfinite().all() for p in network.parameters())


def empty(batch: Batch) -> Batch:
    """Windows with nothing observed in the first target, one value in the second, nothing in a covariate."""
    mask = batch.past_mask.clone()
    mask[:, 0], mask[:, 1, 1:], mask[:, 2] = False, False, False
    return replace(
        batch, past_mask=mask, past_values=batch.past_values * mask, past_codes=batch.past_codes * mask
    )


def test_empty_and_single_pasts_are_finite_in_value_and_gradient(network):
    batch = empty(make_batch())
    params = network(batch)
    assert params.isfinite().all()
    if network.trainable:
        network.head.loss(params, batch.future_values).mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_many_observations_at_one_time_are_finite(network):
    batch = make_batch()
    assert network(replace(batch, past_times=torch.full_like(batch.past_times, -1.0))).isfinite().all()


def test_quantiles_never_cross(network):
    batch = make_batch()
    quantiles = network.head.quantiles(network(batch), torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99]))
    assert (quantiles.diff(dim=-1) > 0).all()


def test_state_dict_makes_a_second_network_the_first(name, network):
    second, batch = build(name), make_batch()
    second.load_state_dict(network.state_dict())
    assert torch.equal(second.eval()(batch), network(batch))


def test_a_far_horizon_stays_finite_and_near(network):
    batch = make_batch()
    params = network(replace(batch, future_times=batch.future_times + 50 * SPEC.horizon))
    median = network.head.quantiles(params, torch.tensor([0.5]))
    assert median.isfinite().all()


def test_a_task_without_covariates_and_periods_works(name):
    spec = TaskSpec(lookback=10.0, horizon=3.0)
    assert build(name, spec)(make_batch(spec)).shape[:3] == (3, 1, 6)


def test_seasonal_naive_repeats_the_day_of_hourly_data_however_far_it_looks_back():
    spec = TaskSpec(lookback=400.0, horizon=48.0, periods=(24.0, 168.0))
    batch = make_batch(spec, length=30)
    assert torch.equal(SeasonalNaive().build(spec)(batch), SeasonalNaive(period=24.0).build(spec)(batch))
    assert main_period(replace(spec, lookback=20.0)) is None


CONSTANT = ["last_value", "seasonal_naive", "seasonal_naive_drift", "window_mean", "linear"]


@pytest.mark.parametrize("kind", CONSTANT)
def test_a_constant_past_is_forecast_as_it_is(kind):
    batch = make_batch()
    batch = replace(batch, past_values=batch.past_mask * 1.7)
    median = build(kind).head.quantiles(build(kind)(batch), torch.tensor([0.5]))
    torch.testing.assert_close(median, torch.full_like(median, 1.7), rtol=1e-4, atol=1e-4)


def test_swapping_channels_with_their_identity_swaps_the_forecasts():
    spec = TaskSpec(
        num_targets=3, num_channels=3, channel_codes=(0, 0, 0), num_known=1, lookback=24.0, horizon=12.0
    )
    network, batch, order = build("continuous_transformer", spec), make_batch(spec), torch.tensor([2, 0, 1])
    params = network(batch)
    swapped = replace(
        batch,
        **{n: getattr(batch, n)[:, order] for n in ("past_times", "past_values", "past_mask", "past_codes")},
        past_known=batch.past_known[:, order],
        past_known_codes=batch.past_known_codes[:, order],
    )
    with torch.no_grad():
        for parameter in (
            network.identity.channel.weight,
            network.linear.mixture,
            network.effect.weight,
            network.spread.weight,
        ):
            parameter.copy_(parameter[order].clone())
    assert_same(network(swapped), params[:, order])


def test_linear_is_linear_in_the_past_values():
    network, first, second = build("linear"), make_batch(), make_batch()
    both = replace(first, past_values=2 * first.past_values - 3 * second.past_values * first.past_mask)
    second = replace(first, past_values=second.past_values * first.past_mask)
    locations = [network(batch)[..., 0] for batch in (first, second, both)]
    assert_same(locations[2], 2 * locations[0] - 3 * locations[1])


def test_an_untrained_network_starts_from_the_linear_path():
    batch = make_batch()
    network = ContinuousTransformer(**SMALL).build(SPEC).eval()
    line = Linear().build(SPEC).eval()
    line.linear.load_state_dict(network.linear.state_dict())
    assert_same(network(batch)[..., 0], line(batch)[..., 0])


def test_joined_channels_hear_each_other_in_the_encoder():
    batch = make_batch()
    louder = replace(batch, past_values=batch.past_values * torch.tensor([1.0, 2.0, 1.0, 1.0])[:, None])
    apart, joined = (
        ContinuousTransformer(**SMALL, mix_channels=False, join_channels=join).build(SPEC).eval()
        for join in (False, True)
    )
    for network in (apart, joined):
        nn.init.normal_(network.out.weight)
    assert torch.equal(apart(louder)[:, 0], apart(batch)[:, 0])
    assert not torch.allclose(joined(louder)[:, 0], joined(batch)[:, 0], atol=1e-3)


def test_a_causal_encoder_of_joined_channels_hears_no_later_observation():
    config = ContinuousTransformer(**SMALL, is_causal=True, join_channels=True)
    network, batch = config.build(SPEC).eval(), make_batch()
    tokens = torch.randn(3, 4, 20, 16)
    later = (batch.past_times > -5.0) & batch.past_mask
    changed = torch.where(later[..., None], torch.randn_like(tokens), tokens)

    def encoded(tokens):
        joined = join(tokens, batch.past_times, batch.past_mask)
        return part(joined, network.encoder(joined.tokens, joined.times, joined.mask), tokens)

    first, second = encoded(tokens), encoded(changed)
    assert_same(second[batch.past_mask & ~later], first[batch.past_mask & ~later])
    assert not torch.allclose(second[later], first[later], atol=1e-3)


def test_joined_channels_are_told_apart_and_put_back():
    batch, tokens = make_batch(), torch.randn(3, 4, 20, 16)
    joined = join(tokens, batch.past_times, batch.past_mask)
    assert (joined.times.diff(dim=-1) >= 0).all()
    assert joined.mask.sum() == batch.past_mask.sum()
    assert torch.equal(part(joined, joined.tokens, tokens), tokens)


def test_questions_answered_one_by_one_are_the_same_in_training_where_there_is_a_truth():
    config = ContinuousTransformer(**SMALL, dropout=0.0, join_channels=True, mix_channels=False)
    network, batch = config.build(SPEC), make_batch()
    for layer in (network.out, network.gate):
        nn.init.normal_(layer.weight)
    some, every = network.train()(batch), network.eval()(batch)
    seen = batch.future_observed
    assert 0 < seen.sum() < seen.numel()
    assert_same(some[seen], every[seen])
    assert not torch.allclose(some[~seen], every[~seen], atol=1e-2)


def test_questions_without_a_truth_can_be_left_out_where_only_a_loss_is_asked_for():
    config = ContinuousTransformer(**SMALL, join_channels=True, mix_channels=False)
    network, batch = config.build(SPEC).eval(), make_batch()
    for layer in (network.out, network.gate):
        nn.init.normal_(layer.weight)
    seen, every = batch.future_observed, network(batch)
    with only_observed(nn.ModuleList([network])):
        some = network(batch)
    assert_same(some[seen], every[seen])
    assert not torch.allclose(some[~seen], every[~seen], atol=1e-2)
    assert_same(network(batch), every)


@pytest.mark.parametrize("joined", [False, True])
def test_hidden_tokens_are_hidden_in_training_alone(joined):
    config = ContinuousTransformer(**SMALL, dropout=0.0, token_dropout=0.5, join_channels=joined)
    network, batch = config.build(SPEC), make_batch()
    for layer in (network.out, network.gate):
        nn.init.normal_(layer.weight)
    assert not torch.equal(network.train()(batch), network(batch))
    every = network.eval()(batch)
    assert torch.equal(network(batch), every)
    network.token_dropout = 0.0
    assert_same(network.train()(batch), every)


@pytest.mark.parametrize(("balance", "expected"), [(0.0, [4.0, 1.0]), (1.0, [4.0, 2.0])])
def test_target_weights_follow_units_and_rarity(balance, expected):
    batch = make_batch(rows=8, queries=10)
    observed = torch.ones(8, 2, 10, dtype=torch.bool)
    observed[:, 1, 5:] = False
    scale = torch.tensor([2.0, 1.0], dtype=torch.float64).expand(8, 2)
    weights = target_weights([replace(batch, future_observed=observed, scale=scale)], balance, True)
    torch.testing.assert_close(weights / weights[0], torch.tensor(expected).double() / expected[0])
    counts = torch.tensor([2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close((weights * counts).sum() / counts.sum(), torch.tensor(1.0).double())


def test_a_balanced_loss_is_the_mean_over_targets_of_squared_errors_in_own_units():
    config = ContinuousTransformer(**SMALL, scaler="channel", balance=1.0, head="squared_error")
    network, batch = config.build(SPEC).eval(), make_batch(rows=16)
    scale = torch.tensor([3.0, 0.5], dtype=torch.float64)
    batch = replace(batch, scale=scale.expand(16, 2))
    network.head.set_weights(target_weights([batch], 1.0, True))
    params = torch.randn(16, 2, 6, 2)
    apart = (params[..., 0] - batch.future_values).square() * batch.future_observed
    own = (apart.sum((0, 2)) / batch.future_observed.sum((0, 2))) * scale.square()
    plain = network.head.head.spread_loss(params, batch.future_values)
    spread = masked_mean(network.head.weight * plain, batch.future_observed)
    loss = masked_mean(network.head.loss(params, batch.future_values), batch.future_observed) - spread
    counts = batch.future_observed.sum((0, 2)).double()
    mean_weight = (scale.square() / counts * counts).sum() / counts.sum()
    torch.testing.assert_close(loss.double(), own.sum() / counts.sum() / mean_weight, rtol=1e-4, atol=1e-5)


def test_constant_in_time_gives_one_answer_for_all_queries():
    params = build("constant_in_time")(make_batch())
    assert_same(params, params[:, :, :1].expand_as(params))


@pytest.mark.parametrize("steps", [65, 128, 336, 512, 1000])
def test_long_windows_get_about_48_patches(steps):
    made = make_tokens(ContinuousTransformer(), TaskSpec(lookback=2.0 * steps, median_gap=2.0))
    assert isinstance(made, PatchTokens)
    assert 32 <= (len(made.nodes) - made.length) // made.stride + 1 <= 48


def test_short_windows_get_a_token_for_each_observation():
    made = make_tokens(ContinuousTransformer(), TaskSpec(lookback=128.0, median_gap=2.0))
    assert isinstance(made, ObservationTokens)


def test_without_the_network_training_hears_the_linear_path_alone():
    network = ContinuousTransformer(**SMALL, linear_share=1.0, dropout=0.0).build(SPEC)
    nn.init.normal_(network.out.weight)
    batch = make_batch()
    line = Linear().build(SPEC)
    line.linear.load_state_dict(network.linear.state_dict())
    assert_same(network.train()(batch)[..., 0], line(batch)[..., 0])
    assert not torch.allclose(network.eval()(batch)[..., 0], line(batch)[..., 0])


def test_the_effect_of_a_known_covariate_sits_at_its_own_time():
    spec = TaskSpec(num_known=1, lookback=24.0, horizon=12.0)
    batch = make_batch(spec)
    batch = replace(batch, past_values=(1.5 + 0.8 * batch.past_known[..., 0]) * batch.past_mask)
    network = ContinuousTransformer(**SMALL).build(spec).eval()
    weight = network.known.numbers.weight[:, 0].detach()
    with torch.no_grad():
        network.effect.weight.copy_(0.8 * weight / weight.square().sum())
    location = network(batch)[:, 0, :, 0]
    torch.testing.assert_close(location, 1.5 + 0.8 * batch.future_known[..., 0], rtol=1e-4, atol=1e-4)


def test_mixed_precision_is_near_and_leaves_times_and_linear_path_alone(name, network):
    batch = make_batch()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = network(batch)
        quantiles = network.head.quantiles(mixed, torch.tensor([0.1, 0.5, 0.9]))
    assert mixed.dtype == torch.float32
    assert (quantiles.diff(dim=-1) > 0).all()
    torch.testing.assert_close(mixed, network(batch), rtol=0.05, atol=0.3)
    fresh = build_fresh(name).eval()
    with torch.autocast("cpu", torch.bfloat16):
        location = fresh(batch)[..., 0]
    assert torch.equal(location, fresh(batch)[..., 0])


def test_a_file_without_a_spread_of_its_own_is_read_as_if_it_were_0():
    network = build("continuous_transformer")
    state = network.state_dict()
    del state["spread.weight"]
    network.load_state_dict(state)
    assert not network.spread.weight.any()
