import warnings
from collections.abc import Iterator
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from efficient_training.adapters import (
    LINEARS,
    Adapter,
    adapter_bytes,
    adapter_parameters,
    adapter_shapes,
    build,
    quantized_bytes,
    saved_bytes,
)
from efficient_training.errors import UserError
from efficient_training.measure.saved import saved_tensors
from efficient_training.models import load_shape, shape_from_config
from efficient_training.nf4 import nf4_bytes, nf4_codes, nf4_table, nf4_values
from efficient_training.optimizer_state import held_bytes


@pytest.fixture(autouse=True)
def _eager_and_quiet() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "use_cache": False,
}


def llama(layers: int = 2) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **SIZES))  # type: ignore[arg-type]


def qwen(layers: int = 2) -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=layers, **SIZES))  # type: ignore[arg-type]


def gpt2() -> Any:
    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=128, n_positions=64, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return GPT2LMHeadModel(config)


def tokens(length: int = 16) -> torch.Tensor:
    return torch.randint(128, (2, length), generator=torch.Generator().manual_seed(0))


def trained(model: Any) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("make", [llama, qwen])
@pytest.mark.parametrize(
    "adapter",
    [
        Adapter(rank=3),
        Adapter(rank=8, targets=LINEARS, rank_stabilized=True),
        Adapter("dora", rank=4, targets=("q_proj", "down_proj")),
        Adapter("ia3"),
        Adapter("ia3", targets=("q_proj", "down_proj")),
        Adapter("prompt", virtual_tokens=5),
        Adapter("prefix", virtual_tokens=5),
    ],
    ids=lambda adapter: f"{adapter.kind}-{adapter.rank}",
)
def test_trains_what_is_derived(make: Any, adapter: Adapter) -> None:
    model = make()
    shape = shape_from_config(model.config.to_dict(), "small")
    adapted = build(model, adapter)
    ours = sorted(sorted(shape) for shape in adapter_shapes(adapter, shape).values())
    assert sorted(sorted(p.shape) for p in trained(adapted)) == ours
    optimizer = torch.optim.AdamW(trained(adapted), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = adapted(input_ids=tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    expected = adapter_bytes(adapter, shape)
    assert expected.weights == sum(p.nbytes for p in trained(adapted))
    assert expected.gradients == sum(p.grad.nbytes for p in trained(adapted) if p.grad is not None)
    assert expected.state == held_bytes(optimizer)
    assert expected.total == expected.weights + expected.gradients + expected.state


def test_gpt2_shares_one_name_among_two_layers() -> None:
    model = gpt2()
    shape = shape_from_config(model.config.to_dict(), "gpt2")
    adapter = Adapter(rank=4, targets=("c_attn", "c_proj"))
    assert sum(p.numel() for p in trained(build(model, adapter))) == adapter_parameters(adapter, shape)


def test_scaling() -> None:
    assert Adapter(rank=16, alpha=32).scaling == 2
    assert Adapter(rank=16, alpha=32, rank_stabilized=True).scaling == 8
    adapted = build(llama(), Adapter(rank=16, alpha=32, rank_stabilized=True))
    assert adapted.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"] == 8


@pytest.mark.parametrize("make", [llama, qwen])
@pytest.mark.parametrize(
    "adapter",
    [
        None,
        Adapter(rank=4),
        Adapter(rank=4, targets=LINEARS),
        Adapter(rank=2, targets=("o_proj",)),
        Adapter(rank=2, targets=("up_proj",)),
        Adapter(rank=2, targets=("k_proj", "down_proj")),
    ],
)
def test_saved_bytes(make: Any, adapter: Adapter | None) -> None:
    sizes = []
    for layers in (2, 3):
        model = make(layers)
        shape = shape_from_config(model.config.to_dict(), "small")
        model = build(model, adapter) if adapter else model
        with saved_tensors(exclude=model.parameters()) as saved:
            loss = model(input_ids=tokens(), labels=tokens()).loss
        sizes.append(saved.bytes)
        del loss
    assert (sizes[1] - sizes[0]) / tokens().numel() == saved_bytes(shape, adapter)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adapter(rank=0), "rank must be at least 1"),
        (lambda: Adapter("dora", rank=-1), "rank must be at least 1"),
        (lambda: Adapter("prompt", virtual_tokens=0), "virtual_tokens must be at least 1"),
        (lambda: Adapter("lora2"), "unknown adapter"),  # type: ignore[arg-type]
        (lambda: Adapter(targets=()), "targets is empty"),
        (
            lambda: build(llama(), Adapter(targets=("query",))),
            "no layer 'query'; it has q_proj, k_proj, v_proj, o_proj",
        ),
        (lambda: adapter_parameters(Adapter(), load_shape("gpt2")), "no layer 'q_proj'; it has c_attn, c_proj, c_fc"),
        (lambda: saved_bytes(load_shape("gpt2")), "not gpt2"),
        (lambda: saved_bytes(load_shape("llama-3.1-8b"), Adapter("ia3")), "derived for lora only"),
        (lambda: quantized_bytes(load_shape("gpt2")), "none of"),
        (lambda: nf4_bytes(0), "must have elements"),
        (lambda: nf4_codes(torch.tensor([1.0, float("nan")]), nf4_table()), "NaN"),
    ],
)
def test_refusals_are_one_clear_line(make: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (5, 33), (300, 100), (1, 2)])
def test_nf4_is_bitsandbytes_own(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    table = bnb.get_4bit_type("nf4", device="cpu")
    assert torch.allclose(nf4_table(), table, rtol=0, atol=3e-7)
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    packed, scales = nf4_codes(weight, table)
    theirs, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=False)
    assert torch.equal(packed, theirs.flatten())
    assert torch.equal(scales, state.absmax)
    values = nf4_values(packed, scales, table, weight.numel()).to(dtype)
    assert torch.equal(values, bnb.dequantize_4bit(theirs, state).flatten())
    assert nf4_bytes(weight.numel(), double=False).total == theirs.nbytes + state.absmax.nbytes + state.code.nbytes
    theirs, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    held = (theirs, state.absmax, state.code, state.state2.absmax, state.state2.code, state.offset)
    assert nf4_bytes(weight.numel()).total == sum(tensor.nbytes for tensor in held)


def test_the_large_model() -> None:
    shape = load_shape("llama-3.1-8b")
    sizes = quantized_bytes(shape, 4)
    linears = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert sizes.linear.codes == linears // 2
    assert sizes.rest == 4 * (shape.parameters - linears)
    assert sizes.total - quantized_bytes(shape, 2).total == sizes.rest // 2
