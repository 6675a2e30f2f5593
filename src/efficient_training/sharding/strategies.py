"""A plain model under a strategy of PyTorch's own: DDP, ZeroRedundancyOptimizer, FSDP2, FSDP1.

Each function is a few lines around the library's call, so that a strategy can be read here as one would write it.
"""

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import UserError
from ..recipe import FSDP
from .words import check_strategy

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
"""Parameters to optimizer, such as `functools.partial(torch.optim.AdamW, lr=1e-3)`."""

FSDP1_STRATEGIES = {
    "fsdp1-full": ShardingStrategy.FULL_SHARD,
    "fsdp1-grad-op": ShardingStrategy.SHARD_GRAD_OP,
    "fsdp1-no-shard": ShardingStrategy.NO_SHARD,
}


@dataclass
class Sharded:
    """A model and its optimizer under a strategy: one step is `model(x)`, `backward(loss)`, `step()`."""

    strategy: str
    model: nn.Module
    optimizer: Optimizer

    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients; what the strategy sends for them is sent here."""
        loss.backward()

    def step(self) -> None:
        """Update the weights and drop the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def shard(
    model: nn.Module,
    strategy: str,
    make_optimizer: MakeOptimizer,
    *,
    blocks: Sequence[nn.Module] = (),
    policy: MixedPrecisionPolicy | None = None,
    mesh: DeviceMesh | None = None,
) -> Sharded:
    """Put `model`, the same on every rank, under `strategy`, over all ranks or those of `mesh` (FSDP2 only).

    `blocks` are FSDP's units beside the whole; `policy` is FSDP2's mixed precision. `model` is changed in place or
    wrapped. Raises `UserError` on an unknown strategy, on a DeepSpeed stage (see `engine.engine`), or on a `policy` or
    `mesh` that the strategy does not take.
    """
    check_strategy(strategy)
    if strategy.startswith("deepspeed"):
        raise UserError(f"sharding: {strategy} makes its own engine: use efficient_training.sharding.engine.engine")
    fsdp2 = strategy in FSDP
    if not fsdp2 and (policy is not None or mesh is not None):
        raise UserError(f"sharding: {strategy} takes neither a policy nor a mesh; they are FSDP2's")
    if fsdp2:
        if strategy == "hsdp":
            mesh = mesh or hybrid_mesh(next(model.parameters()).device.type)
        model = fsdp(model, blocks, mesh=mesh, reshard_after_forward=strategy != "fsdp-no-reshard", policy=policy)
        return Sharded(strategy, model, make_optimizer(model.parameters()))
    if strategy in FSDP1_STRATEGIES:
        model = fsdp1(model, blocks, FSDP1_STRATEGIES[strategy])
        return Sharded(strategy, model, make_optimizer(model.parameters()))
    model = ddp(model)
    if strategy == "zero1":
        return Sharded(strategy, model, zero1(model.parameters(), make_optimizer))
    return Sharded(strategy, model, make_optimizer(model.parameters()))


def ddp(model: nn.Module) -> DistributedDataParallel:
    """`model` on every rank, gradients averaged in backward; gradients are views of the buckets, not a second copy."""
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def zero1(parameters: Iterable[nn.Parameter], make_optimizer: MakeOptimizer) -> ZeroRedundancyOptimizer:
    """An optimizer whose state is divided among the ranks, parameter by parameter."""
    if not isinstance(make_optimizer, functools.partial):
        raise UserError(
            "sharding: zero1 needs functools.partial(torch.optim.AdamW, ...), to call it on each rank's part"
        )
    return ZeroRedundancyOptimizer(parameters, make_optimizer.func, **make_optimizer.keywords)  # type: ignore[arg-type]


def fsdp(
    model: nn.Module,
    blocks: Sequence[nn.Module] = (),
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = True,
    policy: MixedPrecisionPolicy | None = None,
) -> nn.Module:
    """FSDP2: each block a unit, and what is left of `model` (embedding, last norm, head) another; changes `model`.

    With `reshard_after_forward` True every unit lets go of its gathered weights after forward, as in theory; with False
    each keeps them until backward is done with them. None is `fully_shard`'s own default, and what `run` does and
    `price` counts: only the outermost unit, with which backward begins, keeps them.
    """
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard_after_forward}
    if policy is not None:
        options["mp_policy"] = policy
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def hybrid_mesh(device_type: str, shard_ranks: int = 2) -> DeviceMesh:
    """All ranks as groups of `shard_ranks` neighbors, which divide the states; the groups are replicas of each other.

    Raises `UserError` where the groups do not come out even.
    """
    groups, rest = divmod(dist.get_world_size(), shard_ranks)
    if rest:
        raise UserError(f"sharding: {dist.get_world_size()} ranks do not make groups of {shard_ranks}")
    return init_device_mesh(device_type, (groups, shard_ranks), mesh_dim_names=("replicate", "shard"))


def fsdp1(model: nn.Module, blocks: Sequence[nn.Module], strategy: ShardingStrategy) -> FullyShardedDataParallel:
    """FSDP1, kept for comparison: each unit's parameters in one flat one (`use_orig_params=False`, its first form)."""
    units = {id(block) for block in blocks}
    with warnings.catch_warnings():
        # It says that it is deprecated, which is why it is here.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message=".*NO_SHARD.*")
        return FullyShardedDataParallel(
            model,
            sharding_strategy=strategy,
            auto_wrap_policy=functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: id(module) in units),
            device_id=next(model.parameters()).device,
        )
