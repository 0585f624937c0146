"""Ways from times to outputs, kept for calls like the one that they were made for.

Over a short series the checks of the arguments and the choice of a backend take longer than half the
attention. So what was found out about a call is kept for those that are alike. Torch's own guards, by which
its compiler decides whether a graph fits, tell in one step whether tensors are: they compare sizes, strides,
dtypes, devices and classes, and what an operator would do with them, so that nothing goes past autocast,
function transforms or modes. The values of the times are looked at by the way itself, at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ctsattn._checks import are_plain, is_recording
from ctsattn.ops.continuous.request import Request

try:
    from torch._C._dynamo import guards as _guards
except ImportError:  # then every call is checked anew
    _guards = None
TensorGuards: Any = getattr(_guards, "TensorGuards", None)

# From q, k, v and times to outputs, or None where the values of the times need more.
Way = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]

_KINDS, _ALIKE = 256, 8  # how many are kept: kinds of calls, and of tensors in each
_LARGEST = 2**14  # queries of a batch; with more, the checks are soon done beside the attention
_ways: dict[tuple, list[tuple[Any, Way]]] = {}


def answer(q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, *options: Any) -> Tensor | None:
    """Outputs, if a call like this has been answered before; `options` are all that differs from defaults."""
    way = None if is_recording() else _found(q, k, v, times, options)
    return None if way is None or times is None else way(q, k, v, times)


def _found(q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, options: tuple) -> Way | None:
    """A way that is kept for tensors like these."""
    try:
        for guards, way in _ways[q.shape, options]:
            if guards.check(q, k, v, times):
                return way
    except (KeyError, TypeError, AttributeError):  # nothing is kept, or an argument is none
        return None
    return None


def answer_by(
    way: Way | None, q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, request: Request, *options: Any
) -> Tensor | None:
    """Outputs by a way to answer a request, if there is one and it has them; it is kept for others."""
    if way is None or times is None or request.times is None:
        return None
    out = way(q, k, v, request.times)
    known = out is not None and TensorGuards is not None and times.dtype == request.times.dtype
    known = known and q.shape[0] * q.shape[2] <= _LARGEST and not torch.is_autocast_enabled("cpu")
    if known and are_plain(q, k, v, times):
        _keep(way, (q, k, v, times), options)
    return out


def _keep(way: Way, like: tuple[Tensor, ...], options: tuple) -> None:
    """Keep a way for calls with tensors like these."""
    if len(_ways) >= _KINDS:
        _ways.clear()
    sizes, strides = [list(x.shape) for x in like], [list(x.stride()) for x in like]
    guards = TensorGuards(*like, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    kept = _ways.get((like[0].shape, options), [])
    _ways[like[0].shape, options] = [(guards, way), *kept[: _ALIKE - 1]]
