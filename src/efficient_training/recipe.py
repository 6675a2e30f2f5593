"""A recipe: how a workload is trained. One field a technique, each with the plain choice as its default."""

from dataclasses import dataclass
from typing import Literal

from .errors import UserError, shown
from .fields import LARGEST, check_positive, check_types
from .workload import Workload

Precision = Literal["fp32", "bf16-autocast", "fp16-autocast", "bf16", "bf16-mixed"]
Checkpointing = Literal["none", "full", "selective", "selective-half"]
OptimizerImplementation = Literal["loop", "foreach", "fused"]
Loss = Literal["upcast", "native", "chunked"]
Attention = Literal["math", "efficient", "flash", "sdpa"]
Sharding = Literal[
    "none", "ddp", "zero1", "fsdp", "fsdp-no-reshard", "hsdp", "deepspeed-1", "deepspeed-2", "deepspeed-3"
]
Offload = Literal["none", "optimizer", "parameters", "optimizer-nvme", "parameters-nvme"]

FSDP: tuple[Sharding, ...] = ("fsdp", "fsdp-no-reshard", "hsdp")
"""What FSDP2 (`torch.distributed.fsdp.fully_shard`) does."""
DEEPSPEED: tuple[Sharding, ...] = ("deepspeed-1", "deepspeed-2", "deepspeed-3")
"""What DeepSpeed does, by its stage of ZeRO."""
PRECISIONS: dict[Sharding, tuple[Precision, ...]] = {
    **dict.fromkeys(("none", "ddp", "zero1"), ("fp32", "bf16-autocast", "fp16-autocast", "bf16")),
    **dict.fromkeys(FSDP, ("fp32", "bf16", "bf16-mixed")),
    **dict.fromkeys(DEEPSPEED, ("fp32", "bf16-mixed")),
}
"""The precisions in which each sharding trains."""
OFFLOADS: dict[Sharding, tuple[Offload, ...]] = {
    **dict.fromkeys(("none", "ddp", "zero1"), ("none",)),
    **dict.fromkeys(FSDP, ("none", "parameters")),
    **dict.fromkeys(("deepspeed-1", "deepspeed-2"), ("none", "optimizer")),
    "deepspeed-3": ("none", "optimizer", "parameters", "optimizer-nvme", "parameters-nvme"),
}
"""What each sharding can keep off the device: FSDP2's CPU offload takes parameters and optimizer, or nothing."""


