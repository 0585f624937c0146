"""Swapping softmax for continuous attention in models that exist, and back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ctsattn.nn import ContinuousAttention, clock, convert_attention
from ctsattn.ops import Sink


def encoder(**options: object) -> nn.TransformerEncoder:
    """A small stock encoder whose layers qualify for torch's fast path in evaluation."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options).double()
    return nn.TransformerEncoder(layer, 2)


def tokens(length: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, length, 16, generator=generator, dtype=torch.float64)
    return x, (torch.rand(2, length, generator=generator, dtype=torch.float64) + 0.05).cumsum(dim=-1)


def by_hand(model: nn.TransformerEncoder, x: Tensor, *arguments: Tensor | None, **options: object) -> Tensor:
    """What the encoder computes with continuous attention, layer by layer from its parts."""
    for layer in model.layers:
        assert isinstance(layer, nn.TransformerEncoderLayer)
        attention = ContinuousAttention.from_multihead(layer.self_attn, **options).eval()
        x = layer.norm1(x + attention(x, *arguments))
        x = layer.norm2(x + layer.linear2(layer.activation(layer.linear1(x))))
    return x


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("has_grad", [True, False])
def test_every_layer_attends_continuously_in_training_and_on_torchs_fast_path(
    training: bool, has_grad: bool
) -> None:
    model = encoder().train(training)
    x, times = tokens()
    expected = by_hand(model, x), by_hand(model, x, times)
    convert_attention(model)
    with torch.set_grad_enabled(has_grad):
        torch.testing.assert_close(model(x), expected[0])
        with clock(model, times):
            torch.testing.assert_close(model(x), expected[1])
        torch.testing.assert_close(model(x), expected[0])


@pytest.mark.parametrize("training", [True, False])
def test_padding_is_no_knot_and_is_not_packed_past_the_attention(training: bool) -> None:
    model = encoder().train(training)
    x, times = tokens()
    padding = torch.arange(9) >= torch.tensor([[5], [9]])
    expected = by_hand(model, x, times, ~padding)
    convert_attention(model)
    with torch.no_grad(), clock(model, times):
        out = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(out[~padding], expected[~padding])


@pytest.mark.parametrize("is_causal", [True, None])
def test_the_mask_of_the_future_makes_it_causal(is_causal: bool | None) -> None:
    model = encoder().eval()
    x, times = tokens()
    expected = by_hand(model, x, times, is_causal=True)
    convert_attention(model)
    future = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    for mask in (future, future == -torch.inf):
        with clock(model, times):
            out = model(x, mask=mask, is_causal=is_causal)
        torch.testing.assert_close(out, expected)


def test_the_sink_of_zeros_is_that_of_the_post() -> None:
    model = encoder().eval()
    x, _ = tokens()
    expected = by_hand(model, x, sink="zeros")
    torch.testing.assert_close(convert_attention(model, sink=Sink())(x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's, for the softmax model
def test_swapping_back_restores_the_model_to_the_bit() -> None:
    model = encoder().eval()
    x, _ = tokens()
    padding = torch.arange(9) >= torch.tensor([[5], [9]])
    with torch.no_grad():
        before = model(x), model(x, src_key_padding_mask=padding)
        weights = copy.deepcopy(model.state_dict())
        changed = convert_attention(model)(x)
        assert (changed - before[0]).abs().max() > 1e-3
        convert_attention(model, to="softmax")
        after = model(x), model(x, src_key_padding_mask=padding)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention
    assert not [name for name in vars(model.layers[0].self_attn) if "continuous" in name]
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_switch_in_the_middle_of_training_keeps_parameters_and_optimizer() -> None:
    model = encoder().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    parameters = dict(model.named_parameters())
    x, _ = tokens()
    target = torch.randn_like(x)
    losses = []
    for step in range(60):
        if step == 20:
            convert_attention(model)
        if step == 40:
            convert_attention(model, to="softmax")
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert losses[19] < losses[0] and losses[39] < losses[20] and losses[59] < losses[40]


def test_a_decoder_reads_its_memory_with_a_clock_of_its_own() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double().eval()
    x, times = tokens(5)
    memory, memory_times = tokens(9, seed=1)
    own = ContinuousAttention.from_multihead(layer.self_attn)
    cross = ContinuousAttention.from_multihead(layer.multihead_attn)
    expected = layer.norm1(x + own(x, times))
    expected = layer.norm2(expected + cross(expected, memory_times, memory=memory))
    expected = layer.norm3(expected + layer.linear2(layer.activation(layer.linear1(expected))))
    convert_attention(layer)
    with clock(layer, times, memory_times):
        torch.testing.assert_close(layer(x, memory), expected)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 10}, {"bias": False}], ids=str)
