"""Frozen linear layers in NF4, by bitsandbytes: on a model without weights, and made one by one.

So a model is as `from_pretrained(quantization_config=...)` leaves it, but from a configuration, with random weights, of
which no more than one layer's are ever there unquantized.
"""

import importlib
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from .errors import UserError


class Params4bit(FakeTensor):
    """A fake weight in NF4, by the name of bitsandbytes' own, by which peft knows what it has to dequantize."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Params4bit":
        """Itself, as it has no values: DoRA copies a layer to read its weight."""
        return self


def put_layers(model: nn.Module, compute: torch.dtype, double: bool) -> None:
    """Replace the linear layers, but for the head, of a causal language model on the device `meta`, in place.

    `compute` is the dtype in which they compute, `double` whether scales are quantized too. Raises `UserError` where
    bitsandbytes is not installed.
    """
    bnb: Any = _bitsandbytes()
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, linear in list(model.named_modules()):
        if type(linear) is not nn.Linear or linear is head:
            continue
        with torch.device("meta"):
            made = bnb.nn.Linear4bit(
                linear.in_features, linear.out_features, linear.bias is not None, compute_dtype=compute,
                compress_statistics=double, quant_type="nf4",
            )  # fmt: skip
        made.bias = linear.bias
        model.set_submodule(name, made.requires_grad_(False))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]  # by which peft knows


def quantized_weight(layer: Any, values: torch.Tensor) -> nn.Parameter:
    """The weight of a layer that `put_layers` made, from `values` (outputs, inputs), on their device."""
    words = {"quant_type": layer.weight.quant_type, "compress_statistics": layer.weight.compress_statistics}
    codes, layer.quant_state = _bitsandbytes().functional.quantize_4bit(values, **words)
    if not isinstance(codes, FakeTensor):
        known = {"quant_state": layer.quant_state, "bnb_quantized": True, "module": layer}
        return type(layer.weight)(codes, requires_grad=False, **known, **words)  # type: ignore[no-any-return]
    state = layer.quant_state
    state.__deepcopy__ = lambda memo: state  # as of the weight; a copy would read storages that are not there
    made = nn.Parameter(codes, requires_grad=False)  # a fake tensor has its class already
    made.__class__ = Params4bit  # type: ignore[assignment]
    made.quant_state = layer.quant_state  # type: ignore[attr-defined]
    return made


def is_quantized(layer: nn.Module) -> bool:
    """Whether `layer` is one of those that `put_layers` makes."""
    return type(layer).__name__ == "Linear4bit" and isinstance(layer, nn.Linear)


def quantized_state(model: nn.Module) -> list[torch.Tensor]:
    """The tensors that belong to a model's NF4 weights and are no parameters: scales and tables."""
    states = [state for p in model.parameters() if (state := getattr(p, "quant_state", None)) is not None]
    tensors = [t for s in states for t in (s.absmax, s.code)]
    return tensors + [t for s in states if s.nested for t in (s.offset, s.state2.absmax, s.state2.code)]


def _bitsandbytes() -> Any:
    try:
        bnb: Any = importlib.import_module("bitsandbytes")
    except ImportError:
        raise UserError("quantization needs bitsandbytes, which is not installed: pip install bitsandbytes") from None
    maps = bnb.functional.name2qmap
    if "dynamic" not in maps:
        # The process keeps this table, so it must not be a fake one.
        with unset_fake_temporarily(), torch.device("cpu"):
            maps["dynamic"] = bnb.functional.create_dynamic_map()
    return bnb
