"""Checks of tensors that a user passes, with their messages.

Shapes, dtypes and devices are checked at every call. Values are looked at only where that costs nothing much:
on the CPU, outside compiled code and outside function transforms (`may_look_at_values`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TypeVar

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_Kind = TypeVar("_Kind")
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def may_look_at_values(*tensors: Tensor | None) -> bool:
    """Whether the values of all tensors can be read without waiting for a device or breaking a graph."""
    if torch.compiler.is_compiling() or _is_watched():
        return False
    return all(tensor is None or _is_plain(tensor) for tensor in tensors)


def are_plain(*tensors: Tensor) -> bool:
    """Whether tensors lie in this process's memory, and nobody watches what is done to them.

    Then a kernel may be handed their addresses: nothing compiles, traces or transforms, none is a subclass.
    """
    if torch.compiler.is_compiling() or _are_functorch_transforms_active() or _is_watched():
        return False
    for x in tensors:  # noqa: SIM110 (a generator takes longer)
        if type(x) not in (Tensor, Parameter) or not x.is_cpu or x.is_neg():
            return False
    return True


def is_recording() -> bool:
    """Whether something compiles, records or differentiates what operators do, even to ordinary tensors."""
    return torch.compiler.is_compiling() or _is_watched()


def are_transformed(*given: object) -> bool:
    """Whether function transforms see some of what is given, or tangents may go with it.

    A registered operator would drop these without a word, where `torch.autograd.Function` refuses them.
    """
    if torch.compiler.is_compiling():
        return False
    return _may_be_dual() or any(isinstance(x, Tensor) and is_functorch_wrapped_tensor(x) for x in given)


def may_carry_tangents(*given: object) -> bool:
    """Whether forward-mode differentiation runs and some of what is given may carry a tangent.

    What function transforms wrap is not looked into: it may.
    """
    if torch.compiler.is_compiling() or not _may_be_dual():
        return False
    return any(
        is_functorch_wrapped_tensor(x) or forward_ad.unpack_dual(x).tangent is not None
        for x in given
        if isinstance(x, Tensor)
    )


def _is_watched() -> bool:
    """Whether operators are being recorded or differentiated: what is done past them would be lost."""
    return _may_be_dual() or is_in_torch_dispatch_mode() or _get_tracing_state() is not None


def _may_be_dual() -> bool:
    """Whether `torch.autograd.forward_ad` runs, whose tensors are of an ordinary type."""
    return forward_ad._current_level >= 0


def check_attention_inputs(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """Check shapes, dtypes and devices of queries, keys and values as in `scaled_dot_product_attention`.

    Raises:
        TypeError: A dtype is not floating, or the three differ.
        ValueError: A shape or device does not fit the others.
    """
    dtype, device = q.dtype, q.device
    if not (
        q.dim() == k.dim() == v.dim() == 4
        and dtype == k.dtype == v.dtype
        and dtype in FLOATING
        and device == k.device == v.device
    ):
        _refuse_kinds(q, k, v)
    (batch, heads, _, width), of_k, of_v = q.shape, k.shape, v.shape
    if not batch == of_k[0] == of_v[0]:
        raise ValueError(
            f"`q`, `k` and `v` must have the same batch size, but got {batch}, {of_k[0]} and {of_v[0]}."
        )
    if of_k[1] != of_v[1] or of_k[2] != of_v[2]:
        raise ValueError(
            f"`k` and `v` must agree in heads and length, but got {list(of_k)} and {list(of_v)}."
        )
    if width != of_k[3]:
        raise ValueError(f"`q` and `k` must have the same width, but got {width} and {of_k[3]}.")
    if width == 0:
        raise ValueError("`q` and `k` have the width 0. Give zeros of width 1 if all scores are to be equal.")
    check_head_counts(heads, of_k[1], enable_gqa)


def _refuse_kinds(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Say what is wrong with the axes, dtypes or devices of queries, keys and values."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(
                f"`{name}` must have the four axes [batch, heads, length, width], but its shape is "
                f"{list(tensor.shape)}. Add the missing axes with `{name}[None]` or `{name}.unsqueeze`."
            )
        if tensor.dtype != q.dtype or q.dtype not in FLOATING:
            raise TypeError(
                f"`q`, `k` and `v` must share one dtype out of float16, bfloat16, float32 and float64, but "
                f"got {q.dtype}, {k.dtype} and {v.dtype}. Convert them with `.to(q.dtype)` or use autocast."
            )
        if tensor.device != q.device:
            raise ValueError(
                f"`q` is on {q.device}, but `{name}` is on {tensor.device}. Move it with `.to(q.device)`."
            )


def check_tensor(name: str, given: object) -> None:
    """Raise a `TypeError` if an argument is no tensor."""
    if not isinstance(given, Tensor):
        raise TypeError(
            f"`{name}` must be a tensor, but it is of type {type(given).__name__}. Convert it with "
            f"`torch.as_tensor`."
        )


def named(option: str, name: object, table: Mapping[str, _Kind]) -> _Kind:
    """What stands under a name in a table, or a `ValueError` that tells the names."""
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"`{option}` must be one of {', '.join(table)}, but it is {name!r}.")
    return table[name]


def check_head_counts(heads: int, kv_heads: int, enable_gqa: bool) -> None:
    """Check that each query head has a key head; several may share one if `enable_gqa`."""
    if heads == kv_heads:
        return
    if not enable_gqa:
        raise ValueError(
            f"`q` has {heads} heads, but `k` and `v` have {kv_heads}. Set `enable_gqa=True` to let query "
            f"heads share key heads."
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"`enable_gqa` needs a number of query heads ({heads}) that {kv_heads} divides.")


def check_rows(name: str, tensor: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Check a tensor `[batch, length]` or `[length]` and return it as `[batch, length]`.

    Raises:
        ValueError: Another shape, or another device than `device`.
    """
    shape = tensor.shape
    two = len(shape) == 2
    if not (two or len(shape) == 1) or shape[-1] != length or (two and shape[0] != batch and shape[0] != 1):
        raise ValueError(
            f"`{name}` must have the shape [{batch}, {length}] or [{length}], but its shape is {list(shape)}."
        )
    if tensor.device != device:
        raise ValueError(
            f"`q` is on {device}, but `{name}` is on {tensor.device}. Move it with `.to(q.device)`."
        )
    return tensor if two and shape[0] == batch else tensor.expand(batch, length)