def test_weights_are_those_of_the_output_in_every_layout(
    batch_first: bool, widths: dict[str, object]
) -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=batch_first, **widths).double()  # type: ignore[arg-type]
    shape = (2, 7) if batch_first else (7, 2)
    key, value = (
        torch.randn(*shape, width, dtype=torch.float64) for width in (attention.kdim, attention.vdim)
    )
    query = torch.randn(2, 5, 16, dtype=torch.float64)
    query = query if batch_first else query.transpose(0, 1)
    expected, _ = attention(query, key, value)
    convert_attention(attention)
    out, each = attention(query, key, value, average_attn_weights=False)
    assert out.shape == expected.shape and each.shape == (2, 4, 5, 7)
    torch.testing.assert_close(each.sum(dim=-1), torch.ones(2, 4, 5, dtype=torch.float64))
    _, mean = attention(query, key, value)
    torch.testing.assert_close(mean, each.mean(dim=1))
    assert attention(query, key, value, need_weights=False)[1] is None
    row = 0 if batch_first else (slice(None), 0)
    alone, weights = attention(query[row], key[row], value[row])
    torch.testing.assert_close(alone, out[row])
    torch.testing.assert_close(weights, mean[0])


def test_a_converted_model_can_be_copied_saved_and_compiled(tmp_path) -> None:
    torch.compiler.reset()
    model = convert_attention(encoder().eval())
    x, _ = tokens()
    expected = model(x)
    torch.testing.assert_close(copy.deepcopy(model)(x), expected)
    torch.save(model.state_dict(), tmp_path / "weights")
    plain = encoder().eval()
    plain.load_state_dict(torch.load(tmp_path / "weights", weights_only=True))
    torch.testing.assert_close(convert_attention(plain)(x), expected)
    compiled = torch.compile(model.layers[0], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model.layers[0](x))


def test_what_has_no_continuous_counterpart_is_refused() -> None:
    x, times = tokens()
    model = convert_attention(encoder())
    band = torch.ones(9, 9, dtype=torch.bool).triu(3)
    with pytest.raises(ValueError, match="it has no equal to another mask"):
        model(x, mask=band)
    with pytest.raises(ValueError, match="it has no equal to another mask"):
        model(x, mask=torch.randn(9, 9, dtype=torch.float64))
    with pytest.raises(ValueError, match="a row for each of 9 queries and a column for each of 9 keys"):
        model.layers[0].self_attn(x, x, x, attn_mask=band[:3])
    with pytest.raises(ValueError, match="it can hide a key, not weigh it"):
        model(x, src_key_padding_mask=torch.full((2, 9), 0.5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"Linear has no `nn\.MultiheadAttention` to swap"):
        convert_attention(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="the keys it appends have no time"):
        convert_attention(nn.MultiheadAttention(16, 4, add_bias_kv=True))
    with pytest.raises(ValueError, match="call `convert_attention`"), clock(encoder(), times):
        pass
    with pytest.raises(ValueError, match="`to` must be 'continuous' or 'softmax', but got 'linear'"):
        convert_attention(encoder(), to="linear")  # type: ignore[arg-type]