@dataclass(frozen=True)
class Recipe:
    """The techniques, and the micro-batch size; accumulation steps follow from both (`accumulation_steps`).

    - `precision`: fp32 throughout; autocast to 16 bits over fp32 weights (fp16 with a gradient scaler); `bf16`, with
      weights, gradients and optimizer state all in bf16.
    - `checkpointing`: `full` recomputes whole segments of `checkpoint_every` blocks; `selective` recomputes what is no
      matrix product and no attention (torch's op policy), block by block; `selective-half` also every second product
      of a block, as torchtitan's policy does.
    - `optimizer`: how torch's AdamW runs its step.
    - `loss`: `upcast` computes cross-entropy on fp32 logits, as transformers does; `native` on logits as they are;
      `chunked` never holds the logits of all tokens.
    - `attention`: a kernel of scaled-dot-product attention; `sdpa` is whichever CUDA picks.
    - `compile`: `torch.compile` of all but head and loss; it can be run, and is neither traced nor priced.
    - `ranks`: processes that train together, one device each; `micro_batch` is that of each of them.
    - `sharding`: what ranks divide among them. `ddp` nothing (gradients are views of DDP's buckets); `zero1` the
      optimizer state (`ZeroRedundancyOptimizer` over DDP); `fsdp` everything, block by block, gathered anew in
      backward; `fsdp-no-reshard` keeps gathered weights from forward to backward; `hsdp` shards within groups, of
      which there are `replicas`; `deepspeed-1` to `-3` are DeepSpeed's stages of ZeRO.
    - `precision: bf16-mixed`: weights are gathered and used in bf16, their masters, gradients after the reduction and
      optimizer state are fp32 (FSDP2's `MixedPrecisionPolicy`, DeepSpeed's `bf16`).
    - `offload`: what is kept in host memory, or (`-nvme`) on disk: optimizer state, or parameters with it.
    - `offload_activations`: tensors saved for backward wait in host memory, but for weights.
    """

    micro_batch: int
    precision: Precision = "fp32"
    checkpointing: Checkpointing = "none"
    checkpoint_every: int = 1
    optimizer: OptimizerImplementation = "foreach"
    loss: Loss = "upcast"
    attention: Attention = "sdpa"
    compile: bool = False
    ranks: int = 1
    sharding: Sharding = "none"
    replicas: int = 1
    offload: Offload = "none"
    offload_activations: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_positive(self, "micro_batch", "checkpoint_every", "ranks", "replicas")
        if self.checkpoint_every != 1 and self.checkpointing != "full":
            raise UserError(f"recipe: checkpoint_every needs checkpointing: full, got {self.checkpointing}")
        if self.attention == "flash" and self.precision == "fp32":
            raise UserError("recipe: attention flash needs 16-bit inputs; choose efficient, or another precision")
        if self.compile and (self.checkpointing != "none" or self.ranks > 1):
            raise UserError("recipe: compile needs checkpointing none and one rank; the compiler recomputes by itself")
        self._check_ranks()
        if self.precision not in PRECISIONS[self.sharding]:
            raise UserError(
                f"recipe: sharding {self.sharding} does not train in precision {self.precision}; choose "
                f"{', '.join(PRECISIONS[self.sharding])}"
            )
        if self.compile and self.offload_activations:
            raise UserError("recipe: offload_activations needs compile: false; the compiler decides what it saves")
        if self.offload_activations and self.checkpointing != "none":
            raise UserError(
                f"recipe: offload_activations needs checkpointing none, got {self.checkpointing}: a checkpoint holds "
                "the inputs of its segments itself, where no hook on saved tensors can take them"
            )
        if self.offload not in OFFLOADS[self.sharding]:
            takers = [name for name, offered in OFFLOADS.items() if self.offload in offered]
            raise UserError(
                f"recipe: sharding {self.sharding} has no offload {self.offload}; sharding that has: "
                f"{', '.join(takers)}"
            )

    def _check_ranks(self) -> None:
        if (self.sharding == "none") != (self.ranks == 1):
            raise UserError(
                f"recipe: ranks ({self.ranks}) and sharding ({self.sharding}) do not fit: one rank trains without "
                "sharding, several need one"
            )
        if (self.sharding == "hsdp") != (self.replicas > 1):
            raise UserError(
                f"recipe: replicas ({self.replicas}) must be above 1 with sharding hsdp, and 1 without, got sharding "
                f"{self.sharding}"
            )
        if self.ranks % self.replicas or (self.replicas > 1 and self.ranks == self.replicas):
            raise UserError(
                f"recipe: replicas ({self.replicas}) must divide ranks ({self.ranks}) into groups of two or more"
            )

    @property
    def shards(self) -> int:
        """The number of ranks among which one copy of the model is divided."""
        return self.ranks // self.replicas


def accumulation_steps(workload: Workload, recipe: Recipe) -> int:
    """Micro-batches that each rank runs in one optimizer step.

    Raises `UserError` where the micro-batches of all ranks do not divide the step, and where one has tensors of more
    bytes than int64 counts.
    """
    _check_countable(workload, recipe)
    sequences = workload.sequences_per_step
    steps, rest = divmod(sequences, recipe.micro_batch * recipe.ranks)
    if rest:
        ranks = f" times ranks ({recipe.ranks})" if recipe.ranks > 1 else ""
        raise UserError(
            f"recipe: micro_batch ({recipe.micro_batch}){ranks} must divide the {sequences} sequences of a step"
        )
    return steps


def _check_countable(workload: Workload, recipe: Recipe) -> None:
    for value, kind in ((workload, Workload), (recipe, Recipe)):
        if not isinstance(value, kind):
            raise UserError(f"{kind.__name__.lower()}: must be a {kind.__name__}, got {shown(value)}")
    shape, length = workload.model, workload.sequence_length
    widest = max(shape.vocab, shape.ffn, shape.hidden, shape.heads * max(length, shape.head_dim))
    # A score, a logit or a frequency takes 4 bytes, and a few of them are held side by side.
    if 16 * recipe.micro_batch * length * widest > LARGEST:
        raise UserError(
            f"recipe: a micro-batch of {recipe.micro_batch} x {length} tokens has tensors of more than 2^63 bytes; "
            "take a smaller micro_batch or sequence_length"
        )