def check_clock(name: str, times: Tensor) -> Tensor:
    """Check that times are real numbers, and widen those that cannot hold a clock.

    Returns:
        int64, float32 or float64.

    Raises:
        TypeError: Boolean or complex times.
    """
    check_tensor(name, times)
    if times.dtype == torch.bool or times.is_complex():
        raise TypeError(f"`{name}` must be integer or floating, but its dtype is {times.dtype}.")
    if not times.is_floating_point():
        return times.long()
    return times if times.dtype in (torch.float32, torch.float64) else times.float()


def check_finite(name: str, values: Tensor) -> None:
    """Raise a `ValueError` that tells where values are not finite; call it where values may be read."""
    if not values.is_floating_point() or isfinite(values.detach().sum()):
        return  # a sum is not finite if a term is not, and it is read faster
    if not bool(values.isfinite().all()):
        where = tuple((~values.isfinite()).nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` must be finite, but it is {values[where].item()} at index {list(where)}. Drop such "
            f"observations or mark them in `key_mask`."
        )


def check_ascending(
    name: str, gaps: Tensor, valid: Tensor | None = None, source: Tensor | None = None
) -> None:
    """Raise a `ValueError` that tells where a clock runs backwards; call it where values may be read.

    Args:
        name: What the clock is called.
        gaps: Time before each place `[rows, length]`.
        valid: Where a difference is one between neighbours of the same sequence; None: everywhere.
        source: Index that the user knows each place by; None: the place itself.
    """
    if gaps.numel() == 0 or gaps.amin() >= 0:
        return
    falls = gaps < 0 if valid is None else (gaps < 0) & valid
    if bool(falls.any()):
        row, place = falls.nonzero()[0].tolist()
        before = int(place - 1 if source is None else source[row, place - 1])
        raise ValueError(
            f"`{name}` must not decrease along its last axis, but in row {row} it falls by "
            f"{-gaps[row, place].item():.6g} after index {before}. Sort the observations by time first."
        )


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is an ordinary one on the CPU: not fake, not negated, not inside `vmap` or `grad`."""
    ordinary = type(tensor) in (Tensor, Parameter) and tensor.device.type == "cpu"
    return ordinary and not is_functorch_wrapped_tensor(tensor) and not tensor.is_neg()
