"""A recipe: how a workload is trained. One field a technique, each with the plain choice as its default."""

from dataclasses import dataclass
from typing import Literal

from .demands import check_workload
from .errors import UserError, shown
from .fields import check_positive, check_types
from .workload import Workload

Precision = Literal["fp32", "bf16-autocast", "fp16-autocast", "bf16", "bf16-mixed"]
Checkpointing = Literal["none", "full", "selective", "selective-half"]
Algorithm = Literal[
    "adamw",
    "adafactor",
    "lion",
    "muon",
    "bnb-adamw8bit",
    "bnb-paged-adamw8bit",
    "bnb-lion8bit",
    "torchao-adamw8bit",
    "torchao-adamw4bit",
    "torchao-adamwfp8",
]
OptimizerImplementation = Literal["loop", "foreach", "fused"]
Loss = Literal["upcast", "native", "chunked"]
Attention = Literal["math", "efficient", "flash", "sdpa"]
Sharding = Literal[
    "none", "ddp", "zero1", "fsdp", "fsdp-no-reshard", "hsdp", "deepspeed-1", "deepspeed-2", "deepspeed-3"
]
Packing = Literal["none", "mask", "varlen"]
Fp8 = Literal["none", "tensorwise", "rowwise", "rowwise-gw-hp"]
Adapter = Literal["none", "lora", "dora", "ia3"]
AdapterTargets = Literal["q-v", "all-linear"]
Quantization = Literal["none", "nf4", "nf4-double"]
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
    - `algorithm`: the optimizer, by its word in `efficient_training.optimizers`.
    - `optimizer`: how torch's AdamW runs its step.
    - `step_in_backward`: each parameter steps as soon as its gradient is whole, and the gradient is freed.
    - `loss`: `upcast` computes cross-entropy on fp32 logits, as transformers does; `native` on logits as they are;
      `chunked` never holds the logits of all tokens.
    - `attention`: a kernel of scaled-dot-product attention; `sdpa` is flash, or efficient in fp32.
    - `compile`: `torch.compile` of all but head and loss; it can be run, and is neither traced nor priced.
    - `ranks`: processes that train together, one device each; `micro_batch` is that of each of them.
    - `sharding`: what ranks divide among them. `ddp` nothing (gradients are views of DDP's buckets); `zero1` the
      optimizer state (`ZeroRedundancyOptimizer` over DDP); `fsdp` everything, block by block, gathered anew in
      backward; `fsdp-no-reshard` keeps gathered weights from forward to backward; `hsdp` shards within groups, of
      which there are `replicas`; `deepspeed-1` to `-3` are DeepSpeed's stages of ZeRO.
    - `precision: bf16-mixed`: weights are gathered and used in bf16, their masters, gradients after the reduction and
      optimizer state are fp32 (FSDP2's `MixedPrecisionPolicy`, DeepSpeed's `bf16`).
    - `offload`: what is kept in host memory, or (`-nvme`) on disk: optimizer state, or parameters with it.
    - `adapter`: `lora` freezes the model and trains a product of two matrices of rank `adapter_rank` beside each of
      `adapter_targets`: queries and values, or all linear layers of the blocks (embedding and head stay as they are);
      `dora` besides a magnitude for each output of these layers; `ia3` a factor for each key, value and input of the
      MLP's last layer. They are fp32 in every precision, as peft has them.
    - `quantization`: frozen linear layers in NF4, their scales in fp32, or with `nf4-double` quantized in turn. What is
      not quantized is fp32, as `prepare_model_for_kbit_training` leaves it, but in precision bf16 as it was loaded.
    - `offload_activations`: tensors saved for backward wait in host memory, but for weights.
    - `packing`: rows hold several documents. `mask` keeps them apart by a mask of tokens x tokens for each row;
      `varlen` by their boundaries, with a kernel that takes lengths (torch's `varlen_attn`: CUDA, 16 bits).
    - `fp8`: linear layers of the blocks multiply in fp8, by torchao: one scale a tensor, or one a row; `rowwise-gw-hp`
      leaves the gradients of weights to bf16.
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
    packing: Packing = "none"
    fp8: Fp8 = "none"
    algorithm: Algorithm = "adamw"
    step_in_backward: bool = False
    adapter: Adapter = "none"
    adapter_rank: int = 16
    adapter_targets: AdapterTargets = "q-v"
    quantization: Quantization = "none"

    def __post_init__(self) -> None:
        check_types(self)
        check_positive(self, "micro_batch", "checkpoint_every", "ranks", "replicas")
        self._check_adapter()
        if self.checkpoint_every != 1 and self.checkpointing != "full":
            raise UserError(f"recipe: checkpoint_every needs checkpointing: full, got {self.checkpointing}")
        if self.attention == "flash" and self.precision == "fp32":
            raise UserError("recipe: attention flash needs 16-bit inputs; choose efficient, or another precision")
        if self.compile and (self.checkpointing != "none" or self.ranks > 1):
            raise UserError("recipe: compile needs checkpointing none and one rank; the compiler recomputes by itself")
        self._check_ranks()
        self._check_packing()
        if self.fp8 != "none" and (self.sharding != "none" or self.precision not in ("bf16", "bf16-autocast")):
            raise UserError(
                f"recipe: fp8 {self.fp8} needs precision bf16 or bf16-autocast and one rank, got {self.precision} and "
                f"sharding {self.sharding}"
            )
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
        self._check_algorithm()
        if self.offload not in OFFLOADS[self.sharding]:
            takers = [name for name, offered in OFFLOADS.items() if self.offload in offered]
            raise UserError(
                f"recipe: sharding {self.sharding} has no offload {self.offload}; sharding that has: "
                f"{', '.join(takers)}"
            )

    def _check_algorithm(self) -> None:
        if self.algorithm != "adamw" and self.optimizer != "foreach":
            raise UserError(
                f"recipe: optimizer {self.optimizer} is a way to run algorithm adamw; leave it out with "
                f"{self.algorithm}"
            )
        if self.sharding != "none" and (self.algorithm != "adamw" or self.step_in_backward):
            what = "step_in_backward" if self.step_in_backward else f"algorithm {self.algorithm}"
            raise UserError(f"recipe: {what} needs sharding none, got {self.sharding}")
        if self.step_in_backward and self.precision == "fp16-autocast":
            raise UserError(
                "recipe: step_in_backward needs another precision than fp16-autocast, whose gradient scaler must see "
                "all gradients before a step"
            )
        if self.step_in_backward and self.compile:
            raise UserError("recipe: step_in_backward needs compile: false; compiled code gives all gradients at once")

    def _check_adapter(self) -> None:
        if self.adapter_rank < 1:
            raise UserError(
                f"recipe: adapter_rank must be at least 1, got {self.adapter_rank}; rank 0 would train nothing"
            )
        if self.adapter == "none":
            if self.adapter_rank != 16 or self.adapter_targets != "q-v":
                raise UserError("recipe: adapter_rank and adapter_targets need an adapter; set adapter: lora")
            if self.quantization != "none":
                raise UserError(
                    f"recipe: quantization {self.quantization} needs an adapter, as quantized weights cannot be "
                    "trained; set adapter: lora"
                )
            return
        if self.adapter == "ia3":
            self._check_ia3()
        if self.ranks > 1 or self.compile or self.offload_activations or self.fp8 != "none":
            raise UserError(
                f"recipe: adapter {self.adapter} trains on one rank, without compile, offload_activations and fp8"
            )

    def _check_ia3(self) -> None:
        if self.adapter_rank != 16 or self.adapter_targets != "q-v":
            raise UserError(
                "recipe: adapter ia3 has no rank, and three layers of its own; leave out adapter_rank and "
                "adapter_targets"
            )
        if self.quantization != "none" and self.precision == "bf16":
            raise UserError(
                f"recipe: adapter ia3 with quantization {self.quantization} needs another precision than bf16, in "
                "which peft makes keys and values fp32 beside bf16 queries; choose bf16-autocast"
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

    def _check_packing(self) -> None:
        if self.packing == "none":
            return
        if self.ranks > 1 or self.compile or self.offload_activations:
            raise UserError(
                f"recipe: packing {self.packing} needs one rank, compile: false and offload_activations: false"
            )
        if self.packing == "mask" and self.attention == "flash":
            raise UserError("recipe: packing mask needs attention sdpa, efficient or math; CUDA's flash takes no mask")
        if self.packing == "varlen" and self.precision == "fp32":
            raise UserError("recipe: packing varlen needs 16-bit inputs; choose packing mask, or another precision")
        if self.packing == "varlen" and self.attention not in ("flash", "sdpa"):
            raise UserError(
                f"recipe: packing varlen is a flash kernel; choose attention flash or sdpa, got {self.attention}"
            )

    @property
    def shards(self) -> int:
        """The number of ranks among which one copy of the model is divided."""
        return self.ranks // self.replicas


def accumulation_steps(workload: Workload, recipe: Recipe) -> int:
    """Micro-batches that each rank runs in one optimizer step.

    Raises `UserError` where the micro-batches of all ranks do not divide the step, and as `demands.check_workload`.
    """
    for value, kind in ((workload, Workload), (recipe, Recipe)):
        if not isinstance(value, kind):
            raise UserError(f"{kind.__name__.lower()}: must be a {kind.__name__}, got {shown(value)}")
    check_workload(workload, recipe)
    sequences = workload.sequences_per_step
    steps, rest = divmod(sequences, recipe.micro_batch * recipe.ranks)
    if rest:
        ranks = f" times ranks ({recipe.ranks})" if recipe.ranks > 1 else ""
        raise UserError(
            f"recipe: micro_batch ({recipe.micro_batch}){ranks} must divide the {sequences} sequences of a step"
        )
    if steps > 1 and recipe.step_in_backward:
        raise UserError(
            f"recipe: step_in_backward makes each of {steps} micro-batches a step of its own; choose a micro_batch of "
            f"{sequences}, or step_in_backward: false"
        )
    return steps
