"""Shapes of decoder-only transformers: from a Hugging Face `config.json`, by preset, and what they count.

A shape is all that memory and time depend on; weights are not needed. Supported are the families whose blocks the
price knows exactly: Llama (and Mistral, SmolLM2, TinyLlama, which share its block), Qwen2, Qwen3 and GPT-2.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from .errors import UserError

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gpt2"]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one model.

    `head_dim` is a size of its own, not `hidden / heads` (Qwen3-4B: 128, not 80). `kv_heads < heads` is grouped-query
    attention. `ffn` is the width of the gated MLP (GPT-2: of its plain one). `positions` counts learned position
    embeddings (GPT-2) and is the longest sequence elsewhere. Raises `UserError` naming the field that does not fit.
    """

    name: str
    family: Family
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UserError(f"model {self.name}: family must be one of {', '.join(FAMILIES)}, got {self.family!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UserError(f"model {self.name}: {field.name} must be a positive integer, got {value!r}")
            if field.type is bool and not isinstance(value, bool):
                raise UserError(f"model {self.name}: {field.name} must be true or false, got {value!r}")
        if self.heads % self.kv_heads:
            raise UserError(f"model {self.name}: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.family == "gpt2" and (self.kv_heads != self.heads or self.heads * self.head_dim != self.hidden):
            raise UserError(f"model {self.name}: GPT-2 has as many key heads as heads, and heads x head_dim = hidden")

    @property
    def q(self) -> int:
        """Width of the queries, heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of the keys, and of the values: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: projections with their biases, MLP, and norms."""
        h, q, kv, f = self.hidden, self.q, self.kv, self.ffn
        attention = h * (q + 2 * kv) + q * h
        if self.family == "gpt2":
            # Conv1D layers have biases, LayerNorm a weight and a bias, and the MLP no gate.
            return attention + (q + 2 * kv) + h + 2 * h * f + f + h + 4 * h
        if self.family == "qwen2":
            attention += q + 2 * kv
        elif self.attention_bias:
            attention += q + 2 * kv + h
        norms = 2 * h + (2 * self.head_dim if self.family == "qwen3" else 0)
        return attention + 3 * h * f + (2 * f + h if self.mlp_bias else 0) + norms

    @property
    def parameters(self) -> int:
        """All parameters, a tied embedding counted once, as `model.parameters()` does."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        final_norm = self.hidden
        if self.family == "gpt2":
            embeddings += self.positions * self.hidden
            final_norm *= 2
        return embeddings + self.layers * self.block_parameters + final_norm


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes; `UserError` names what is missing or not supported."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"{name}: model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    try:
        if family == "gpt2":
            heads, hidden = config["n_head"], config["n_embd"]
            return ModelShape(
                name, family, hidden, config["n_layer"], heads, heads, hidden // heads,
                config.get("n_inner") or 4 * hidden, config["vocab_size"], config["n_positions"],
                config.get("tie_word_embeddings", True), attention_bias=True, mlp_bias=True,
            )  # fmt: skip
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return ModelShape(
            name, family, hidden, config["num_hidden_layers"], heads, config.get("num_key_value_heads") or heads,
            config.get("head_dim") or (128 if family == "qwen3" else hidden // heads), config["intermediate_size"],
            config["vocab_size"], config.get("max_position_embeddings", 2048),
            config.get("tie_word_embeddings", False),
            attention_bias=bool(config.get("attention_bias", family == "qwen2")) and family != "mistral",
            mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        )  # fmt: skip
    except KeyError as missing:
        raise UserError(f"{name}: config.json has no {missing.args[0]!r}") from None


@cache
def presets() -> dict[str, ModelShape]:
    """The shapes in `presets.json`, by name; each entry there names its source."""
    table = json.loads(files(__package__).joinpath("presets.json").read_text(encoding="utf-8"))
    return {name: shape_from_config(entry["config"], name) for name, entry in table.items()}


def load_shape(model: str) -> ModelShape:
    """A preset by name, or the shape of a `config.json` (the file, or the folder that holds it).

    Raises `UserError` where `model` is neither.
    """
    if model in presets():
        return presets()[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{model}: neither a preset nor a config.json; presets: {', '.join(presets())}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: a config.json holds one object")
    return shape_from_config(config, path.parent.name if path.name == "config.json" else path.stem)
