"""What of a model and a recipe is a word, and not a size: it decides which formulas hold."""

from dataclasses import dataclass

from ..models import ModelShape
from ..recipe import DEEPSPEED, FSDP, Recipe
from .attention import Kernel


@dataclass(frozen=True)
class Words:
    """The choices on which the formulas of a step depend; two recipes with the same words share them.

    `accumulating`: the step has several micro-batches, so that gradients are there before the last of them. `single`:
    there is an adapter, and checkpointed segments are of one block.
    """

    family: str
    tied: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    kernel: Kernel
    precision: str
    checkpointing: str
    optimizer: str
    loss: str
    accumulating: bool
    sharding: str = "none"
    offload: str = "none"
    offload_activations: bool = False
    packing: str = "none"
    fp8: str = "none"
    algorithm: str = "adamw"
    step_in_backward: bool = False
    adapter: str = "none"
    adapter_targets: str = "q-v"
    quantization: str = "none"
    single: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the weights that are used, of their gradients, and of what no autocast narrows."""
        return 2 if self.precision in ("bf16", "bf16-mixed") else 4

    @property
    def state_itemsize(self) -> int:
        """Bytes of an element of the weights that are kept and updated, and of each of AdamW's moments.

        peft keeps adapters in fp32."""
        return 2 if self.precision == "bf16" and self.adapter == "none" else 4

    @property
    def fsdp(self) -> bool:
        """Whether FSDP2 shards the model."""
        return self.sharding in FSDP

    @property
    def ddp(self) -> bool:
        """Whether DDP reduces gradients in its buckets."""
        return self.sharding in ("ddp", "zero1")

    @property
    def deepspeed(self) -> bool:
        """Whether DeepSpeed trains the model."""
        return self.sharding in DEEPSPEED

    @property
    def autocast(self) -> bool:
        """Whether operators run in 16 bits over fp32 weights."""
        return self.precision.endswith("autocast")

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled, as fp16 needs it."""
        return self.precision == "fp16-autocast"


def words_of(shape: ModelShape, recipe: Recipe, accumulating: bool) -> Words:
    """The words of a model and a recipe on CUDA."""
    kernel: str = recipe.attention
    if recipe.packing == "varlen":
        kernel = "varlen"
    elif kernel == "sdpa":
        kernel = "efficient" if recipe.precision == "fp32" or recipe.packing == "mask" else "flash"
    biased = shape.family in ("llama", "qwen3") and shape.attention_bias
    return Words(
        family=shape.family,
        tied=shape.tied,
        attention_bias=biased or shape.family in ("qwen2", "gpt2"),
        output_bias=biased or shape.family == "gpt2",
        mlp_bias=shape.family == "gpt2" or (shape.family == "llama" and shape.mlp_bias),
        kernel=Kernel(
            name=kernel,
            grouped=shape.kv_heads < shape.heads,
            padded=kernel in ("flash", "varlen") and shape.head_dim % 8 != 0,
            alone=shape.heads == 1,
            kv_alone=shape.kv_heads == 1,
            matrices=kernel == "math" and (shape.heads == 1 or recipe.micro_batch == 1),
        ),
        precision=recipe.precision,
        checkpointing=recipe.checkpointing,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        accumulating=accumulating,
        sharding=recipe.sharding,
        offload=recipe.offload,
        offload_activations=recipe.offload_activations,
        packing=recipe.packing,
        fp8=recipe.fp8,
        algorithm=recipe.algorithm,
        step_in_backward=recipe.step_in_backward,
        adapter=recipe.adapter,
        adapter_targets=recipe.adapter_targets,
        quantization=recipe.quantization,
        single=recipe.adapter != "none" and min(recipe.checkpoint_every, shape.layers) == 1,
    )
