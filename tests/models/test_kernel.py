"""The learned kernel in closed form: what all share, what phases and targets have of their own."""

from __future__ import annotations

import pytest
import torch

from ctsattn.data.batch import TaskSpec
from ctsattn.models import ContinuousTransformer, Linear
from ctsattn.models.kernel import LearnedKernel
from ctsattn.models.level import levels_of
from ctsattn.models.linear_path import LinearPath
from ctsattn.models.ridge import KernelRows, Stretches, recent, stretches
from tests.models.batches import SPEC, make_batch

DAILY = TaskSpec(
    num_targets=2, num_channels=2, channel_codes=(0, 0), lookback=24.0, horizon=4.0, periods=(8.0,)
)


def windows(kernel: LearnedKernel, count: int = 1500) -> tuple[torch.Tensor, torch.Tensor]:
    """Pasts at the nodes `[windows, targets, nodes]` and cutoffs in order, one unit apart."""
    path = torch.randn(count, 2, len(kernel.nodes))
    return recent(path, path.shape[-1]), torch.arange(float(count), dtype=torch.float64)


def rows_of(
    kernel: LearnedKernel, path: torch.Tensor, cutoff: torch.Tensor, truth: torch.Tensor
) -> KernelRows:
    at = torch.arange(1.0, 5.0).expand(len(path), 4)
    return kernel.rows(path, truth, torch.ones_like(truth, dtype=torch.bool), at, cutoff)


def error(kernel: LearnedKernel, path: torch.Tensor, cutoff: torch.Tensor, truth: torch.Tensor) -> float:
    at = torch.arange(1.0, 5.0).expand(len(path), 4)
    return (kernel.answer(path, at, cutoff) - truth).square().mean().item() / truth.square().mean().item()


@pytest.mark.parametrize(("by_phase", "most"), [(False, 1.1), (True, 0.05)])
def test_a_kernel_that_turns_with_the_phase_is_found_only_by_one_that_may_turn(by_phase, most):
    kernel = LearnedKernel(DAILY, by_phase=by_phase)
    path, cutoff = windows(kernel)
    angle = 2 * torch.pi * cutoff.float()[:, None, None] / 8
    truth = torch.cos(angle) * path[..., -4:]
    kernel.solve([rows_of(kernel, path[i::3], cutoff[i::3], truth[i::3]) for i in range(3)])
    found = error(kernel, path, cutoff, truth)
    assert found < most
    assert by_phase or found > 0.9


@pytest.mark.parametrize("by_target", [False, True])
@pytest.mark.parametrize(("by_level", "most"), [(False, 1.1), (True, 0.02)])
def test_what_forecasts_return_to_is_found_only_where_levels_are_looked_at(by_level, most, by_target):
    kernel = LearnedKernel(DAILY, by_level=by_level, by_target=by_target)
    path, cutoff = windows(kernel)
    usual, mean = torch.tensor([[100.0], [-2.0]]), 10 * torch.randn(len(path), 2, 1)
    path = path + usual + mean
    truth = -torch.tensor([0.2, 0.4, 0.6, 0.8]) * mean
    kernel.solve([rows_of(kernel, path[i::3], cutoff[i::3], truth[i::3]) for i in range(3)])
    at = torch.arange(1.0, 5.0).expand(len(path), 4)
    centred = recent(path, path.shape[-1])
    left = kernel.answer(centred, at, cutoff, levels_of(path)) - truth
    found = left.square().mean().item() / truth.square().mean().item()
    assert found < most
    assert by_level or found > 0.9


@pytest.mark.parametrize(("by_level", "most"), [("shared", 0.02), (True, 0.02), (False, 1.1)])
def test_a_level_to_which_all_targets_return_is_learned_from_all(by_level, most):
    kernel = LearnedKernel(DAILY, by_level=by_level)
    path, cutoff = windows(kernel)
    mean = 10 * torch.randn(len(path), 2, 1)
    path, truth = path + 100.0 + mean, -torch.tensor([0.2, 0.4, 0.6, 0.8]) * mean
    kernel.solve([rows_of(kernel, path[i::3], cutoff[i::3], truth[i::3]) for i in range(3)])
    said = kernel.answer(
        recent(path, path.shape[-1]), torch.arange(1.0, 5.0).expand(len(path), 4), cutoff, levels_of(path)
    )
    found = (said - truth).square().mean().item() / truth.square().mean().item()
    assert found < most
    assert by_level or found > 0.9
    if by_level:
        assert len(kernel.by_level.weight) == (1 if by_level == "shared" else 2)


