"""The training loop of one rank among several: DDP, ZeRO-1 and FSDP2 around the same step.

Model and loss are one module here, since what shards it gathers weights when a module is called, and all-reduces when
its backward is done. Ranks may have unequal numbers of tokens; every rank's summed loss is divided by the tokens of
all of them, and multiplied by their number, as gradients are averaged.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .blocks import block_list
from .errors import UserError
from .host import SavedOnHost
from .host_shards import kept_on_host, shards_on_host
from .measure.places import in_host_memory
from .packing.window import Batch, labels_of
from .recipe import FSDP, Recipe
from .run import PhaseContext, Trainer, adamw_flags, build_optimizer, loss_of, no_phase
from .sharding.held import gathered_parameters

FAKE = "fake"
"""The name of torch's process group that has ranks, but no other process: that of a trace."""


class WithLoss(nn.Module):
    """A causal language model with its summed loss, as one module."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.recipe = model, recipe

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss summed over tokens; ids and shifted labels are (sequences, tokens)."""
        return loss_of(self.model, ids, target, self.recipe)


class RankTrainer(Trainer):
    """A `Trainer` whose `model` is wrapped by DDP, or sharded by FSDP2, around a `WithLoss`.

    Under DDP, gradients are reduced in the last micro-batch only (`no_sync`); under FSDP2 in each, so that none are
    held whole.
    """

    def step(self, window: Any, phase: PhaseContext = no_phase) -> torch.Tensor:
        """As `Trainer.step`, over the windows of all ranks; the mean loss a token of all of them."""
        with shards_on_host() if self.recipe.offload != "none" else nullcontext():
            loss = super().step(window, phase) / self.recipe.ranks
        dist.all_reduce(loss)
        return loss

    @property
    def states(self) -> torch.optim.Optimizer:
        """The optimizer that holds this process's optimizer state: `ZeroRedundancyOptimizer` keeps it in another."""
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            return cast(torch.optim.Optimizer, self.optimizer.optim)
        return self.optimizer

    def buckets(self) -> list[torch.Tensor]:
        """DDP's buckets, by the gradients that are views of them: to be asked before gradients are set to `None`."""
        grads = (parameter.grad for parameter in self.model.parameters())
        return [] if isinstance(self.model, FSDPModule) else [grad for grad in grads if grad is not None]

    def watched(self) -> list[nn.Parameter]:
        """FSDP2's gathered parameters, once they have been gathered: they get the gradients, to be reduced."""
        return list(gathered_parameters(self.model))

    def on_host(self) -> Iterable[torch.Tensor]:
        """FSDP2's shards, their gradients and the optimizer's state, where the recipe offloads them."""
        return [] if self.recipe.offload == "none" else kept_on_host(self.model, self.optimizer)

    def _updating(self) -> AbstractContextManager[None]:
        return nullcontext() if self.recipe.offload == "none" else in_host_memory()

    def _tokens(self, window: Sequence[Batch]) -> float:
        own = super()._tokens(window)
        if dist.get_backend() == FAKE:
            return own
        tokens = torch.tensor(own, device=labels_of(window[0]).device)
        dist.all_reduce(tokens)
        return int(tokens) / self.recipe.ranks

    def _reducing(self, last: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel) and not last:
            return cast(AbstractContextManager[None], self.model.no_sync())
        return nullcontext()

    def _loss(self, batch: Batch, target: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.model(batch, target))


def build_for_ranks(
    model: nn.Module, recipe: Recipe, scaler: torch.amp.GradScaler | None, saving: AbstractContextManager[Any]
) -> RankTrainer:
    """The part of this process in training `model` over the ranks of its process group.

    Raises `UserError` where there is no group, one of another size, or no loop of ours for this sharding.
    """
    if recipe.sharding not in ("ddp", "zero1", *FSDP):
        raise UserError(f"run: sharding {recipe.sharding} has a loop of its own, DeepSpeed's engine; price it instead")
    if not dist.is_initialized() or dist.get_world_size() != recipe.ranks:
        found = dist.get_world_size() if dist.is_initialized() else "none"
        raise UserError(
            f"run: the recipe has {recipe.ranks} ranks, the process group has {found}; launch as many processes"
        )
    whole = WithLoss(model, recipe)
    if recipe.sharding in FSDP:
        shard(whole, recipe)
        if isinstance(saving, SavedOnHost):
            _keep_gathered(whole, saving)
        return RankTrainer(whole, build_optimizer(whole, recipe), recipe, scaler, saving)
    wrapped = _distributed(whole)
    if recipe.sharding == "ddp":
        return RankTrainer(wrapped, build_optimizer(wrapped, recipe), recipe, scaler, saving)
    trainable = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    optimizer = ZeroRedundancyOptimizer(trainable, torch.optim.AdamW, lr=1e-4, **adamw_flags(recipe))
    return RankTrainer(wrapped, optimizer, recipe, scaler, saving)


def shard(whole: WithLoss, recipe: Recipe) -> None:
    """Shard with FSDP2, in place: each checkpointed segment of blocks (or block) is gathered by itself, the rest once.

    The rest is the embedding, the final norm and the head, which the root module holds from forward to backward.
    """
    device = next(whole.parameters()).device.type
    mixed = recipe.precision == "bf16-mixed"
    common: dict[str, Any] = {
        "mesh": device_mesh(device, recipe),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy(),
    }
    if recipe.offload != "none":
        common["offload_policy"] = CPUOffloadPolicy(pin_memory=device != "cpu")
    owner, name = block_list(whole.model)
    for segment in getattr(owner, name):
        fully_shard(segment, reshard_after_forward=recipe.sharding != "fsdp-no-reshard", **common)
    fully_shard(whole, **common)


def _keep_gathered(whole: nn.Module, saving: SavedOnHost) -> None:
    """Before each unit's forward, when FSDP2 has gathered its weights, tell `saving` that they are weights."""
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.register_forward_pre_hook(lambda unit, inputs: saving.keep(gathered_parameters(unit)))


def device_mesh(device: str, recipe: Recipe) -> DeviceMesh:
    """The ranks in one row, or with replicas in rows of shards, one under the other."""
    with unset_fake_temporarily():
        if recipe.replicas == 1:
            return init_device_mesh(device, (recipe.ranks,), mesh_dim_names=("shard",))
        return init_device_mesh(device, (recipe.replicas, recipe.shards), mesh_dim_names=("replicate", "shard"))


def _distributed(whole: WithLoss) -> DistributedDataParallel:
    """DDP with gradients as views of its buckets; a fake group has nobody to compare weights with."""
    devices = None if (first := next(whole.parameters()).device).type == "cpu" else [first]
    fake = dist.get_backend() == FAKE
    # Buffers are tables of frequencies here, the same on each rank: DDP need not send them round in each forward pass.
    buffers = [name for name, _ in whole.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(whole, buffers)
    made = DistributedDataParallel(whole, device_ids=devices, gradient_as_bucket_view=True, init_sync=not fake)
    if fake:
        made.register_comm_hook(None, _reduce_at_once)
    return made


def _reduce_at_once(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """DDP's own all-reduce of a bucket; a fake group returns no future, so that its result is handed over here."""
    dist.all_reduce(bucket.buffer())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
