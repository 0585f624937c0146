"""Tensors of which each process of a run may hold a shard: the whole of one, and a shard of a whole one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; where it is spread over processes, each of them must ask, and each gets it."""
    spread: Any = tensor
    return spread.full_tensor() if is_spread(tensor) else tensor


def is_spread(tensor: Tensor) -> bool:
    """Whether this process holds a shard of the tensor only."""
    return hasattr(tensor, "full_tensor")


def holds_shards(module: nn.Module) -> bool:
    """Whether some weights of a module are spread over processes."""
    return any(is_spread(p) for p in module.parameters())


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """The shard of a whole tensor that belongs beside the one of another; all of it where that one is whole.

    Args:
        value: The same in every process.
        like: Of the same shape where it is spread; what has another shape (a count of steps) stays as it is.
    """
    if not is_spread(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    spread: Any = like
    return distribute_tensor(value, spread.device_mesh, spread.placements)
