"""Linear layers that multiply in fp8, by torchao: what a recipe's `fp8` makes of a model's blocks.

`torchao.float8.convert_to_float8_training` puts a `Float8Linear` in the place of each. The head is left out, as in
torchao's own example, whose filter keeps the last module: its error goes straight into the loss.
"""

from typing import TYPE_CHECKING, Any

from .demands import check_shape

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .models import ModelShape
    from .recipe import Recipe

TORCHAO = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise-gw-hp": "rowwise_with_gw_hp"}
"""torchao's names of the recipes (`Float8LinearRecipeName`)."""


def convert(model: "nn.Module", shape: "ModelShape", recipe: "Recipe", device: "str | torch.device") -> None:
    """Let the linear layers of the model's blocks multiply in fp8, in place; nothing where the recipe has no fp8.

    A CPU multiplies with the same operators, slowly. Raises `UserError` as `demands.check_shape`, and on a CUDA
    device that cannot.
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