def test_a_target_that_is_never_asked_for_has_no_level_and_spoils_no_other():
    kernel = LearnedKernel(DAILY, by_level=True)
    path, cutoff = windows(kernel)
    mean = 10 * torch.randn(len(path), 2, 1)
    truth, asked = -0.5 * mean.expand(-1, -1, 4), torch.ones(len(path), 2, 4, dtype=torch.bool)
    asked[:, 1] = False
    at = torch.arange(1.0, 5.0).expand(len(path), 4)
    kernel.solve([kernel.rows(path + mean, truth, asked, at, cutoff)])
    assert all(value.isfinite().all() for value in kernel.state_dict().values())
    said = kernel.by_level(levels_of(path + mean))
    assert (said[:, 1] == 0).all()
    assert (said[:, 0] - truth[:, 0]).square().mean() < 0.1 * truth[:, 0].square().mean()


def test_one_level_for_all_does_not_tell_targets_apart():
    kernel = LearnedKernel(DAILY, by_level="shared")
    path, cutoff = windows(kernel)
    mean = 10 * torch.randn(len(path), 2, 1)
    truth = torch.tensor([[[1.0], [-1.0]]]) * mean.expand(-1, -1, 4)  # one target returns as the other leaves
    kernel.solve([rows_of(kernel, path + mean, cutoff, truth)])
    said = kernel.by_level(levels_of(path + mean))
    assert said.abs().max() < 0.2 * truth.abs().max()


def test_an_unknown_kind_of_level_is_refused():
    with pytest.raises(ValueError, match="`by_level` must be False, True or 'shared', but it is 'own'"):
        LearnedKernel(DAILY, by_level="own")


def test_levels_need_units_that_windows_share():
    with pytest.raises(ValueError, match="`by_level` needs units"):
        Linear(by_level=True).build(SPEC)
    for kind in (True, "shared"):
        network, batch = Linear(by_level=kind, by_target=True, scaler="channel").build(SPEC), make_batch()
        network.warm_up([batch])
        assert network.eval()(batch).isfinite().all()


@pytest.mark.parametrize(("by_target", "most"), [(False, 1.1), (True, 0.05)])
def test_what_targets_have_of_their_own_is_found_only_by_kernels_of_their_own(by_target, most):
    kernel = LearnedKernel(DAILY, by_target=by_target)
    path, cutoff = windows(kernel)
    truth = path[..., -4:] * torch.tensor([1.0, -1.0])[:, None]
    kernel.solve([rows_of(kernel, path, cutoff, truth)])
    found = error(kernel, path, cutoff, truth)
    assert found < most
    assert by_target or found > 0.9


def test_what_all_share_leaves_nothing_for_phases_and_targets():
    kernel = LearnedKernel(DAILY, by_phase=True, by_target=True)
    path, cutoff = windows(kernel)
    truth = path[..., -4:] + torch.randn(len(path), 2, 4)
    kernel.solve([rows_of(kernel, path, cutoff, truth)])
    assert kernel.by_phase.abs().max() < 0.1
    assert kernel.by_target.abs().max() < 0.1
    assert error(kernel, path, cutoff, truth) == pytest.approx(0.5, abs=0.05)


def test_noise_is_answered_by_nothing():
    kernel = LearnedKernel(DAILY, by_phase=True, by_target=True)
    path, cutoff = windows(kernel)
    kernel.solve([rows_of(kernel, path, cutoff, torch.randn(len(path), 2, 4))])
    largest = max(w.abs().max().item() for w in (kernel.weight, kernel.by_phase, kernel.by_target))
    assert largest < 0.05


def test_phases_share_a_moment_and_close_the_circle():
    kernel = LearnedKernel(DAILY, by_phase=True)
    phases = kernel._phases(torch.zeros(4, 1), torch.tensor([0.0, 2.25, 7.5, -8.0], dtype=torch.float64))
    expected = torch.zeros(4, 8)
    expected[0, 0] = expected[3, 0] = 1.0
    expected[1, 2], expected[1, 3] = 0.75, 0.25
    expected[2, 7], expected[2, 0] = 0.5, 0.5
    torch.testing.assert_close(phases, expected)


def test_without_cutoffs_a_kernel_that_turns_with_the_phase_says_what_is_missing():
    kernel = LearnedKernel(DAILY, by_phase=True)
    with pytest.raises(ValueError, match="needs the cutoffs"):
        kernel.answer(torch.zeros(1, 2, 24), torch.ones(1, 1))


