r"""Attention over a context that is spread over processes: keys and values pass round the ring.

Each process holds a stretch of the sequence. The piece between the last knot of one stretch and the first
knot of the next belongs to neither, so every stretch begins with a copy of the knot before it, its halo.
Integrals over stretches are merged by the logarithms of their sums of weights $l_j$:

$$o = \sum_j e^{l_j - l} o_j, \quad l = \log \sum_j e^{l_j}, \quad
  \frac{\partial o}{\partial l_j} = e^{l_j - l} (o_j - o)$$

Memory of a process grows with its own stretch, not with the context: the backward pass solves each stretch
anew.

References:
    Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
    arXiv 2310.01889.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ctsattn.ops.continuous.api import Backend, choose_backend
from ctsattn.ops.continuous.clock import steps_between, unit_of
from ctsattn.ops.continuous.ends import combine
from ctsattn.ops.continuous.knots import Knots
from ctsattn.ops.continuous.request import checked_request
from ctsattn.ops.continuous.sink import Sink, add_sink
from ctsattn.ops.continuous.solve import Core


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    times: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    sink: Sink | tuple | None = None,
    enable_gqa: bool = False,
    group: Any = None,
    backend: Backend | None = None,
) -> Tensor:
    """`continuous_attention` over a sequence of which each process of a group holds one stretch, in order.

    Every process must make the call, and the same calls of `backward`. Gradients are those of one process,
    but for the times of a stretch whose keys are all at one time: the gradient in its gaps is taken as 0.

    Args:
        q: Queries of this stretch `[batch, heads, length, head_dim]`; query i sits at key i.
        k: Keys of this stretch `[batch, kv_heads, length, head_dim]`, at least one.
        v: Values `[batch, kv_heads, length, value_dim]`.
        times: Times of the keys `[batch, length]` or `[length]`, ascending over all stretches; None: unit
            gaps.
        is_causal: Whether a query sees only keys that are not later than itself.
        scale: Factor on the scores; None: `1 / sqrt(head_dim)`.
        sink: A knot before the first key of the first stretch, as in `continuous_attention`; its gap is a
            number or a tensor. All processes give the same one.
        enable_gqa: Whether several query heads may share a key head.
        group: Processes of `torch.distributed`; None: all.
        backend: As in `continuous_attention`.

    Returns:
        Answers to the queries of this stretch, as `continuous_attention` over the whole sequence gives them.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or option is wrong, or there is no process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "`ring_attention` needs a process group. Start the script with torchrun and call "
            "torch.distributed.init_process_group() first."
        )
    request = checked_request(
        q, k, v, times, is_causal=is_causal, scale=scale, sink=sink, enable_gqa=enable_gqa
    )
    if request.sink is not None and isinstance(request.sink.gap, str):
        raise ValueError('`sink.gap="median"` reads the whole clock; give a number or a tensor.')
    ring = _Ring.of(k.shape[2], request.sink is not None, is_causal, group)
    core = choose_backend(backend, q, k, v)
    k, v, gaps = _stretch(
        k, v, request.times, request.sink, ring, torch.promote_types(q.dtype, torch.float32)
    )
    out, lse = _Attend.apply(q, k, v, gaps, None, request.scale, ring, core)
    return _filled(out, lse, q, k, v, gaps, request.scale, ring, core)


class _Ring(NamedTuple):
    """This process's place among the others.

    Attributes:
        rank: Number of this stretch.
        knots: Knots of each stretch, with its halo or sink.
        head: Knots of this stretch that stand before its own.
        causal: Whether queries see only what is not later.
        group: The processes.
    """

    rank: int
    knots: tuple[int, ...]
    head: int
    causal: bool
    group: Any

    @staticmethod
    def of(length: int, has_sink: bool, causal: bool, group: Any) -> _Ring:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        lengths: list[Any] = [None] * size
        dist.all_gather_object(lengths, length, group=group)
        if min(lengths) < 1:
            raise ValueError(f"Every process needs at least one key, but they have {lengths}.")
        knots = (lengths[0] + has_sink, *(n + 1 for n in lengths[1:]))
        return _Ring(rank, knots, knots[rank] - length, causal, group)

    @property
    def size(self) -> int:
        return len(self.knots)

    def holder(self, step: int) -> int:
        """Number of the stretch that is here after some passes."""
        return (self.rank - step) % self.size

    def passed(self, tensors: list[Tensor], step: int) -> list[Tensor]:
        """Hand what came `step` passes ago on to the next process, and take what the one before has."""
        knots = self.knots[self.holder(step + 1)]
        taken = [_resized(x, knots) for x in tensors]
        self.exchange(tensors, taken, forward=True)
        return taken

    def exchange(self, given: list[Tensor], taken: list[Tensor], *, forward: bool) -> None:
        """Send tensors to one neighbour and receive from the other."""
        if self.size == 1:
            for source, target in zip(given, taken, strict=True):
                target.copy_(source)
            return
        ends = [(self.rank + 1) % self.size, (self.rank - 1) % self.size]
        ranks = ends if self.group is None else [dist.get_global_rank(self.group, end) for end in ends]
        to, source = ranks if forward else ranks[::-1]
        moves = [dist.P2POp(dist.isend, x.contiguous(), to, self.group) for x in given]
        moves += [dist.P2POp(dist.irecv, x, source, self.group) for x in taken]
        for work in dist.batch_isend_irecv(moves):
            work.wait()


