"""Networks of all seeds as one: flat parameters with a leading seed axis, and one product for all seeds.

`vmap` runs over the seed axis. The operators of ctsattn take it into their batch, and so does softmax here; a
linear map of tokens `[seeds, batch, length, features]` becomes one batched product over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
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
    with SeedsInBatch():
        return vmap(one, in_dims=axes, randomness="different")(parameters, buffers, *parts)


class SeedsInBatch(TorchFunctionMode):
    """Put what `vmap` maps slowly or not at all into forms that it maps well."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if func is F.linear and args[0].dim() > 2:
            x, *rest = args
            rows = func(x.reshape(-1, x.shape[-1]), *rest, **kwargs)
            return rows.reshape(*x.shape[:-1], rows.shape[-1])
        if func is F.scaled_dot_product_attention:
            q, k, v, visible = args
            return _Attention.apply(q, k, v, visible)
        return func(*args, **kwargs)


class _Attention(torch.autograd.Function):
    """Softmax attention whose batch takes the mapped axis in; gradients are the kernel's own."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        """Never runs: under `vmap` there is only its rule."""
        raise NotImplementedError("This operator runs under `vmap` alone.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: the rule's operations keep what they need."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Fold the mapped axis into the batch; what all queries share stays as it is."""
        q, k, v, visible = args

        def folded(x: Tensor, dim: int | None) -> Tensor:
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        q, k, v = (folded(x, dim) for x, dim in zip((q, k, v), in_dims, strict=False))
        if visible is not None and (in_dims[3] is not None or visible.shape[0] > 1):
            visible = folded(visible, in_dims[3])
        out = F.scaled_dot_product_attention(q, k, v, visible)
        return out.unflatten(0, (info.batch_size, -1)), 0


def _padded(rows: Tensor) -> Tensor:
    """Rows whose length is a multiple of four: then each parameter begins where matrix products want it."""
    return F.pad(rows, (0, -rows.shape[1] % 4))


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()