def test_sums_over_a_shorter_past_are_those_of_its_rows():
    kernel = LearnedKernel(DAILY)
    path, cutoff = windows(kernel, 50)
    rows = rows_of(kernel, path, cutoff, torch.randn(50, 2, 4))
    short, expected = rows.total().recent(10), rows.recent(10).total()
    torch.testing.assert_close(short.squares, expected.squares, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(short.products, expected.products, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("left_out", range(5))
def test_no_window_that_shares_a_future_with_a_stretch_is_learned_from_where_it_is_left_out(left_out):
    kernel = LearnedKernel(DAILY)
    path, cutoff = windows(kernel, 200)
    rows = rows_of(kernel, path, cutoff, torch.randn(200, 2, 4))
    gathered = Stretches.gather(rows, stretches(rows.clock), 4.0)
    others = gathered.total
    for part in gathered.apart(left_out):
        others = others - part
    begin, end = 40 * left_out, 40 * left_out + 40
    apart = (rows.clock < begin - 4) | (rows.clock >= end + 4)
    expected = rows.weighted(apart.float()).total()
    torch.testing.assert_close(others.squares, expected.squares)
    torch.testing.assert_close(others.products, expected.products)
    held = rows.chosen(slice(2 * begin, 2 * end)).total()
    torch.testing.assert_close(gathered.block(left_out).products, held.products)


@pytest.mark.parametrize(
    ("lookback", "periods", "expected"),
    [
        (720.0, (24.0,), (720, 180, 45)),
        (336.0, (24.0, 168.0), (336, 84, 24)),
        (24.0, (24.0,), (24,)),
        (16.0, (), (16,)),
    ],
)
def test_look_backs_fall_by_quarters_to_a_period(lookback, periods, expected):
    assert LearnedKernel(TaskSpec(lookback=lookback, periods=periods)).lookbacks == expected


def test_one_look_back_alone_is_the_longest():
    network = Linear(average_lookbacks=False).build(TaskSpec(lookback=64.0))
    assert network.linear.kernel.lookbacks == (64,)


def test_linear_by_phase_and_target_is_linear_in_the_past_and_exact_on_constants():
    network, batch = Linear(by_phase=True, by_target=True).build(SPEC).eval(), make_batch()
    for weight in (
        network.linear.kernel.weight,
        network.linear.kernel.by_phase,
        network.linear.kernel.by_target,
    ):
        torch.nn.init.normal_(weight, std=0.1)
    line, cutoff = network.linear, torch.arange(3.0, dtype=torch.float64)
    times, mask = batch.past_times[:, :2], batch.past_mask[:, :2]

    def answer(values: torch.Tensor) -> torch.Tensor:
        return line(times, values * mask, mask, batch.future_times, cutoff=cutoff)

    first, second = torch.randn(2, *times.shape)
    both = answer(2 * first - 3 * second)
    torch.testing.assert_close(both, 2 * answer(first) - 3 * answer(second), rtol=1e-4, atol=1e-4)
    constant = answer(torch.full_like(first, 1.7))
    torch.testing.assert_close(constant, torch.full_like(constant, 1.7), rtol=1e-4, atol=1e-4)


def test_chosen_anchors_stand_alone_and_an_unknown_one_is_named():
    path = LinearPath(SPEC, with_level=True, anchors=("last", "mean"))
    assert path.candidates.names == ("last", "mean")
    assert path.num_anchors == 2
    with pytest.raises(ValueError, match=r"No anchor is called.*lost"):
        LinearPath(SPEC, anchors=("lost",))


def test_a_fixed_linear_path_is_trained_no_further():
    options = {"d_model": 16, "num_layers": 1, "num_heads": 2, "by_phase": True, "by_target": True}
    network = ContinuousTransformer(**options, train_linear=False).build(SPEC)
    network.warm_up([make_batch(rows=16) for _ in range(4)])
    assert not any(p.requires_grad for p in network.linear.parameters())
    assert all(p.requires_grad for p in network.encoder.parameters())


def test_a_file_of_a_version_with_fewer_nodes_is_read_with_its_own_nodes():
    spec = TaskSpec(lookback=1024.0, horizon=600.0)
    kernel, state = LearnedKernel(spec), {"weight": torch.randn(512, 512)}
    kernel.load_state_dict(state)
    assert torch.equal(kernel.weight, state["weight"])
    assert kernel.nodes.tolist() == [2.0 * i for i in range(-511, 1)]
    assert kernel.future_gap == 600 / 512
