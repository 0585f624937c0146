"""The past of a channel as a path in real time: joined by straight lines, held at both ends."""

from __future__ import annotations

import torch
from torch import Tensor


def interpolate(times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
    """Value of the path at any time: linear between observations, the nearest one outside.

    Args:
        times: `[..., length]`, ascending, padded on the right; rows that share theirs may give one for all,
            and then one row of `mask` and `at` too.
        values: `[..., length]`.
        mask: `[..., length]`, true at an observation, false in the padding.
        at: `[..., points]`, in any order.

    Returns:
        `[..., points]`; 0 where the path has no observation.
    """
    last = (mask.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    clock = times.masked_fill(~mask, torch.inf).contiguous()
    after = torch.searchsorted(clock, at.contiguous(), right=True)
    left, right = torch.minimum((after - 1).clamp(min=0), last), torch.minimum(after, last)
    start, end = times.gather(-1, left), times.gather(-1, right)
    share = ((at - start) / (end - start).masked_fill(end <= start, 1.0)).clamp(0, 1)
    x0, x1 = (values.gather(-1, i.expand(*values.shape[:-1], -1)) for i in (left, right))
    return torch.lerp(x0, x1, share) * mask.any(dim=-1, keepdim=True)


def shared(*parts: Tensor) -> tuple[Tensor, ...]:
    """Each part `[batch, ...]` as it is; or its first row alone, where each part's rows are all the same.

    Only on a CPU: elsewhere the answer would have to be waited for.
    """
    if any(part.device.type != "cpu" for part in parts):
        return parts
    alike = all(torch.equal(part, part[:1].expand_as(part)) for part in parts)
    return tuple(part[:1] for part in parts) if alike else parts


def widths(times: Tensor, mask: Tensor) -> Tensor:
    """Half of the gaps on both sides of each observation, the trapezoid weights of the path's integral."""
    gaps = times.diff(dim=-1) * mask[..., 1:]
    zero = torch.zeros_like(times[..., :1])
    return (torch.cat([zero, gaps], dim=-1) + torch.cat([gaps, zero], dim=-1)) / 2


def resample(times: Tensor, values: Tensor, mask: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    r"""Bring the path to evenly spaced nodes without losing what lies between them.

    Each observation spreads a hat of weight 1 over its two neighbouring nodes. A node with weight $h \ge 1$
    holds the weighted mean of its observations, one with less takes the share $1 - h$ from the interpolated
    path. A regular series whose gap is the nodes' gap is merely interpolated, and if it stands on the
    nodes, copied.

    Args:
        times: `[batch, channels, length]`, ascending, padded on the right.
        values: `[batch, channels, length]`.
        mask: `[batch, channels, length]`, true at an observation.
        nodes: `[nodes]`, ascending, evenly spaced.

    Returns:
        Values and weights, both `[batch, channels, nodes]`.
    """
    times, mask = shared(times, mask)
    mean, weight = gathered(times, values, mask, nodes)
    at = nodes.expand(*times.shape[:-1], len(nodes))
    share = weight.clamp(max=1)
    path = mean * share + interpolate(times, values, mask, at) * (1 - share)
    return path, weight.expand_as(path)


def gathered(times: Tensor, values: Tensor, mask: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean of the observations about each node, 0 where there is none, and the sum of their weights.

    Arguments and weights as in `resample`; a single node takes what lies within 1 of it. One row of times and
    mask may stand for all.
    """
    count = len(nodes)
    gap = (nodes[-1] - nodes[0]) / (count - 1) if count > 1 else nodes.new_tensor(1.0)
    place = (times - nodes[0]) / gap
    lower = place.floor()
    upper_share = place - lower
    # one node of margin on both sides takes what falls outside
    index = lower.clamp(-1, count).long() + 1
    outside = (place <= -1) | (place >= count)
    hat = torch.stack([1 - upper_share, upper_share], dim=-1) * (mask & ~outside).unsqueeze(-1)
    index = torch.stack([index, (index + 1).clamp(max=count + 1)], dim=-1).flatten(-2)
    empty = values.new_zeros(*values.shape[:-1], count + 2)
    weight = empty[: len(times)].scatter_add(-1, index, hat.flatten(-2))[..., 1:-1]
    sums = (hat * values.unsqueeze(-1)).flatten(-2)
    total = empty.scatter_add(-1, index.expand_as(sums), sums)[..., 1:-1]
    return total / torch.where(weight > 0, weight, 1.0), weight
