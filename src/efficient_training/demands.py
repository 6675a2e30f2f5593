"""What a recipe demands of a model and a workload: layers that it can change, sizes that its kernels take."""

from typing import TYPE_CHECKING

from .errors import UserError
from .fields import LARGEST
from .models import ModelShape
from .workload import Workload

if TYPE_CHECKING:
    from .recipe import Recipe

FP8_MULTIPLE = 16
"""What must divide the sizes of a product in fp8 on CUDA (`torch._scaled_mm`): all but the rows of its first factor."""


def check_workload(workload: Workload, recipe: "Recipe") -> None:
    """As `check_shape`, and refuse micro-batches with tensors of more bytes than int64 counts.

    And, with fp8, those over whose tokens no gradient of a weight can be summed in it.
    """
    _check_countable(workload, recipe)
    check_shape(workload.model, recipe)
    if recipe.fp8 in ("tensorwise", "rowwise"):
        _check_multiple(recipe, "micro_batch times sequence_length", recipe.micro_batch * workload.sequence_length)


def _check_countable(workload: Workload, recipe: "Recipe") -> None:
    shape, length = workload.model, workload.sequence_length
    widest = max(shape.vocab, shape.ffn, shape.hidden, shape.heads * max(length, shape.head_dim))
    if recipe.adapter_rank * 4 * max(shape.ffn, shape.hidden, shape.q) > LARGEST:
        raise UserError(
            f"recipe: an adapter_rank of {recipe.adapter_rank} makes tensors of more than 2^63 bytes; take a smaller "
            "one"
        )
    # A score, a logit or a frequency takes 4 bytes, and a few of them are held side by side.
    if 16 * recipe.micro_batch * length * widest > LARGEST:
        raise UserError(
            f"recipe: a micro-batch of {recipe.micro_batch} x {length} tokens has tensors of more than 2^63 bytes; "
            "take a smaller micro_batch or sequence_length"
        )


def check_shape(shape: ModelShape, recipe: "Recipe") -> None:
    """Refuse a model whose layers the recipe's adapter, quantization or fp8 cannot change. Raises `UserError`."""
    _check_adapter(shape, recipe)
    if recipe.fp8 == "none":
        return
    if shape.family == "gpt2":
        raise UserError(f"recipe: fp8 takes linear layers, which {shape.name} (GPT-2) has none of; set fp8: none")
    _check_multiple(recipe, "hidden", shape.hidden)
    _check_multiple(recipe, "heads times head_dim", shape.q)
    _check_multiple(recipe, "kv_heads times head_dim", shape.kv)
    _check_multiple(recipe, "ffn", shape.ffn)


def _check_adapter(shape: ModelShape, recipe: "Recipe") -> None:
    if recipe.quantization != "none" and shape.family == "gpt2":
        raise UserError(
            f"recipe: quantization {recipe.quantization} takes linear layers, which {shape.name} (GPT-2) has none of; "
            "set quantization: none"
        )
    if recipe.adapter == "ia3" and shape.family == "gpt2":
        raise UserError(
            f"recipe: adapter ia3 scales keys and values, for which {shape.name} (GPT-2) has no layers of their own; "
            "choose lora or dora"
        )
    if recipe.adapter != "none" and recipe.adapter_targets == "q-v" and shape.family == "gpt2":
        raise UserError(
            f"recipe: adapter_targets q-v finds no layers in {shape.name}, as GPT-2 has one layer for queries, keys "
            "and values; set adapter_targets: all-linear"
        )


def _check_multiple(recipe: "Recipe", name: str, size: int) -> None:
    if size % FP8_MULTIPLE:
        raise UserError(
            f"recipe: fp8 {recipe.fp8}: {name} must be a multiple of {FP8_MULTIPLE}, got {size}; pad it, or set "
            "fp8: none"
        )
