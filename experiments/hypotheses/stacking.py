"""Networks of all seeds as one: flat parameters with a leading seed axis, and one product for all seeds.

`vmap` runs over the seed axis. The operators of ctsattn take it into their batch; a linear map of tokens
`[seeds, batch, length, features]` becomes one batched product over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from experiments.hypotheses.tasks import Windows

State = dict[str, Tensor]


class Stack:
    """Untrained networks of some seeds: one skeleton and the parameters of all.

    Args:
        make: Makes an untrained network from torch's global generator, which is seeded before each call.
        seeds: The seeds.
        device: Where the parameters lie.

    Attributes:
        skeleton: The network without parameters of its own.
        flat: `[seeds, parameters]`.
        buffers: Buffers, stacked.
    """

    def __init__(self, make: Callable[[], nn.Module], seeds: list[int], device: torch.device) -> None:
        networks = [_seeded(make, seed).to(device) for seed in seeds]
        parameters, self.buffers = stack_module_state(networks)
        self.skeleton = networks[0].to("meta")
        self._shapes = {name: value.shape for name, value in parameters.items()}
        parts = [_padded(value.detach().flatten(1)) for value in parameters.values()]
        self._sizes = [part.shape[1] for part in parts]
        self.flat = torch.cat(parts, dim=1)

    def named(self, flat: Tensor) -> State:
        """Parameters by name, `[seeds, ...]`, as views of `flat`."""
        parts = zip(self._shapes.items(), flat.split(self._sizes, dim=1), strict=True)
        return {name: part[:, : math.prod(shape[1:])].reshape(shape) for (name, shape), part in parts}


def run_stacked(skeleton: nn.Module, parameters: State, buffers: State, shown: Windows, same: bool) -> Tensor:
    """Forecasts `[seeds, windows, horizon]`.

    Args:
        skeleton: The network.
        parameters: `[seeds, ...]` each.
        buffers: `[seeds, ...]` each.
        shown: Windows `[windows, ...]` that all seeds see if `same`, else `[seeds, windows, ...]`.
        same: See `shown`.
    """

    def one(state: State, buffer: State, *parts: Tensor) -> Tensor:
        return functional_call(skeleton, (state, buffer), (Windows(*parts),))

    parts = (
        shown.past_times,
        shown.past_values,
        shown.past_mask,
        shown.future_times,
        shown.future_values,
        shown.future_mask,
    )
    axes = (0, 0, *(None if same else 0,) * len(parts))
    with _batchable(shown.past_values.device), TokensAsRows():
        return vmap(one, in_dims=axes, randomness="different")(parameters, buffers, *parts)


class TokensAsRows(TorchFunctionMode):
    """Apply linear maps to tokens as rows of one matrix, so that `vmap` makes one product for each seed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        if func is F.linear and args[0].dim() > 2:
            x, *rest = args
            rows = func(x.reshape(-1, x.shape[-1]), *rest, **(kwargs or {}))
            return rows.reshape(*x.shape[:-1], rows.shape[-1])
        return func(*args, **(kwargs or {}))


def _batchable(device: torch.device) -> AbstractContextManager[Any]:
    """Keep softmax attention on the CPU to the form that `vmap` can batch; CUDA's kernels all can be."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def _padded(rows: Tensor) -> Tensor:
    """Rows whose length is a multiple of four: then each parameter begins where matrix products want it."""
    return F.pad(rows, (0, -rows.shape[1] % 4))


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()
