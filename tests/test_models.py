import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from efficient_training.errors import UserError
from efficient_training.models import ModelShape, load_shape, presets, shape_from_config

TABLE = json.loads(files("efficient_training").joinpath("presets.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    assert presets()[name].parameters == TABLE[name]["parameters"]
    assert TABLE[name]["source"]


@pytest.mark.parametrize(
    "name", ["qwen2.5-0.5b", "qwen3-4b", "llama-3.2-3b", "tinyllama-1.1b", "mistral-7b-v0.3", "gpt2"]
)
def test_the_model_built_on_the_meta_device_has_as_many(name: str) -> None:
    config = AutoConfig.for_model(**TABLE[name]["config"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == TABLE[name]["parameters"]


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("qwen3", {"attention_bias": True}),
        ("mistral", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_biases_count(family: str, extra: dict[str, bool]) -> None:
    config = {
        "model_type": family, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 80, "vocab_size": 100, **extra,
    }  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))  # type: ignore[arg-type]
    assert shape_from_config(config, "tiny").parameters == sum(p.numel() for p in model.parameters())


def test_a_shape_is_read_from_a_config_json_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TABLE["qwen3-8b"]["config"]))
    assert load_shape(str(tmp_path)).parameters == load_shape(str(tmp_path / "config.json")).parameters == 8190735360


def llama(**changes: Any) -> str:
    """The text of a small config.json with these changes."""
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256,
    }  # fmt: skip
    return json.dumps({**config, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "holds one object"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not supported"),
        ('{"model_type": "llama"}', "config.json: has no 'hidden_size', 'num_hidden_layers', 'num_at"),
        ("[" * 100_000, "nested too deeply"),
        (llama(num_attention_heads=0), "config.json: num_attention_heads must be a positive integer, got 0"),
        (llama(num_attention_heads="4"), "num_attention_heads must be a positive integer, got '4'"),
        (llama(hidden_size=None), "hidden_size must be a positive integer, got None"),
        (llama(num_key_value_heads=3), r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
        (llama(num_key_value_heads=0), "num_key_value_heads must be a positive integer, got 0"),
        (llama(num_attention_heads=3), r"hidden_size \(64\) must be a multiple of num_attention_heads \(3\)"),
        (llama(head_dim=5), r"head_dim \(5\) must be even"),
        (llama(hidden_size=10**12), r"config.json: its parameters take more than 2\^63 bytes"),
        (llama(vocab_size=10**100), r"vocab_size must be at most 2\^63 - 1, got 10000.*\(101 characters\)"),
        (llama(tie_word_embeddings="no"), "tie_word_embeddings must be true or false, got 'no'"),
        (
            '{"model_type": "gpt2", "n_head": 0, "n_embd": 64, "n_layer": 2, "vocab_size": 9, "n_positions": 9}',
            "n_head must be a positive integer, got 0",
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_shape(str(path))
    assert "\n" not in str(caught.value)


def test_a_model_is_called_by_its_folder_however_its_config_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(llama())
    monkeypatch.chdir(tmp_path / "mine")
    assert {load_shape(model).name for model in (".", "config.json", Path("config.json"), "../mine")} == {"mine"}


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    made = ModelShape("x", "llama", np.int64(8), np.int32(1), 2, 1, 4, 16, 10, 32, False)  # type: ignore[arg-type]
    assert (made.hidden, type(made.hidden)) == (8, int)
    with pytest.raises(UserError, match="name must be text, got 3"):
        ModelShape(3, "llama", 8, 1, 2, 1, 4, 16, 10, 32, False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be a preset's name or the path of a"):
        load_shape(None)  # type: ignore[arg-type]


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(UserError, match=r"no-such-model: neither a preset nor .*qwen2\.5-0\.5b"):
        load_shape("no-such-model")


def test_a_field_that_does_not_fit_is_named() -> None:
    with pytest.raises(UserError, match="layers must be a positive integer, got 0"):
        ModelShape("x", "llama", 8, 0, 2, 1, 4, 16, 10, 32, False)
    with pytest.raises(UserError, match="heads \\(3\\) must be a multiple of kv_heads \\(2\\)"):
        ModelShape("x", "llama", 8, 1, 3, 2, 4, 16, 10, 32, False)
