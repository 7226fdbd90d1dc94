"""An update of a model of which each rank holds a shard of every parameter (PyTorch's fully_shard, FSDP2).

Each rank works on its local shards, plain tensors that share memory with the model's DTensors: clipping, optimizer and
recorder are those of one process, and only norms and sums are taken over the ranks that together have a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from gradlab.base.distributed import World
from gradlab.base.randomness import mix
from gradlab.update.ema import EMA
from gradlab.update.gradients import Gradients, elements_of, raw_elements, tensor_norms, total_norm
from gradlab.update.stats import MicroBatch
from gradlab.update.step import Update
from gradlab.update.terms import TermsUpdate


def local_shard(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's shard of a tensor that every rank has whole; without communication."""
    made = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return made.to_local()


def as_dtensor(shard: torch.Tensor, like: DTensor) -> DTensor:
    """The tensor of which every rank has a shard, placed as `like` is."""
    size: dict[str, Any] = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(shard, like.device_mesh, like.placements, run_check=False, **size)


def own_shard(parameter: Any) -> torch.nn.Parameter:
    """This rank's shard of a parameter, of which it is a view."""
    return torch.nn.Parameter(parameter.detach().to_local(), parameter.requires_grad)


@dataclass
class ShardedGradients(Gradients):
    """Tensors are this rank's shards; norms and total are of the whole gradients."""

    world: World = field(default_factory=World)

    def norms_of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The squares of float64 norms stay within its range."""
        return self.world.sum_(tensor_norms(tensors, self.total.device).square()).sqrt()

    def magnitudes(self, order: float) -> torch.Tensor:
        own = super().magnitudes(order)
        return self.world.sum_(own) if order == 1 else self.world.max_(own)

    def elements(self) -> dict[str, torch.Tensor]:
        sums, sizes, highest, bad = raw_elements(self.tensors, self.norms)
        sums, sizes, bad = self.world.sum_(torch.stack([sums, sizes, bad]))
        return elements_of(sums, sizes, self.world.max_(highest), bad, self.norms)


class ShardedUpdate(Update):
    """`params` are this rank's shards, and `dtensors` the parameters of the model.

    Optimizers that work element by element step the shards, with their fused kernels; others on the DTensors.
    """

    dtensors: list[Any]
    shard_group: World
    """The ranks among which a parameter is divided: groups of them have the same gradients."""

    def hold_(self, shards: Sequence[torch.nn.Parameter]) -> None:
        """Take the parameters' shards of this rank: once, before the first update."""
        self.dtensors, self.params = list(self.params), list(shards)
        mesh = self.dtensors[0].device_mesh
        self.shard_group = self.world if mesh.ndim == 1 else replace(self.world, group=mesh.get_group(1))
        if self.ema is not None:
            self.ema = EMA.of(self.params, self.ema.decay)

    def backward(self, window: Sequence[MicroBatch], i: int, weight: torch.Tensor) -> torch.Tensor:
        loss = super().backward(window, i, weight)
        if i + 1 == len(window):
            for shard, whole in zip(self.params, self.dtensors, strict=True):
                shard.grad = None if whole.grad is None else whole.grad.to_local()
        return loss

    def measure(self) -> Gradients:
        own = super().measure()
        made = ShardedGradients(own.names, own.params, own.tensors, own.norms, own.total, self.shard_group)
        made.norms = self.shard_group.sum_(own.norms.square()).sqrt()
        made.total = total_norm(made.norms)
        return made

    def add_noise(self, gradients: Gradients) -> Gradients:
        """Each rank draws the noise of the whole gradient, one tensor at a time, and adds its shard."""
        if not self.noise.active:
            return gradients
        dtensors = [p for p in self.dtensors if p.grad is not None]
        seed = mix(self.seed, self.attempts)
        self.noise.add_(gradients.tensors, self.applied, seed=seed, dtensors=dtensors, shard=local_shard)
        return self.measure()

    def save_buffers(self) -> None:
        """All ranks begin with rank 0's, as under DDP."""
        if self.module_buffers.there:
            self.world.share_(list(self.module.buffers()))
        super().save_buffers()

    def zero_grad(self) -> None:
        super().zero_grad()
        for p in self.dtensors:
            p.grad = None

    @contextmanager
    def evaluated_weights(self) -> Iterator[bool]:
        with super().evaluated_weights() as others:
            yield others
        for module in self.module.modules() if others else ():
            if isinstance(module, FSDPModule):
                module.reshard()  # what it has gathered are the weights of the evaluation

    def averages(self) -> dict[str, torch.Tensor]:
        likes = dict(zip(self.names, self.dtensors, strict=True))
        return {name: as_dtensor(shard, likes[name]) for name, shard in super().averages().items()}

    def state_dict(self) -> dict[str, Any]:
        """The state of one process, with DTensors in place of the optimizer's tensors."""
        return self.converted(super().state_dict(), lambda t, shard, like: t.shape == shard.shape, as_dtensor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """state: of whole tensors."""
        stepped = {id(p) for group in self.optimizer.param_groups for p in group["params"]}

        def placed(tensor: torch.Tensor, like: DTensor) -> torch.Tensor:
            own = local_shard(tensor, like).clone()
            return as_dtensor(own, like) if id(like) in stepped else own

        likes = dict(zip(self.names, self.dtensors, strict=True))
        average = {name: local_shard(whole, likes[name]) for name, whole in state.get("average", {}).items()}
        state = state | {"average": average}
        super().load_state_dict(self.converted(state, lambda t, shard, like: t.shape == like.shape, placed))

    def converted(self, state: dict[str, Any], fits: Any, convert: Any) -> dict[str, Any]:
        """The same state, with the optimizer's tensors per element of a parameter converted."""
        pairs = list(zip(self.params, self.dtensors, strict=True))
        known = {id(p): pair for pair in pairs for p in pair}
        of = [known[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

        def made(value: Any, shard: torch.Tensor, like: DTensor) -> Any:
            per_element = type(value) is torch.Tensor and value.dim() and fits(value, shard, like)
            return convert(value, like) if per_element else value

        states = state["optimizer"]["state"]
        moved = {i: {name: made(value, *of[i]) for name, value in own.items()} for i, own in states.items()}
        return state | {"optimizer": state["optimizer"] | {"state": moved}}


class ShardedTerms(ShardedUpdate, TermsUpdate):
    """A sharded update for a loss of several terms."""
