"""Numba: the entry points of the forward and the backward pass, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable

from ctsattn.ops.continuous.cpu.backward import Found, Slopes, differentiate_tiles
from ctsattn.ops.continuous.cpu.caching import SOURCES, compiled
from ctsattn.ops.continuous.cpu.forward import Answer, answer_tiles
from ctsattn.ops.continuous.cpu.tiles import Strided, unpack


def _entries(sources: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """The compiled entry points; numba's cache on disk sees a change in `sources`, but not in other files.

    Their arguments are flat arrays and one array of numbers, because numba takes longer to accept tuples than
    to attend over a short series.
    """

    @compiled
    def forward(q, k, v, gaps, first, last, numbers, scale, out, lse, peak, inverse, begin, end):
        """Answer tiles `begin` to `end`, counted over batch, heads and tiles."""
        if sources != "":
            inputs, sizes = unpack(q, k, v, gaps, first, last, numbers)
            answer_tiles(inputs, sizes, scale, begin, end, Answer(out, lse, peak, inverse))

    @compiled
    def backward(
        q,
        k,
        v,
        gaps,
        first,
        last,
        numbers,
        scale,
        out,
        grads,
        lse,
        peak,
        inverse,
        dq,
        dk,
        dv,
        dgaps,
        begin,
        end,
    ):
        """Do tasks `begin` to `end`, counted over batch, kv_heads and shares of the tiles of a kv_head.

        The numbers go on with the strides of `out` and of its `grads`, the shares of a kv_head, and whether
        `dgaps` is wanted; `lse` is the gradient of `lse`.
        """
        if sources != "":
            inputs, sizes = unpack(q, k, v, gaps, first, last, numbers)
            n = numbers[17:]
            strided_out, strided_grads = Strided(out, n[0], n[1], n[2]), Strided(grads, n[3], n[4], n[5])
            slopes = Slopes(strided_out, strided_grads, lse, peak, inverse)
            found = Found(dq, dk, dv, dgaps)
            differentiate_tiles(inputs, slopes, sizes, scale, n[6], begin, end, found, n[7] != 0)

    return forward, backward


forward, backward = _entries(SOURCES)
