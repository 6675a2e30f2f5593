"""A recipe: how a workload is trained. One field a technique, each with the plain choice as its default."""

from dataclasses import dataclass
from typing import Literal

from .errors import UserError
from .fields import check_positive, check_types
from .workload import Workload

Precision = Literal["fp32", "bf16-autocast", "fp16-autocast", "bf16"]
Checkpointing = Literal["none", "full", "selective"]
OptimizerImplementation = Literal["loop", "foreach", "fused"]
Loss = Literal["upcast", "native", "chunked"]
Attention = Literal["math", "efficient", "flash", "sdpa"]


@dataclass(frozen=True)
class Recipe:
    """The techniques, and the micro-batch size; accumulation steps follow from both (`accumulation_steps`).

    - `precision`: fp32 throughout; autocast to 16 bits over fp32 weights (fp16 with a gradient scaler); `bf16`, with
      weights, gradients and optimizer state all in bf16.
    - `checkpointing`: `full` recomputes whole segments of `checkpoint_every` blocks; `selective` recomputes what is no
      matrix product and no attention (torch's op policy), block by block.
    - `optimizer`: how torch's AdamW runs its step.
    - `loss`: `upcast` computes cross-entropy on fp32 logits, as transformers does; `native` on logits as they are;
      `chunked` never holds the logits of all tokens.
    - `attention`: a kernel of scaled-dot-product attention; `sdpa` is whichever CUDA picks.
    - `compile`: `torch.compile` of the model.
    """

    micro_batch: int
    precision: Precision = "fp32"
    checkpointing: Checkpointing = "none"
    checkpoint_every: int = 1
    optimizer: OptimizerImplementation = "foreach"
    loss: Loss = "upcast"
    attention: Attention = "sdpa"
    compile: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_positive(self, "micro_batch", "checkpoint_every")
        if self.checkpoint_every != 1 and self.checkpointing != "full":
            raise UserError(f"recipe: checkpoint_every needs checkpointing: full, got {self.checkpointing}")
        if self.attention == "flash" and self.precision == "fp32":
            raise UserError("recipe: attention flash needs 16-bit inputs; choose efficient, or another precision")


def accumulation_steps(workload: Workload, recipe: Recipe) -> int:
    """Micro-batches of one optimizer step; raises `UserError` where the micro-batch does not divide the step."""
    sequences = workload.sequences_per_step
    steps, rest = divmod(sequences, recipe.micro_batch)
    if rest:
        raise UserError(f"recipe: micro_batch ({recipe.micro_batch}) must divide the {sequences} sequences of a step")
    return steps
