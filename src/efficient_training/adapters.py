"""Adapters: what each adds to a model, in shapes, parameters and bytes, and its construction through peft.

The formulas need a `ModelShape` only, so that a price can use them. They are read off peft 0.21, and tests count the
same on real models.
"""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from .errors import UserError
from .models import ModelShape
from .nf4 import Nf4Bytes, nf4_bytes
from .optimizer_state import Word, state_bytes

Kind = Literal["lora", "dora", "ia3", "prompt", "prefix"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ATTENTION = ("q_proj", "v_proj")
"""peft's default targets of LoRA in Llama and Qwen2."""

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""All linear layers of a Llama or Qwen block."""

IA3_TARGETS = ("k_proj", "v_proj", "down_proj")
"""What IA3 scales: keys, values, and what enters the MLP's last layer."""

FEEDFORWARD = "down_proj"
"""The layer of which IA3 scales the inputs; of the others it scales the outputs."""


@dataclass(frozen=True)
class Adapter:
    """Which adapter: its kind, and the sizes that this kind has.

    - `lora`, `dora`: `rank` r of the update of each layer in `targets` (last part of the layer's name), scaled by
      alpha / r, or alpha / sqrt(r) with `rank_stabilized`.
    - `ia3`: a vector for each layer in `targets`, by default `IA3_TARGETS`.
    - `prompt`: `virtual_tokens` embeddings before the text; `prefix`: as many keys and values in each layer.

    Raises `UserError` on an unknown kind, a rank or number of tokens below 1, no targets.
    """

    kind: Kind = "lora"
    rank: int = 16
    alpha: float = 16
    rank_stabilized: bool = False
    targets: tuple[str, ...] | None = None
    virtual_tokens: int = 20

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown adapter {self.kind!r}; known: {', '.join(KINDS)}")
        if self.kind in ("lora", "dora") and self.rank < 1:
            raise UserError(
                f"adapter {self.kind}: rank must be at least 1, got {self.rank}; rank 0 would train nothing"
            )
        if self.kind in ("prompt", "prefix") and self.virtual_tokens < 1:
            raise UserError(f"adapter {self.kind}: virtual_tokens must be at least 1, got {self.virtual_tokens}")
        if self.targets is not None and not self.targets:
            raise UserError(f"adapter {self.kind}: targets is empty; name layers, such as {', '.join(ATTENTION)}")

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that it changes; none for virtual tokens."""
        if self.kind in ("prompt", "prefix"):
            return ()
        return self.targets or (IA3_TARGETS if self.kind == "ia3" else ATTENTION)

    @property
    def scaling(self) -> float:
        """What the product of LoRA's two matrices is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)


def linear_layers(shape: ModelShape) -> tuple[tuple[str, int, int], ...]:
    """The linear layers of one block: last part of the name, inputs, outputs."""
    h, q, kv, f = shape.hidden, shape.q, shape.kv, shape.ffn
    if shape.family == "gpt2":
        return ("c_attn", h, q + 2 * kv), ("c_proj", q, h), ("c_fc", h, f), ("c_proj", f, h)
    attention = (("q_proj", h, q), ("k_proj", h, kv), ("v_proj", h, kv), ("o_proj", q, h))
    return *attention, ("gate_proj", h, f), ("up_proj", h, f), ("down_proj", f, h)


def adapter_shapes(adapter: Adapter, shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """The shapes of all trained tensors, by name.

    For a layer of i inputs and o outputs LoRA has A (r, i) and B (o, r), DoRA also a magnitude (o,), IA3 one vector:
    (1, o), or (i, 1) before the MLP's last layer. A prompt is (tokens, hidden); a prefix is (tokens, 2 x layers x kv).
    Raises `UserError` on a target that the shape has not.
    """
    if adapter.kind == "prompt":
        return {"prompt": (adapter.virtual_tokens, shape.hidden)}
    if adapter.kind == "prefix":
        return {"prefix": (adapter.virtual_tokens, 2 * shape.layers * shape.kv)}
    layers = linear_layers(shape)
    _check_targets(adapter, [name for name, _, _ in layers], shape.name)
    shapes: dict[str, tuple[int, ...]] = {}
    for block in range(shape.layers):
        for number, (name, inputs, outputs) in enumerate(layers):
            if name not in adapter.layers:
                continue
            layer = f"{block}.{number}.{name}"
            if adapter.kind == "ia3":
                shapes[f"{layer}.ia3"] = (inputs, 1) if name == FEEDFORWARD else (1, outputs)
                continue
            shapes[f"{layer}.A"], shapes[f"{layer}.B"] = (adapter.rank, inputs), (outputs, adapter.rank)
            if adapter.kind == "dora":
                shapes[f"{layer}.magnitude"] = (outputs,)
    return shapes


def adapter_parameters(adapter: Adapter, shape: ModelShape) -> int:
    """How many numbers are trained."""
    return sum(math.prod(each) for each in adapter_shapes(adapter, shape).values())


@dataclass(frozen=True)
class AdapterBytes:
    """Bytes that training an adapter adds: its `weights`, their `gradients`, and the optimizer's `state`."""

    weights: int
    gradients: int
    state: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.state


def adapter_bytes(adapter: Adapter, shape: ModelShape, itemsize: int = 4, optimizer: Word = "adamw") -> AdapterBytes:
    """Bytes of an adapter of `itemsize` bytes a number (peft: 4, also on a 16-bit model), exactly."""
    shapes = adapter_shapes(adapter, shape)
    weights = itemsize * sum(math.prod(each) for each in shapes.values())
    return AdapterBytes(weights, weights, state_bytes(optimizer, shapes, itemsize).total)


@dataclass(frozen=True)
class QuantizedBytes:
    """Bytes of a model's weights: `linear`, those of the blocks' linear layers in NF4, and the `rest`."""

    linear: Nf4Bytes
    rest: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.linear.total + self.rest


def quantized_bytes(shape: ModelShape, rest_itemsize: int = 4, double: bool = True) -> QuantizedBytes:
    """Bytes of the weights when transformers loads a model in NF4: every linear layer but the head is quantized.

    `rest_itemsize` is the width of embeddings, head, norms and biases: 2 as loaded, 4 after peft's
    `prepare_model_for_kbit_training`. Raises `UserError` for GPT-2, whose layers are no `nn.Linear`.
    """
    if shape.family == "gpt2":
        raise UserError(f"model {shape.name}: NF4 is derived for linear layers, which GPT-2 has none of")
    sizes = [inputs * outputs for _, inputs, outputs in linear_layers(shape)] * shape.layers
    linear = sum((nf4_bytes(size, double) for size in sizes), Nf4Bytes())
    return QuantizedBytes(linear, rest_itemsize * (shape.parameters - sum(sizes)))


def saved_bytes(shape: ModelShape, adapter: Adapter | None = None) -> int:
    """Bytes saved for backward for each token of a block, fp32, flash attention: trained in full, or LoRA `adapter`.

    Full: 24 hidden + 4 (2 q + 2 kv + 4 ffn) + 4 heads + 8. Frozen weights need no gradient, and so no inputs: the
    norms' normalized inputs (8 hidden) go, and the inputs of attention, of the MLP and of its last layer (4 hidden,
    4 hidden, 4 ffn), each unless a LoRA matrix reads it. The output projection's input stays: attention saves it.
    Each target adds its r intermediate numbers. Counts a block whose input needs a gradient: any but the first.
    Raises `UserError` for adapters other than LoRA and families whose block is not Llama's or Qwen2's.
    """
    h, q, kv, f = shape.hidden, shape.q, shape.kv, shape.ffn
    if shape.family not in ("llama", "mistral", "qwen2"):
        raise UserError(f"model {shape.name}: saved bytes are derived for Llama, Mistral and Qwen2, not {shape.family}")
    full = 24 * h + 4 * (2 * q + 2 * kv + 4 * f) + 4 * shape.heads + 8
    if adapter is None:
        return full
    if adapter.kind != "lora":
        raise UserError(f"adapter {adapter.kind}: saved bytes are derived for lora only")
    _check_targets(adapter, [name for name, _, _ in linear_layers(shape)], shape.name)
    targets = set(adapter.layers)
    saved = full - 8 * h + 4 * adapter.rank * len(targets)
    saved -= 0 if targets & {"q_proj", "k_proj", "v_proj"} else 4 * h
    saved -= 0 if targets & {"gate_proj", "up_proj"} else 4 * h
    return saved - (0 if "down_proj" in targets else 4 * f)


def build(model: torch.nn.Module, adapter: Adapter) -> Any:
    """`model`, frozen, with a new adapter on it: a peft model, whose trainable parameters are the adapter's.

    Raises `UserError` where a target is no layer of the model (and lists those that are), or peft is not installed.
    """
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError:
        raise UserError("adapters need peft, which is not installed: pip install peft") from None
    layers: Mapping[str, torch.nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    }
    _check_targets(adapter, [name.rpartition(".")[2] for name in layers], type(model).__name__)
    transposed = any(type(module).__name__ == "Conv1D" for module in layers.values())
    common: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    if adapter.kind == "prompt":
        config = peft.PromptTuningConfig(num_virtual_tokens=adapter.virtual_tokens, **common)
    elif adapter.kind == "prefix":
        config = peft.PrefixTuningConfig(num_virtual_tokens=adapter.virtual_tokens, **common)
    elif adapter.kind == "ia3":
        feedforward = [name for name in adapter.layers if name == FEEDFORWARD]
        config = peft.IA3Config(target_modules=list(adapter.layers), feedforward_modules=feedforward, **common)
    else:
        config = peft.LoraConfig(
            r=adapter.rank, lora_alpha=adapter.alpha, use_rslora=adapter.rank_stabilized,
            use_dora=adapter.kind == "dora", target_modules=list(adapter.layers), fan_in_fan_out=transposed, **common,
        )  # fmt: skip
    return peft.get_peft_model(model, config)


def _check_targets(adapter: Adapter, names: list[str], where: str) -> None:
    missing = next((name for name in adapter.layers if name not in names), None)
    if missing is not None:
        known = ", ".join(dict.fromkeys(names))
        raise UserError(f"adapter {adapter.kind}: {where} has no layer {missing!r}; it has {known}")
