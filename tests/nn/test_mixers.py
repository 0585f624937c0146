"""Conformance: what every mixer in `MIXERS` owes, whatever it computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ctsattn.nn import MIXERS, MixerConfig
from ctsattn.nn.mixers import AttentionMixer, Mixer
from ctsattn.ops import continuous_attention, trapezoid_attention

F64 = torch.float64
ATTENTIONS = [name for name, kind in MIXERS.items() if issubclass(kind, AttentionMixer)]
FREQUENCIES = (0.4, 0.15)


@pytest.fixture(params=MIXERS)
def name(request) -> str:
    return request.param


def make(name: str, dtype: torch.dtype = F64, **changes: object) -> Mixer:
    settings = {"d_model": 16, "num_heads": 4, "num_kv_heads": 2, "frequencies": FREQUENCIES, "gap": 0.5}
    return MIXERS[name](MixerConfig(**{**settings, **changes})).to(dtype)


def series(length: int = 9, batch: int = 2, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    x = torch.randn(batch, length, 16, dtype=dtype)
    return x, torch.rand(batch, length, dtype=dtype).add(0.1).cumsum(dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [True, False])
def test_shape_and_dtype_are_those_of_the_tokens(name, dtype, is_causal):
    x, times = series(dtype=dtype)
    mixed = make(name, dtype, is_causal=is_causal)(x, times.float())
    assert mixed.shape == x.shape
    assert mixed.dtype == dtype
    assert mixed.isfinite().all()


@pytest.mark.parametrize("sink", ["none", "zeros", "first", "learned"])
def test_causal_outputs_depend_on_no_later_token_to_the_bit(name, sink):
    mixer, (x, times) = make(name, sink=sink), series()
    later_x, later_times = x.clone(), times.clone()
    later_x[:, 5:] += 1.0
    later_times[:, 5:] += 0.3
    assert torch.equal(mixer(later_x, later_times)[:, :5], mixer(x, times)[:, :5])


def test_causal_gradients_of_an_output_reach_no_later_token(name):
    mixer, (x, times) = make(name), series()
    x, times = x.requires_grad_(), times.requires_grad_()
    of_x, of_times = torch.autograd.grad(mixer(x, times)[:, 4].sum(), (x, times), materialize_grads=True)
    assert not of_x[:, 5:].any()
    assert not of_times[:, 5:].any()


@pytest.mark.parametrize("sink", ["none", "zeros", "first", "learned"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_missing_tokens_and_padding_equal_removed_tokens(name, sink, is_causal):
    mixer, (x, times) = make(name, sink=sink, is_causal=is_causal), series()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 6:], mask[1, [0, 3, 4]] = False, False
    mixed = mixer(torch.where(mask[..., None], x, 7.0), times, mask)
    assert mixed.isfinite().all()
    for row in range(2):
        kept = mask[row]
        alone = mixer(x[row : row + 1, kept], times[row : row + 1, kept])
        torch.testing.assert_close(mixed[row, kept], alone[0], rtol=1e-11, atol=1e-12)


def test_a_row_without_any_token_is_finite_in_value_and_gradient(name):
    mixer, (x, times) = make(name, is_causal=False), series()
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, :4] = True
    mixed = mixer(x.requires_grad_(), times, mask)
    gradients = torch.autograd.grad(mixed.square().sum(), [x, *mixer.parameters()], allow_unused=True)
    assert mixed.isfinite().all()
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_one_token_and_tokens_at_one_time_are_finite(name):
    mixer, (x, times) = make(name), series()
    assert mixer(x[:, :1], times[:, :1]).isfinite().all()
    assert mixer(x, torch.ones_like(times)).isfinite().all()


def test_the_origin_of_the_clock_plays_no_part(name):
    mixer, (x, times) = make(name), series()
    torch.testing.assert_close(mixer(x, times + 1000.0), mixer(x, times), rtol=1e-9, atol=1e-9)


def test_the_unit_of_the_clock_plays_no_part(name):
    x, times = series()
    mixer = make(name, sink="zeros")
    stretched = make(name, sink="zeros", gap=0.5 * 60, frequencies=tuple(f / 60 for f in FREQUENCIES))
    stretched.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(stretched(x, times * 60), mixer(x, times), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("is_causal", [True, False])
def test_gradcheck_of_tokens_and_times(name, is_causal):
    sizes = {"d_model": 4, "num_heads": 2, "num_kv_heads": 1, "frequencies": (0.3,), "sink": "zeros"}
    mixer = make(name, **sizes, is_causal=is_causal)
    x = torch.randn(1, 5, 4, dtype=F64, requires_grad=True)
    times = torch.tensor([[0.0, 0.4, 0.5, 1.7, 2.0]], dtype=F64, requires_grad=True)
    mask = torch.tensor([[True, True, False, True, True]])
    assert torch.autograd.gradcheck(lambda x, times: mixer(x, times, mask), (x, times))


def test_state_dict_makes_a_second_mixer_the_first(name):
    (x, times), first, second = series(), make(name, sink="learned"), make(name, sink="learned")
    assert not torch.equal(first(x, times), second(x, times))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x, times), second(x, times))


def test_every_parameter_gets_a_gradient(name):
    mixer, (x, times) = make(name, sink="learned"), series()
    nn.init.normal_(mixer.sink.key) if hasattr(mixer, "sink") else None
    mixer(x, times).square().sum().backward()
    without = [n for n, p in mixer.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


class NextValue(nn.Module):
    """Predicts how a series goes on from values and gaps, through one mixer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.mixer = make(name, torch.float32, is_causal=True, frequencies=(1.2, 0.3), gap=1.0)
        self.out = nn.Sequential(nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, values: Tensor, times: Tensor) -> Tensor:
        before = nn.functional.pad(times.diff(dim=1), (1, 0))[:, :-1]
        x = self.embed(torch.stack([values[:, :-1], times.diff(dim=1), before], dim=-1))
        return values[:, :-1] + self.out(x + self.mixer(x, times[:, :-1])).squeeze(-1)


