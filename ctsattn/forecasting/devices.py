"""Work spread over devices and processes, whose results come back in the order of the work."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import nn

from ctsattn.forecasting.streams import place_among_processes

Job = TypeVar("Job")
Result = TypeVar("Result")
Work = Callable[[nn.Module, torch.device, Job], Result]
PATIENCE = timedelta(minutes=10)  # until a process that shares work gives up on the others


def device_of(accelerator: str) -> torch.device:
    """Where to predict, by the accelerator of the training options."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def devices_of(accelerator: str, devices: int | str | Sequence[int] = 1) -> list[torch.device]:
    """Devices of this process to predict on, by the accelerator and devices of the training options.

    One of several processes has its own GPU, the current one; processors and MPS count as one device.
    """
    device = device_of(accelerator)
    if device.type != "cuda" or place_among_processes()[1] > 1:
        return [device]
    number = torch.cuda.device_count()
    if isinstance(devices, str) and devices not in ("auto", "-1"):
        devices = [int(part) for part in devices.split(",")] if "," in devices else int(devices)
    if isinstance(devices, int) and devices == 1:
        return [device]
    if isinstance(devices, int):
        devices = range(number if devices < 0 else min(devices, number))
    elif isinstance(devices, str):
        devices = range(number)
    return [torch.device("cuda", i) for i in devices]


def on_devices(
    network: nn.Module, jobs: Sequence[Job], devices: Sequence[torch.device], work: Work[Job, Result]
) -> Iterator[Result]:
    """Do jobs on devices, each with its own copy of a network.

    Args:
        network: Moved to the device and back where there is one device; copied where there are several.
        jobs: What to do.
        devices: Where; one may be named several times.
        work: Does a job with the network on a device.

    Yields:
        Results in the order of the jobs.
    """
    if len(devices) == 1:
        moved = network.to(devices[0])
        try:
            yield from (work(moved, devices[0], job) for job in jobs)
        finally:
            network.to("cpu")
        return
    copies = [copy.deepcopy(network).to(device) for device in devices]
    with ThreadPoolExecutor(len(devices), "ctsattn") as threads:
        # One thread for each device takes every n-th job, so that two never meet on one copy.
        shares = [
            threads.submit(lambda i=i: [work(copies[i], devices[i], job) for job in jobs[i :: len(devices)]])
            for i in range(len(devices))
        ]
        done = [share.result() for share in shares]
    yield from (done[i % len(devices)][i // len(devices)] for i in range(len(jobs)))


def share_of(jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs of this process, of those that all processes of a run share."""
    rank, world = place_among_processes()
    return jobs[rank::world]


def collect(results: Sequence[Result]) -> list[Result]:
    """Results of all processes in the order of the jobs, in every process; of this one where it is alone.

    Raises:
        RuntimeError: Another process of the run did not come to the same call.
    """
    rank, world = place_among_processes()
    if world == 1:
        return list(results)
    found: list[Any] = [None] * world
    try:
        group: Any = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)
        torch.distributed.all_gather_object(found, list(results), group=group)
        torch.distributed.destroy_process_group(group)
    except RuntimeError as error:
        raise RuntimeError(
            f"This is process {rank} of the {world} that share a forecast, and it waited in vain for the "
            "others. In a distributed run every process must call `predict`, as it must call `fit`; to "
            "predict in one process only, end the run first: torch.distributed.destroy_process_group()."
        ) from error
    return [found[i % world][i // world] for i in range(sum(map(len, found)))]
