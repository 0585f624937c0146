"""How `torch.vmap` maps the operators: their batch takes the mapped axis in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def fold_into_batch(operator: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple]:
    """Rule for `register_vmap` of an operator all of whose tensors begin with a batch axis."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple:
        def folded(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        outputs = operator(*(folded(x, dim) for x, dim in zip(args, in_dims, strict=True)))
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in outputs), (0,) * len(outputs)

    return rule
