"""Training with the weights spread over processes (`Training(strategy="fsdp")`).

Each process holds a shard of every weight, of its gradient and of what the optimiser remembers of it, and
gathers a layer only while it computes with it: PyTorch's `fully_shard`, run by Lightning. Checkpoints and the
network that comes back hold whole weights, so that neither knows how many processes made them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.forecasting.learner import Learner
from ctsattn.forecasting.shards import shard_like, whole
from ctsattn.forecasting.training import Progress, Training, TrainingLog
from ctsattn.nn import Encoder, QueryDecoder


def sharding_strategy() -> Any:
    """What Lightning calls the strategy that leaves the spreading to `ShardedLearner`."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    return ModelParallelStrategy()


def sharded(network: nn.Module, device: str, processes: int) -> nn.Module:
    """Spread a network over all processes, in place: each layer of encoder and decoder, then the rest.

    Args:
        network: The same in every process.
        device: Kind of device that the shards go to.
        processes: How many there are.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (processes,))
    stacks = [module for module in network.modules() if isinstance(module, (Encoder, QueryDecoder))]
    for layer in (layer for stack in stacks for layer in stack.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


class ShardedLearner(Learner):
    """A learner that trains a copy of its network whose weights are spread over the processes.

    After the run the network has the whole weights, in every process.
    """

    def __init__(self, network: nn.Module, training: Training, progress: Progress | None) -> None:
        super().__init__(network, training, progress)
        self._home = [network]  # in a list, for a child of this module would be moved and trained

    def configure_model(self) -> None:
        """Spread a copy of the network, and what a checkpoint brought, over the processes."""
        if self.network is not self._home[0]:
            return
        device = self.trainer.strategy.root_device.type
        self.network = sharded(copy.deepcopy(self.network), device, self.trainer.world_size)
        self.best_weights = self._shards_of(self.best_weights)
        self.good_weights = self._shards_of(self.good_weights)

    def _shards_of(self, weights: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
        if weights is None:
            return None
        here = self.network.state_dict()
        return {name: shard_like(value, here[name]) for name, value in weights.items()}

    def _harmless_loss(self) -> Tensor:
        from torch.distributed.fsdp import FSDPModule

        for module in self.network.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # gradients of gathered weights would wait for a backward pass of the layer
        shards: list[Any] = list(self.network.parameters())
        return torch.stack([(p.to_local() * 0.0).nan_to_num().sum() for p in shards]).sum()

    def finish(self) -> TrainingLog:
        """As in `Learner`; the whole weights go to the network that was given."""
        log = super().finish()
        home = self._home[0]
        if self.network is not home:
            with torch.no_grad():
                for name, value in home.state_dict().items():
                    value.copy_(whole(self.network.state_dict()[name]))
            self.network = home
        return log
