"""Work on fixed tensors, recorded once as a CUDA graph and replayed; elsewhere it simply runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recorded:
    """A function without arguments that reads and changes tensors in place.

    On CUDA it is run once to warm up, after which `state` is put back, and then captured: a call launches
    all of its kernels at once, and the host never waits.

    Args:
        work: The function. Nothing in it may depend on values on the host.
        state: Tensors that it changes.
        device: Where it runs.
    """

    def __init__(self, work: Callable[[], None], state: list[Tensor], device: torch.device) -> None:
        self._run = work
        if device.type == "cuda":
            self._run = _captured(work, state).replay

    def __call__(self) -> None:
        """Do the work once."""
        self._run()


def _captured(work: Callable[[], None], state: list[Tensor]) -> torch.cuda.CUDAGraph:
    before = [x.clone() for x in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        for x, value in zip(state, before, strict=True):
            x.copy_(value)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph
