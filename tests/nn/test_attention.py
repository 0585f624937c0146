"""The module: what it computes, what it may be given, and its cache."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ctsattn import continuous_attention
from ctsattn.nn import ContinuousAttention, KeyValueCache
from ctsattn.ops import Sink


def tokens(batch: int = 2, length: int = 9, d_model: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens and an irregular clock."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, d_model, generator=generator, dtype=torch.float64)
    return x, (torch.rand(batch, length, generator=generator, dtype=torch.float64) + 0.05).cumsum(dim=-1)


def module(**options: object) -> ContinuousAttention:
    torch.manual_seed(0)
    made = ContinuousAttention(16, 4, **{"num_kv_heads": 2} | options).double()  # type: ignore[arg-type]
    for parameter in made.parameters():
        if not parameter.any():
            nn.init.normal_(parameter)  # a learned sink, and biases
    return made


SINKS = {
    "none": lambda m: None,
    "zeros": lambda m: Sink(gap=0.5),
    "first": lambda m: Sink("first", "first", 0.5),
    "learned": lambda m: Sink(m.sink_key, m.sink_value, 0.5),
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_it_is_the_operator_between_linear_maps(sink: str, is_causal: bool) -> None:
    made = module(sink=sink, sink_gap=0.5, is_causal=is_causal)
    x, times = tokens()
    q, k, v = (
        to(x).unflatten(-1, (count, 4)).transpose(1, 2)
        for to, count in ((made.to_query, 4), (made.to_key, 2), (made.to_value, 2))
    )
    mixed = continuous_attention(q, k, v, times, is_causal=is_causal, sink=SINKS[sink](made), enable_gqa=True)
    torch.testing.assert_close(made(x, times), made.to_model(mixed.transpose(1, 2).flatten(-2)))


def test_a_clock_of_ones_is_the_default_and_any_other_matters() -> None:
    made = module()
    x, times = tokens()
    torch.testing.assert_close(made(x), made(x, torch.arange(9)))
    assert (made(x) - made(x, times)).abs().max() > 1e-3


def test_masked_tokens_equal_removed_tokens() -> None:
    made = module(is_causal=True, sink="first")
    x, times = tokens()
    mask = torch.tensor([1, 1, 0, 1, 0, 1, 1, 1, 0], dtype=torch.bool).expand(2, -1)
    kept = mask[0].nonzero().squeeze(-1)
    torch.testing.assert_close(made(x, times, mask)[:, kept], made(x[:, kept], times[:, kept]))


def test_queries_read_a_memory_at_times_of_their_own() -> None:
    x, times = tokens()
    asks, _ = tokens(length=3, seed=1)
    causal, free = module(is_causal=True), module()
    late = torch.full((2, 3), 100.0)
    torch.testing.assert_close(causal(asks, times, memory=x, query_times=late), free(asks, times, memory=x))
    at = times[:, 4:5].expand(-1, 3)
    seen = free(asks, times[:, :5], memory=x[:, :5])
    torch.testing.assert_close(causal(asks, times, memory=x, query_times=at), seen)
    held = causal(asks, times, memory=x, query_times=at + 0.01, tail="hold")
    assert 0 < (held - seen).abs().max() < 0.1


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize("steps", [(1,) * 9, (4, 1, 3, 1), (9,), (1, 8)], ids=str)
def test_decoding_step_by_step_with_a_cache_equals_the_full_pass(
    sink: str, has_times: bool, steps: tuple[int, ...]
) -> None:
    made = module(sink=sink, sink_gap=0.5, is_causal=True, frequencies=(0.7, 0.1) if has_times else ())
    x, times = tokens()
    times[:, 3] = times[:, 2]  # two tokens at one time: the first does not see the second
    times[:, 1] = times[:, 0]
    clock = times if has_times else None
    cache, outs = KeyValueCache(), []
    for part, at in zip(x.split(steps, dim=1), times.split(steps, dim=1), strict=True):
        outs.append(made(part, at if has_times else None, cache=cache))
    assert len(cache) == 9
    torch.testing.assert_close(torch.cat(outs, dim=1), made(x, clock))


def test_a_cache_knows_which_tokens_were_masked() -> None:
    made = module(is_causal=True)
    x, times = tokens()
    mask = torch.tensor([[1, 1, 1, 0, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    cache = KeyValueCache()
    first = made(x[:, :1], times[:, :1], cache=cache)  # no mask yet: nothing is hidden
    outs = [made(x[:, [i]], times[:, [i]], mask[:, [i]], cache=cache) for i in range(1, 8)]
    last = made(x[:, 8:], times[:, 8:], cache=cache)
    torch.testing.assert_close(torch.cat([first, *outs, last], dim=1), made(x, times, mask))


def test_a_deep_copy_of_a_cache_goes_on_by_itself_and_keeps_the_graph() -> None:
    made = module(is_causal=True)
    x, times = tokens()
    cache = KeyValueCache()
    made(x[:, :4], times[:, :4], cache=cache)
    copied = copy.deepcopy(cache)
    out = made(x[:, 4:], times[:, 4:], cache=copied)
    assert (len(cache), len(copied)) == (4, 9)
    torch.testing.assert_close(out, made(x, times)[:, 4:])
    weight = made.to_key.weight
    found, expected = (torch.autograd.grad(y.sum(), weight)[0] for y in (out, made(x, times)[:, 4:]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(2, 8), (3, 9), (2, 9, 1), (8,), ()], ids=str)
def test_times_and_masks_that_do_not_fit_the_tokens_are_refused(shape: tuple[int, ...]) -> None:
    x, times = tokens()
    with pytest.raises(ValueError, match=r"`times` must have the shape \[2, 9\] or \[9\], but its shape is"):
        module()(x, torch.zeros(shape))
    with pytest.raises(ValueError, match=r"`mask` must have the shape \[2, 9\] or \[9\], but its shape is"):
        module()(x, times, torch.ones(shape, dtype=torch.bool))


def test_a_module_made_from_softmax_attention_has_its_weights_and_nearly_its_output_on_smooth_tokens() -> (
    None
):
    torch.manual_seed(0)
    softmax = nn.MultiheadAttention(16, 4, batch_first=True).double()
    made = ContinuousAttention.from_multihead(softmax)
    grid = torch.linspace(0, 1, 400, dtype=torch.float64)
    x = torch.sin(grid[:, None] * torch.arange(1.0, 17.0, dtype=torch.float64))[None]
    expected, _ = softmax(x, x, x)
    # The operators differ by the half pieces at both ends: one part in 400.
    torch.testing.assert_close(made(x), expected, rtol=0.0, atol=5e-3)
    assert made.to_query.weight.data_ptr() != softmax.in_proj_weight.data_ptr()


def test_it_trains_with_dropout_in_every_dtype_and_compiles() -> None:
    torch.compiler.reset()
    made = ContinuousAttention(16, 4, dropout=0.2, is_causal=True, sink="learned")
    x, times = tokens()
    made(x.float(), times).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())
    made.eval()
    compiled = torch.compile(made, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x.float(), times), made(x.float(), times))
    half = made.bfloat16()(x.bfloat16(), times)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"num_kv_heads": 3}, {}, "`num_kv_heads` must divide `num_heads`"),
        ({"sink": "last"}, {}, "`sink` must be one of none, zeros, first, learned, but got 'last'"),
        ({}, {"query_times": torch.zeros(9)}, "`query_times` go with `memory`"),
        ({}, {"cache": KeyValueCache()}, "build the module with `is_causal=True`"),
        ({"frequencies": (1.0,)}, {}, "Rotary positions need the time of every token"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    options: dict[str, object], arguments: dict[str, object], message: str
) -> None:
    x, _ = tokens()
    with pytest.raises(ValueError, match=message):
        module(**options)(x, **arguments)


def test_a_cache_refuses_times_that_come_late() -> None:
    made, cache = module(is_causal=True), KeyValueCache()
    x, times = tokens()
    made(x[:, :4], cache=cache)
    with pytest.raises(ValueError, match="holds 4 tokens without times, but the new ones come with times"):
        made(x[:, 4:], times[:, 4:], cache=cache)


def test_appended_keys_cannot_be_copied_because_they_have_no_time() -> None:
    with pytest.raises(ValueError, match="an appended key has no time"):
        ContinuousAttention.from_multihead(nn.MultiheadAttention(16, 4, add_zero_attn=True))


def test_wrong_sizes_are_refused() -> None:
    x, times = tokens()
    with pytest.raises(ValueError, match="all at least 1, but got d_model=16, num_heads=0"):
        ContinuousAttention(16, 0)
    with pytest.raises(ValueError, match=r"shape \[batch, queries, 16\], but its shape is \[2, 9, 15\]"):
        module()(x[..., :15], times)
    with pytest.raises(TypeError, match="`times` must be a tensor, but it is of type list"):
        module()(x, times.tolist())  # type: ignore[arg-type]
    made, cache = module(is_causal=True), KeyValueCache()
    made(x[:, :4], cache=cache)
    with pytest.raises(ValueError, match="holds a batch of 2, but the new tokens are a batch of 1"):
        made(x[:1, 4:], cache=cache)