def test_it_learns_a_sine_seen_at_irregular_times(name):
    times = torch.rand(16, 13).add(0.5).cumsum(dim=1)
    values = torch.sin(2 * torch.pi * (times / 7.0 + torch.rand(16, 1)))
    model = NextValue(name)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        loss = (model(values, times) - values[:, 1:])[:, 3:].square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    repeated = values.diff(dim=1)[:, 3:].square().mean()
    assert loss < 0.25 * repeated


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_queries_at_times_of_their_own_depend_on_no_other_query(kind):
    mixer, (x, times) = make(kind, sink="zeros"), series()
    queries, asked = torch.randn(2, 5, 16, dtype=F64), torch.randn(2, 5, dtype=F64) * 5
    order = [3, 0, 4]
    together = mixer.read(queries, asked, x, times)
    fewer = mixer.read(queries[:, order], asked[:, order], x, times)
    torch.testing.assert_close(fewer, together[:, order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_reading_skips_missing_tokens(kind):
    mixer, (x, times) = make(kind), series()
    queries, asked = torch.randn(2, 3, 16, dtype=F64), torch.full((2, 3), 9.0, dtype=F64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, [2, 5, 8]] = False
    read = mixer.read(queries, asked, x, times, mask)
    alone = mixer.read(queries, asked, x[:, mask[0]], times[:, mask[0]])
    torch.testing.assert_close(read, alone, rtol=1e-11, atol=1e-12)
    nothing = mixer.read(queries, asked, x, times, torch.zeros_like(mask))
    assert not nothing.any()


@pytest.mark.parametrize("kind", ["continuous", "continuous_unit", "trapezoid", "first_order"])
def test_integrals_begin_and_end_where_the_configuration_says(kind):
    (x, times), left, symmetric = series(), make(kind), make(kind, interval="symmetric")
    symmetric.load_state_dict(left.state_dict())
    heads = symmetric._heads(x, times, x, times, None)
    clock = None if kind == "continuous_unit" else times
    operator = trapezoid_attention if kind == "trapezoid" else continuous_attention
    backend = {"backend": "first_order"} if kind == "first_order" else {}
    options = {"is_causal": True, "enable_gqa": True, "interval": "symmetric", **backend}
    expected = operator(heads.q, heads.k, heads.v, clock, **options)
    torch.testing.assert_close(symmetric(x, times), symmetric.projections.merge(expected))
    assert not torch.allclose(symmetric(x, times), left(x, times))


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_a_fixed_temperature_is_that_of_the_root_of_the_width(kind):
    (x, times), learned, fixed = series(), make(kind), make(kind, learns_temperature=False)
    kept = {k: v for k, v in learned.state_dict().items() if not k.endswith("log_temperature")}
    fixed.load_state_dict(kept)
    torch.testing.assert_close(fixed(x, times), learned(x, times))
    with torch.no_grad():
        learned.projections.log_temperature.fill_(0.5)
    assert not torch.allclose(fixed(x, times), learned(x, times))


def test_an_unknown_sink_is_refused():
    with pytest.raises(ValueError, match="`sink` must be one of none, zeros, first, learned, but got 'last'"):
        MixerConfig(8, sink="last")


def test_heads_that_do_not_divide_are_refused(name):
    with pytest.raises(ValueError, match="must"):
        make(name, d_model=10, num_heads=4, num_kv_heads=None, frequencies=())
