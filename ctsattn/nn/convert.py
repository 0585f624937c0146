"""Swap softmax attention for continuous attention in a model that exists, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ctsattn._checks import may_look_at_values
from ctsattn.ops import Sink, continuous_attention


@dataclass
class _Setting:
    """What a converted module does: its sink and backend, and the clocks of the current call."""

    sink: Sink | None = None
    backend: str | None = None
    times: Tensor | None = None
    memory_times: Tensor | None = None


class ContinuousMultiheadAttention(nn.MultiheadAttention):
    """An `nn.MultiheadAttention` that integrates over time; `convert_attention` makes it from one.

    Parameters, their names and the arguments of `forward` are those of `nn.MultiheadAttention`. Tokens are 1
    apart unless a `clock` says otherwise. A mask may hide padding, and the future of each token; any other
    has no meaning for an integral over time.
    """

    _continuous: _Setting

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """False: else torch computes softmax attention from the weights and never calls this module."""
        return False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with arguments and results as `nn.MultiheadAttention.forward`.

        Raises:
            ValueError: A mask that is neither padding nor the future.
        """
        setting, is_self = self._continuous, query is key
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._project(query, key, value)
        times = setting.times if is_self else setting.memory_times
        options: dict[str, Any] = {
            "key_mask": _existing(key_padding_mask),
            "is_causal": _is_causal(attn_mask, is_causal, q.shape[2], k.shape[2]),
            "backend": setting.backend,
        }
        dropout_p = self.dropout if self.training else 0.0
        out = continuous_attention(q, k, v, times, sink=setting.sink, dropout_p=dropout_p, **options)
        out = self.out_proj(out.transpose(1, 2).flatten(-2))
        weights = None
        if need_weights:
            one_each = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
            sink = None if setting.sink is None else setting.sink._replace(value=0.0)
            weights = continuous_attention(q, k, one_each, times, sink=sink, **options)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values `[batch, heads, length, head_dim]`."""
        weights = self.in_proj_weight
        parts = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if weights is not None:
            parts = weights.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = (
            nn.functional.linear(x, weight, bias)
            for x, weight, bias in zip((query, key, value), parts, biases, strict=True)
        )
        return tuple(x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)


def convert_attention(
    model: nn.Module,
    to: Literal["continuous", "softmax"] = "continuous",
    *,
    sink: Sink | tuple | None = None,
    backend: str | None = None,
) -> nn.Module:
    """Swap the attention of a model in place: every `nn.MultiheadAttention` in it, with the weights it has.

    The modules and their parameters stay the same objects, so optimizers, hooks and shared modules keep
    working, and so does a switch in the middle of training. Swapping back restores the model to the bit.

    Args:
        model: Any torch module.
        to: "continuous" swaps softmax for continuous attention, "softmax" swaps back.
        sink: A knot before the first token that every query sees, for all modules; None: none. `Sink()` is
            the post's choice.
        backend: As in `continuous_attention`.

    Returns:
        The model itself.

    Raises:
        ValueError: There is nothing to swap, or a module appends keys that have no time.
    """
    if to not in ("continuous", "softmax"):
        raise ValueError(f"`to` must be 'continuous' or 'softmax', but got {to!r}.")
    before, after = nn.MultiheadAttention, ContinuousMultiheadAttention
    if to == "softmax":
        before, after = after, before
    found = [
        m for m in model.modules() if isinstance(m, nn.MultiheadAttention) and type(m) in (before, after)
    ]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no `nn.MultiheadAttention` to swap. A model that calls "
            f"`scaled_dot_product_attention` can call `ctsattn.continuous_attention` in its place."
        )
    for module in found:
        _refuse_appended_keys(module)
    setting = _Setting(sink if sink is None or isinstance(sink, Sink) else Sink(*sink), backend)
    for module in found:
        module.__class__ = after
        if isinstance(module, ContinuousMultiheadAttention):
            module._continuous = replace(setting)
        else:
            module.__dict__.pop("_continuous", None)
    _set_nested_tensors(model, allowed=to == "softmax")
    return model


@contextmanager
def clock(model: nn.Module, times: Tensor, memory_times: Tensor | None = None) -> Iterator[None]:
    """Give the converted attention of a model a clock for the calls inside a `with` block.

    Args:
        model: A model that `convert_attention` has swapped.
        times: Times `[batch, length]` or `[length]` of the tokens that attend to their own sequence.
        memory_times: Times of the tokens that a decoder's cross-attention reads; None: they are 1 apart.

    Raises:
        ValueError: The model has no converted attention.
    """
    found = [module for module in model.modules() if isinstance(module, ContinuousMultiheadAttention)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no continuous attention: call `convert_attention`.")
    settings = [module._continuous for module in found]
    for setting in settings:
        setting.times, setting.memory_times = times, memory_times
    try:
        yield
    finally:
        for setting in settings:
            setting.times, setting.memory_times = None, None


def _refuse_appended_keys(module: nn.MultiheadAttention) -> None:
    """Raise if a module appends keys to those it is given."""
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError(
            "An `nn.MultiheadAttention` with `add_bias_kv` or `add_zero_attn` cannot be swapped: the keys it "
            "appends have no time. A `sink` does what they are for."
        )


def _set_nested_tensors(model: nn.Module, allowed: bool) -> None:
    """Keep encoders from packing padded batches, which leads past their attention; or let them again."""
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoder):
            continue
        if allowed:
            module.use_nested_tensor = module.__dict__.pop("_used_nested_tensor", module.use_nested_tensor)
        elif "_used_nested_tensor" not in module.__dict__:
            module.__dict__["_used_nested_tensor"] = module.use_nested_tensor
            module.use_nested_tensor = False


def _existing(key_padding_mask: Tensor | None) -> Tensor | None:
    """True where a key exists, from torch's mask that is true, or -inf, where none does.

    Raises:
        ValueError: The mask weighs keys instead of hiding them.
    """
    if key_padding_mask is None:
        return None
    if key_padding_mask.dtype == torch.bool:
        return ~key_padding_mask
    exists = key_padding_mask > -torch.inf
    if may_look_at_values(key_padding_mask) and bool((key_padding_mask[exists] != 0).any()):
        raise ValueError("A floating `key_padding_mask` must be 0 or -inf: it can hide a key, not weigh it.")
    return exists


def _is_causal(attn_mask: Tensor | None, is_causal: bool, queries: int, keys: int) -> bool:
    """Whether a mask hides the future of each token, or nothing.

    Raises:
        ValueError: It hides something else, or it cannot be read here and `is_causal` does not vouch for it.
    """
    if attn_mask is None:
        if is_causal:
            raise ValueError("`is_causal` says what `attn_mask` is: give the mask too, or leave both out.")
        return False
    if not may_look_at_values(attn_mask):
        if is_causal:
            return True
    else:
        if attn_mask.shape[-2:] != (queries, keys):
            raise ValueError(
                f"`attn_mask` must have a row for each of {queries} queries and a column for each of {keys} "
                f"keys, but its shape is {list(attn_mask.shape)}."
            )
        is_bool = attn_mask.dtype == torch.bool
        hidden = attn_mask if is_bool else attn_mask == -torch.inf
        future = torch.ones((queries, keys), dtype=torch.bool).triu(1)
        if is_bool or not bool(attn_mask[~hidden].any()):
            if not bool(hidden.any()):
                return False
            if bool((hidden == future).all()):
                return True
    raise ValueError(
        "Continuous attention integrates over a stretch of time. `attn_mask` may hide the future of each "
        "token, as `nn.Transformer.generate_square_subsequent_mask` does (say `is_causal=True` too on a GPU "
        "or when compiling), and `key_padding_mask` may hide padding; it has no equal to another mask."
    )
