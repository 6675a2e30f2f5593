"""The model that a recipe with an adapter trains: frozen, quantized where it says so, with peft's layers in it."""

import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .adapters import LINEARS, Adapter, Kind, build
from .demands import check_shape
from .models import ModelShape
from .quantization import is_quantized, put_layers, quantized_weight
from .recipe import AdapterTargets, Recipe

TARGETS: dict[AdapterTargets, tuple[str, ...]] = {"q-v": ("q_proj", "v_proj"), "all-linear": LINEARS}
GPT2_LINEARS = ("c_attn", "c_proj", "c_fc")
"""GPT-2's `Conv1D` layers, which are linear in all but name."""
LOADED = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16, "bf16": torch.bfloat16}
"""In which dtype weights are loaded to be quantized, and quantized layers compute; fp32 elsewhere."""


def adapter_of(shape: ModelShape, recipe: Recipe) -> Adapter:
    """The adapter of a recipe on a model of `shape`; raises `UserError` where the model has no such layers."""
    check_shape(shape, recipe)
    if recipe.adapter == "ia3":
        return Adapter("ia3")
    targets = GPT2_LINEARS if shape.family == "gpt2" else TARGETS[recipe.adapter_targets]
    return Adapter(cast(Kind, recipe.adapter), rank=recipe.adapter_rank, targets=targets)


def build_adapted(shape: ModelShape, config: Any, recipe: Recipe, device: str | torch.device) -> nn.Module:
    """A causal language model of `config`, frozen, its linear layers in NF4 if so, with the recipe's adapter in it.

    Weights are random. The model is put together without any, on the device `meta`, and then gets them one by one on
    `device`. peft's layers stand in the model itself, so that the loop needs no wrapper. Raises `UserError` as
    `adapter_of`, and where peft or bitsandbytes is not installed.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapter = adapter_of(shape, recipe)
    with unset_fake_temporarily():  # fake tensors cannot be moved and cast as these libraries do
        model = _without_weights(config, recipe, adapter)
    made: dict[nn.Parameter, nn.Parameter] = {}
    layers: list[Any] = []
    loaded = LOADED.get(recipe.precision, torch.float32)
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if is_quantized(module) and name == "weight":
                values = torch.empty(parameter.shape, dtype=loaded, device=device)
                setattr(module, name, quantized_weight(module, values.normal_(std=config.initializer_range)))
            elif parameter.is_meta:
                if parameter not in made:
                    made[parameter] = _with_values(parameter, name, config.initializer_range, device)
                setattr(module, name, made[parameter])
        if isinstance(module, BaseTunerLayer):
            layers.append(module)
    for layer in layers:
        _begin(layer, adapter)
    base: Any = model.base_model
    rotary = getattr(base, "rotary_emb", None)
    if rotary is not None:
        with torch.device(device):
            base.rotary_emb = type(rotary)(config)  # its tables of frequencies are no weights
    return model


def _without_weights(config: Any, recipe: Recipe, adapter: Adapter) -> nn.Module:
    from peft import prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM

    quantized, loaded = recipe.quantization != "none", LOADED.get(recipe.precision, torch.float32)
    with torch.device("meta"), warnings.catch_warnings():
        # peft asks by an old name whether transformers checkpoints; the recipe's own checkpointing comes later.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        dtype = loaded if quantized or recipe.precision == "bf16" else torch.float32
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if quantized:
            put_layers(model, loaded, recipe.quantization == "nf4-double")
            if recipe.precision != "bf16":
                prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
            for layer in model.modules():
                if is_quantized(layer) and layer.bias is not None:
                    layer.bias.data = layer.bias.data.to(loaded)  # as the layer does when it first runs
        # DoRA's magnitude is that of weights, so it is LoRA as long as there are none.
        without = replace(adapter, kind="lora") if adapter.kind == "dora" else adapter
        return build(model, without).get_base_model()  # type: ignore[no-any-return]


def _begin(layer: Any, adapter: Adapter) -> None:
    """The values with which peft begins, of a layer whose weights are there; DoRA has its magnitude from these."""
    if adapter.kind == "ia3":
        layer.reset_ia3_parameters("default")
        return
    layer.reset_lora_parameters("default", True)
    if adapter.kind == "dora":
        from peft.tuners.lora.variants import DoraLinearVariant

        layer.lora_variant["default"] = DoraLinearVariant()
        layer.use_dora["default"] = True
        layer.lora_variant["default"].init(layer, "default")


def _with_values(parameter: nn.Parameter, name: str, std: float, device: str | torch.device) -> nn.Parameter:
    """Values as transformers begins with: norms at one, biases at zero, matrices normal."""
    data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    if parameter.dim() == 1:
        data.fill_(1.0 if name == "weight" else 0.0)
    else:
        data.normal_(std=std)
    return nn.Parameter(data, requires_grad=parameter.requires_grad)