def _resized(x: Tensor, knots: int) -> Tensor:
    """An empty tensor like `x` `[batch, (kv_heads,) knots, …]` with another number of knots."""
    axis = 1 if x.dim() == 2 else 2
    shape = [*x.shape[:axis], knots, *x.shape[axis + 1 :]]
    return x.new_empty(shape)


class _Halo(torch.autograd.Function):
    """Last knots go to the next process; the gradient of a halo comes back to where the knot is at home."""

    @staticmethod
    def forward(ctx: Any, ring: _Ring, *last: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        ctx.ring = ring
        taken = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in last]
        ring.exchange([x.detach() for x in last], taken, forward=True)
        ctx.mark_non_differentiable(*(x for x in taken if not x.is_floating_point()))
        ctx.floating = [x.is_floating_point() for x in last]
        return tuple(taken)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = [grad.contiguous() for grad, floating in zip(grads, ctx.floating, strict=True) if floating]
        taken = [torch.empty_like(x) for x in given]
        ctx.ring.exchange(given, taken, forward=False)
        found = iter(taken)
        return None, *(next(found) if floating else None for floating in ctx.floating)


def _stretch(
    k: Tensor, v: Tensor, times: Tensor | None, sink: Sink | None, ring: _Ring, wide: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and gaps of this stretch, with its halo or the sink, in the unit of the whole sequence."""
    batch, own = k.shape[0], k.shape[2]
    clock = (
        torch.arange(own, device=k.device).expand(batch, own) if times is None else times.expand(batch, own)
    )
    halo_k, halo_v, halo_t = _Halo.apply(ring, k[:, :, -1:], v[:, :, -1:], clock[:, -1:])
    begin = 1 if ring.rank else 0  # the first stretch has no knot before it, but takes part in the exchange
    if times is None:
        halo_t = clock[:, :1] - 1
    k, v = torch.cat([halo_k[:, :, :begin], k], dim=2), torch.cat([halo_v[:, :, :begin], v], dim=2)
    gaps = steps_between(torch.cat([halo_t[:, :begin], clock], dim=1), wide)
    if sink is not None and not ring.rank:
        knots = Knots(k, v, None, None, None, None, in_place=True)
        k, v, gaps = add_sink(sink, sink.gap_of(knots, gaps), knots, gaps, None)
    return k, v, (gaps / _unit(gaps, ring)).to(wide)


def _unit(gaps: Tensor, ring: _Ring) -> Tensor:
    """The unit that one process would choose: from the first gap of the sequence that is not 0."""
    gaps = gaps.detach()
    first = gaps.gather(1, (gaps > 0).byte().argmax(dim=1, keepdim=True)).contiguous()
    every = [torch.empty_like(first) for _ in range(ring.size)]
    dist.all_gather(every, first, group=ring.group)
    return unit_of(torch.cat(every, dim=1))


def _solve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    flat: Tensor | None,
    scale: float,
    ring: _Ring,
    core: Core,
    j: int,
) -> tuple[Tensor, Tensor] | None:
    """What the queries here see of stretch `j`, None where that is nothing; with `flat`, only for those."""
    if ring.causal and j > ring.rank:
        return None
    here = ring.causal and j == ring.rank
    shape = (q.shape[0], q.shape[2])
    first = torch.zeros(shape, dtype=torch.int32, device=q.device)
    last = torch.full_like(first, k.shape[2] - 1)
    if here:
        last = (torch.arange(shape[1], device=q.device, dtype=torch.int32) + ring.head).expand(shape)
    hints = {"causal": here, "full": not here, "offset": ring.head}
    if flat is not None:
        last, hints = torch.where(flat, last, -1), {}
    return core(q, k, v, gaps, first, last, scale, **hints)


class _Attend(torch.autograd.Function):
    """Answers and logarithms of the sums of weights, over all stretches."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gaps: Tensor,
        flat: Tensor | None,
        scale: float,
        ring: _Ring,
        core: Core,
    ) -> tuple[Tensor, Tensor]:
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=gaps.dtype, device=q.device)
        lse = torch.full(q.shape[:3], -torch.inf, dtype=gaps.dtype, device=q.device)
        block = [x.detach().contiguous() for x in (k, v, gaps)]
        for step in range(ring.size):
            keys, values, lengths = block
            found = _solve(q, keys, values, lengths, flat, scale, ring, core, ring.holder(step))
            if found is not None:
                out, lse = _merged(out, lse, *found)
            if step + 1 < ring.size:
                block = ring.passed(block, step)
        ctx.save_for_backward(q, k, v, gaps, out, lse)
        ctx.rest = flat, scale, ring, core
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, gaps, out, lse = ctx.saved_tensors
        flat, scale, ring, core = ctx.rest
        block = [x.detach().contiguous() for x in (k, v, gaps)]
        grads = [torch.zeros_like(x, dtype=gaps.dtype) for x in block]
        query_grad = torch.zeros_like(q, dtype=gaps.dtype)
        for step in range(ring.size):
            leaves = [x.detach().requires_grad_() for x in (q, *block)]
            here, keys, values, lengths = leaves
            with torch.enable_grad():
                found = _solve(here, keys, values, lengths, flat, scale, ring, core, ring.holder(step))
            if found is not None:
                for_q, *for_block = _block_grads(found, leaves, grad, out, lse)
                query_grad += for_q
                grads = [total + x for total, x in zip(grads, for_block, strict=True)]
            moved = ring.passed([*block, *grads], step)  # after the last pass the gradients are at home
            block, grads = moved[:3], moved[3:]
        home = [x.to(like.dtype) for x, like in zip(grads, (k, v, gaps), strict=True)]
        return query_grad.to(q.dtype), *home, None, None, None, None


