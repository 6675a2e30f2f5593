"""Shapes of decoder-only transformers: from a Hugging Face `config.json`, by preset, and what they count.

A shape is all that memory and time depend on; weights are not needed. Supported are the families whose blocks the
price knows exactly: Llama (and Mistral, SmolLM2, TinyLlama, which share its block), Qwen2, Qwen3 and GPT-2.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from .errors import UserError, shown
from .fields import LARGEST, as_int

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gpt2"]
FAMILIES: tuple[Family, ...] = get_args(Family)

WORDS = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "ffn": "intermediate_size", "vocab": "vocab_size",
    "positions": "max_position_embeddings", "tied": "tie_word_embeddings",
}  # fmt: skip
"""What a `config.json` calls the fields of a shape, where it calls them otherwise."""
GPT2_WORDS = {
    **WORDS, "hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "ffn": "n_inner", "positions": "n_positions",
}  # fmt: skip
STATE_BYTES = 16
"""Bytes that one parameter takes in training in fp32: itself, its gradient, and AdamW's two states."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one model.

    `head_dim` is a size of its own, not `hidden / heads` (Qwen3-4B: 128, not 80). `kv_heads < heads` is grouped-query
    attention. `ffn` is the width of the gated MLP (GPT-2: of its plain one). `positions` counts learned position
    embeddings (GPT-2) and is the longest sequence elsewhere. Raises `UserError` naming the field that does not fit, or
    the sizes that do not fit together.
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
        for field in fields(self):
            if field.type is int:
                object.__setattr__(self, field.name, as_int(getattr(self, field.name)))
        _check(vars(self), f"model {self.name}", {})
        if self.parameters * STATE_BYTES > LARGEST:
            raise UserError(f"model {self.name}: its parameters take more than 2^63 bytes in training")

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


def _check(values: Mapping[str, Any], where: str, words: Mapping[str, str]) -> None:
    """Check the fields that `values` has, and how they fit together; `words` is what their source calls them."""
    family = values["family"]
    if not isinstance(values["name"], str) or not values["name"]:
        raise UserError(f"{where}: name must be text, got {shown(values['name'])}")
    if family not in FAMILIES:
        raise UserError(f"{where}: family must be one of {', '.join(FAMILIES)}, got {shown(family)}")
    for field in fields(ModelShape):
        if field.name not in values:
            continue
        value, word = values[field.name], words.get(field.name, field.name)
        if field.type is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{where}: {word} must be a positive integer, got {shown(value)}")
        if field.type is int and value > LARGEST:
            raise UserError(f"{where}: {word} must be at most 2^63 - 1, got {shown(value)}")
        if field.type is bool and not isinstance(value, bool):
            raise UserError(f"{where}: {word} must be true or false, got {shown(value)}")
    heads, kv_heads, hidden, head_dim = (values.get(name) for name in ("heads", "kv_heads", "hidden", "head_dim"))
    named = {name: f"{words.get(name, name)} ({values.get(name)})" for name in ("heads", "kv_heads", "hidden")}
    if heads and kv_heads and heads % kv_heads:
        raise UserError(f"{where}: {named['heads']} must be a multiple of {named['kv_heads']}")
    # What transformers asks for; GPT-2 has no head_dim of its own.
    if family in ("llama", "gpt2") and heads and hidden and hidden % heads:
        raise UserError(f"{where}: {named['hidden']} must be a multiple of {named['heads']}")
    if family == "gpt2" and head_dim and (kv_heads != heads or heads * head_dim != hidden):
        raise UserError(f"{where}: GPT-2 has as many key heads as heads, and heads x head_dim = hidden")
    if family != "gpt2" and head_dim and head_dim % 2:
        raise UserError(f"{where}: head_dim ({head_dim}) must be even, as rotary embeddings turn pairs")


def shape_from_config(config: Mapping[str, Any], name: str, where: str | None = None) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes.

    Raises `UserError` naming `where` (the name, unless given), and what is missing, not supported, or does not fit, in
    the config's own words.
    """
    where = where or name
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"{where}: model_type {shown(family)} is not supported; supported: {', '.join(FAMILIES)}")
    words = GPT2_WORDS if family == "gpt2" else WORDS
    values: dict[str, Any] = {"name": name, "family": family}
    needed = ["hidden", "layers", "heads", "vocab", *(["positions"] if family == "gpt2" else ["ffn"])]
    missing = [repr(words[field]) for field in needed if words[field] not in config]
    if missing:
        raise UserError(f"{where}: has no {', '.join(missing)}")
    values |= {field: config[words[field]] for field in needed}
    _check(values, where, words)
    heads, hidden = values["heads"], values["hidden"]

    def given(key: str, default: Any) -> Any:
        return default if config.get(key) is None else config[key]

    if family == "gpt2":
        values |= {"kv_heads": heads, "head_dim": hidden // heads, "ffn": given("n_inner", 4 * hidden)}
        values |= {"tied": given(words["tied"], True), "attention_bias": True, "mlp_bias": True}
    else:
        values |= {
            "kv_heads": given(words["kv_heads"], heads),
            "head_dim": given("head_dim", 128 if family == "qwen3" else hidden // heads),
            "positions": given(words["positions"], 2048),
            "tied": given(words["tied"], False),
            "attention_bias": family != "mistral" and given("attention_bias", family == "qwen2"),
            "mlp_bias": family == "llama" and given("mlp_bias", False),
        }
    _check(values, where, words)
    try:
        return ModelShape(**values)
    except UserError as error:
        raise UserError(f"{where}: {str(error).removeprefix(f'model {name}: ')}") from None


@cache
def presets() -> dict[str, ModelShape]:
    """The shapes in `presets.json`, by name; each entry there names its source."""
    table = json.loads(files(__package__).joinpath("presets.json").read_text(encoding="utf-8"))
    return {name: shape_from_config(entry["config"], name) for name, entry in table.items()}


def load_shape(model: str | os.PathLike[str]) -> ModelShape:
    """A preset by name, or the shape of a `config.json` (the file, or the folder that holds it).

    Raises `UserError` where `model` is neither.
    """
    if not isinstance(model, str | os.PathLike):
        raise UserError(f"model: must be a preset's name or the path of a config.json, got {shown(model)}")
    if isinstance(model, str) and model in presets():
        return presets()[model]
    path = Path(model)
    try:
        path = path / "config.json" if path.is_dir() else path
        text = path.read_bytes() if model and path.is_file() else None
    except OSError as error:
        raise UserError(f"{shown(str(model))}: cannot be read ({error.strerror})") from None
    if text is None:
        raise UserError(
            f"{model or 'an empty name'}: neither a preset nor a config.json; presets: {', '.join(presets())}"
        )
    try:
        config = json.loads(text.decode("utf-8"))
    except RecursionError:
        raise UserError(f"{path}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: a config.json holds one object")
    whole = path.resolve()
    name = whole.parent.name if whole.name == "config.json" else whole.stem
    return shape_from_config(config, name or whole.stem, str(path))
