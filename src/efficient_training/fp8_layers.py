"""Linear layers that multiply in fp8, by torchao: what a recipe's `fp8` makes of a model's blocks.

`torchao.float8.convert_to_float8_training` puts a `Float8Linear` in the place of each. The head is left out, as in
torchao's own example, whose filter keeps the last module: its error goes straight into the loss.
"""

from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .models import ModelShape
    from .recipe import Recipe
    from .workload import Workload

MULTIPLE = 16
"""What must divide the sizes of a product in fp8 on CUDA (`torch._scaled_mm`): all but the rows of its first factor."""

TORCHAO = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise-gw-hp": "rowwise_with_gw_hp"}
"""torchao's names of the recipes (`Float8LinearRecipeName`)."""


def check_shape(shape: "ModelShape", recipe: "Recipe") -> None:
    """Refuse a model whose linear layers cannot multiply in fp8 on CUDA; nothing where the recipe has no fp8.

    Raises `UserError`.
    """
    if recipe.fp8 == "none":
        return
    if shape.family == "gpt2":
        raise UserError(f"fp8: {shape.name} has no nn.Linear in its blocks (GPT-2 has Conv1D); take another model")
    _check(recipe, "hidden", shape.hidden)
    _check(recipe, "heads times head_dim", shape.heads * shape.head_dim)
    _check(recipe, "kv_heads times head_dim", shape.kv_heads * shape.head_dim)
    _check(recipe, "ffn", shape.ffn)


def check_sizes(workload: "Workload", recipe: "Recipe") -> None:
    """As `check_shape`, and refuse micro-batches over whose tokens no gradient of a weight can be summed in fp8."""
    check_shape(workload.model, recipe)
    if recipe.fp8 in ("tensorwise", "rowwise"):
        _check(recipe, "micro_batch times sequence_length", recipe.micro_batch * workload.sequence_length)


def _check(recipe: "Recipe", name: str, size: int) -> None:
    if size % MULTIPLE:
        raise UserError(f"fp8 {recipe.fp8}: {name} must be a multiple of {MULTIPLE}, got {size}; pad it, or leave fp8")


def convert(model: "nn.Module", shape: "ModelShape", recipe: "Recipe", device: "str | torch.device") -> None:
    """Let the linear layers of the model's blocks multiply in fp8, in place; nothing where the recipe has no fp8.

    A CPU multiplies with the same operators, slowly. Raises `UserError` as `check_shape`, and on a CUDA device that
    cannot.
    """
    check_shape(shape, recipe)
    if recipe.fp8 == "none":
        return
    import torch
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    from .blocks import block_list
    from .fp8 import require

    on_cuda = torch.device(device).type == "cuda"
    if on_cuda:
        require("tensor" if recipe.fp8 == "tensorwise" else "row", torch.cuda.get_device_capability(device))
    owner, name = block_list(model)
    blocks = getattr(owner, name)
    convert_to_float8_training(blocks, config=Float8LinearConfig.from_recipe_name(TORCHAO[recipe.fp8]))
    if not on_cuda and recipe.precision != "bf16":
        for module in blocks.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(_cast_input)


def _cast_input(module: "nn.Module", inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Autocast's cast, which `Float8Linear.forward` does itself where autocast is CUDA's."""
    import torch

    (x,) = inputs
    device = x.device.type
    return (x.to(torch.get_autocast_dtype(device)),) if torch.is_autocast_enabled(device) else inputs