def _merged(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Add the integral over another stretch."""
    peak = torch.maximum(lse, more_lse)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    return combine(out, lse, peak, [((more_lse - peak).exp(), more.to(lse.dtype))])


def _block_grads(
    found: tuple[Tensor, Tensor], leaves: list[Tensor], grad: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, ...]:
    """Gradients in the queries and in one stretch."""
    part, part_lse = found
    share = torch.where(lse == -torch.inf, 0.0, (part_lse.detach() - lse).exp())
    for_lse = share * (grad * (part.detach().to(out.dtype) - out)).sum(dim=-1)
    for_out = (share[..., None] * grad).to(part.dtype)
    # A stretch that a query does not see has the logarithm -inf, whose gradient is 0 and not nan.
    for_lse = torch.where(share > 0, for_lse, 0.0)
    given = torch.autograd.grad((part, part_lse), leaves, (for_out, for_lse), allow_unused=True)
    return tuple(
        torch.zeros_like(leaf, dtype=out.dtype) if x is None else x.to(out.dtype)
        for x, leaf in zip(given, leaves, strict=True)
    )


def _filled(
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gaps: Tensor,
    scale: float,
    ring: _Ring,
    core: Core,
) -> Tensor:
    """Give queries with nothing to integrate the limit as all gaps shrink together."""
    flat = (lse == -torch.inf).any(dim=1)
    if ring.causal and not ring.rank and not ring.head:
        only = v[:, :, :1].repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # the first query sees one key
        out = torch.cat([only.to(out.dtype), out[:, :, 1:]], dim=2)
        flat = torch.cat([torch.zeros_like(flat[:, :1]), flat[:, 1:]], dim=1)
    some = flat.any().int()
    dist.all_reduce(some, op=dist.ReduceOp.MAX, group=ring.group)
    if some.item():
        limit, _ = _Attend.apply(q, k, v, torch.ones_like(gaps), flat, scale, ring, core)
        out = torch.where(flat[:, None, :, None], limit, out)
    return out.to(q.dtype)
