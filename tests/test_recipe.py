from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from efficient_training.errors import UserError
from efficient_training.fields import from_mapping, to_mapping
from efficient_training.models import load_shape
from efficient_training.price import price
from efficient_training.recipe import Recipe, accumulation_steps
from efficient_training.workload import Workload


def workload(tokens: int = 4096, sequence: int = 512) -> Workload:
    return Workload(load_shape("qwen2.5-0.5b"), sequence, tokens)


recipes = st.builds(
    Recipe,
    micro_batch=st.integers(1, 64),
    precision=st.sampled_from(["fp32", "bf16-autocast", "fp16-autocast", "bf16"]),
    checkpointing=st.sampled_from(["none", "full", "selective"]),
    optimizer=st.sampled_from(["loop", "foreach", "fused"]),
    loss=st.sampled_from(["upcast", "native", "chunked"]),
    attention=st.sampled_from(["math", "efficient", "sdpa"]),
    packing=st.sampled_from(["none", "mask"]),
) | st.builds(Recipe, micro_batch=st.integers(1, 64), compile=st.booleans())


@given(recipes)
def test_a_recipe_travels_through_yaml(recipe: Recipe) -> None:
    assert from_mapping(Recipe, yaml.safe_load(yaml.safe_dump(to_mapping(recipe))), "recipe.yml") == recipe


def test_a_workload_travels_through_yaml_with_its_model() -> None:
    made = workload()
    assert from_mapping(Workload, yaml.safe_load(yaml.safe_dump(to_mapping(made))), "workload.yml") == made


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"micro_batch": 0}, "micro_batch must be above zero, got 0"),
        ({"micro_batch": True}, "micro_batch must be a whole number, got True"),
        ({"micro_batch": 1, "precision": "fp8"}, "precision must be one of fp32, bf16-autocast, .*, got 'fp8'"),
        ({"micro_batch": 1, "precison": "fp32"}, "has no field 'precison'; fields: micro_batch, precision"),
        ({"precision": "fp32"}, "needs the field 'micro_batch'"),
        ({"micro_batch": 1, "checkpoint_every": 2}, "checkpoint_every needs checkpointing: full, got none"),
        ({"micro_batch": 1, "attention": "flash"}, "attention flash needs 16-bit inputs"),
        ({"micro_batch": 1, "compile": True, "checkpointing": "full"}, "compile needs checkpointing none and one rank"),
        ({"micro_batch": 1, "ranks": 2}, r"ranks \(2\) and sharding \(none\) do not fit"),
        ({"micro_batch": 1, "sharding": "fsdp"}, r"ranks \(1\) and sharding \(fsdp\) do not fit"),
        ({"micro_batch": 1, "ranks": 4, "sharding": "hsdp"}, r"replicas \(1\) must be above 1 with sharding hsdp"),
        (
            {"micro_batch": 1, "ranks": 4, "sharding": "ddp", "replicas": 2},
            "must be above 1 .* got sharding ddp",
        ),
        (
            {"micro_batch": 1, "ranks": 6, "sharding": "hsdp", "replicas": 4},
            "must divide ranks .* of two or more",
        ),
        (
            {"micro_batch": 1, "ranks": 4, "sharding": "hsdp", "replicas": 4},
            "must divide ranks .* of two or more",
        ),
        (
            {"micro_batch": 1, "ranks": 2, "sharding": "ddp", "precision": "bf16-mixed"},
            "sharding ddp does not train in precision bf16-mixed; choose fp32, bf16-autocast, fp16-autocast, bf16",
        ),
        ({"micro_batch": 1, "precision": "bf16-mixed"}, "sharding none does not train in precision bf16-mixed"),
        (
            {"micro_batch": 1, "ranks": 2, "sharding": "fsdp", "offload": "optimizer"},
            "sharding fsdp has no offload optimizer; sharding that has: deepspeed-1, deepspeed-2, deepspeed-3",
        ),
        (
            {"micro_batch": 1, "offload_activations": True, "compile": True},
            "offload_activations needs compile: false",
        ),
        (
            {"micro_batch": 1, "offload_activations": True, "checkpointing": "full"},
            "offload_activations needs checkpointing none, got full",
        ),
        (
            {"micro_batch": 1, "packing": "mask", "ranks": 2, "sharding": "ddp"},
            "packing mask needs one rank, compile: false and offload_activations: false",
        ),
        ({"micro_batch": 1, "packing": "mask", "compile": True}, "packing mask needs one rank, compile: false"),
        (
            {"micro_batch": 1, "packing": "varlen", "precision": "bf16", "offload_activations": True},
            "packing varlen needs one rank, .* offload_activations: false",
        ),
        (
            {"micro_batch": 1, "packing": "mask", "precision": "bf16", "attention": "flash"},
            "packing mask needs attention sdpa, efficient or math; CUDA's flash takes no mask",
        ),
        ({"micro_batch": 1, "packing": "varlen"}, "packing varlen needs 16-bit inputs; choose packing mask"),
        (
            {"micro_batch": 1, "packing": "varlen", "precision": "bf16", "attention": "math"},
            "packing varlen is a flash kernel; choose attention flash or sdpa, got math",
        ),
        ({"micro_batch": 1, "packing": "rows"}, "packing must be one of none, mask, varlen, got 'rows'"),
        (
            {"micro_batch": 1, "fp8": "tensorwise"},
            "fp8 tensorwise needs precision bf16 or bf16-autocast and one rank, got fp32 and sharding none",
        ),
        (
            {"micro_batch": 1, "fp8": "rowwise", "precision": "bf16", "ranks": 2, "sharding": "fsdp"},
            "fp8 rowwise needs precision bf16 or bf16-autocast and one rank, got bf16 and sharding fsdp",
        ),
        ({"micro_batch": 1, "fp8": "delayed"}, "fp8 must be one of none, tensorwise, rowwise, rowwise-gw-hp"),
        (
            {"micro_batch": 1, "algorithm": "lion", "optimizer": "fused"},
            "optimizer fused is a way to run algorithm adamw; leave it out with lion",
        ),
        ({"micro_batch": 1, "algorithm": "adam8bit"}, "algorithm must be one of adamw, .*, got 'adam8bit'"),
        (
            {"micro_batch": 1, "algorithm": "muon", "ranks": 2, "sharding": "fsdp"},
            "algorithm muon needs sharding none, got fsdp",
        ),
        (
            {"micro_batch": 1, "step_in_backward": True, "ranks": 2, "sharding": "ddp"},
            "step_in_backward needs sharding none, got ddp",
        ),
        (
            {"micro_batch": 1, "step_in_backward": True, "precision": "fp16-autocast"},
            "step_in_backward needs another precision than fp16-autocast",
        ),
        ({"micro_batch": 1, "step_in_backward": True, "compile": True}, "step_in_backward needs compile: false"),
        (
            {"micro_batch": 1, "adapter": "lora", "adapter_rank": 0},
            "adapter_rank must be at least 1, got 0; rank 0 would",
        ),
        ({"micro_batch": 1, "adapter": "prefix"}, "adapter must be one of none, lora, dora, ia3, got 'prefix'"),
        ({"micro_batch": 1, "adapter": "ia3", "adapter_rank": 8}, "adapter ia3 has no rank, .*leave out adapter_rank"),
        (
            {"micro_batch": 1, "adapter": "ia3", "adapter_targets": "all-linear"},
            "adapter ia3 has no rank, and three layers of its own; leave out",
        ),
        (
            {"micro_batch": 1, "adapter": "ia3", "precision": "bf16", "quantization": "nf4"},
            "adapter ia3 with quantization nf4 needs another precision than bf16.*choose bf16-autocast",
        ),
        ({"micro_batch": 1, "adapter": "dora", "compile": True}, "adapter dora trains on one rank, without compile"),
        ({"micro_batch": 1, "adapter_rank": 8}, "adapter_rank and adapter_targets need an adapter"),
        ({"micro_batch": 1, "quantization": "nf4"}, "quantization nf4 needs an adapter.*; set adapter: lora"),
        ({"micro_batch": 1, "adapter": "lora", "compile": True}, "adapter lora trains on one rank, without compile"),
        (
            {"micro_batch": 1, "adapter": "lora", "ranks": 2, "sharding": "fsdp"},
            "adapter lora trains on one rank, without compile, offload_activations",
        ),
        ([], "must be a mapping of fields, got list"),
    ],
)
def test_what_does_not_fit_is_one_line_naming_file_and_field(data: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^my.yml: .*{message}"):
        from_mapping(Recipe, data, "my.yml")


def test_accumulation_steps_follow_from_workload_and_micro_batch() -> None:
    assert accumulation_steps(workload(), Recipe(micro_batch=2)) == 4
    with pytest.raises(UserError, match=r"micro_batch \(3\) must divide the 8 sequences"):
        accumulation_steps(workload(), Recipe(micro_batch=3))
    assert accumulation_steps(workload(), Recipe(micro_batch=2, ranks=2, sharding="ddp")) == 2
    with pytest.raises(UserError, match=r"micro_batch \(2\) times ranks \(8\) must divide the 8 sequences"):
        accumulation_steps(workload(), Recipe(micro_batch=2, ranks=8, sharding="ddp"))


def test_a_step_in_backward_has_one_micro_batch() -> None:
    assert accumulation_steps(workload(), Recipe(8, step_in_backward=True)) == 1
    with pytest.raises(UserError, match=r"each of 4 micro-batches a step of its own; choose a micro_batch of 8"):
        accumulation_steps(workload(), Recipe(2, step_in_backward=True))


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert to_mapping(Recipe(np.int64(4))) == {"micro_batch": 4}  # type: ignore[arg-type]
    assert type(Recipe(np.int64(4)).micro_batch) is int  # type: ignore[arg-type]
    with pytest.raises(UserError, match="micro_batch must be a whole number"):
        Recipe(np.bool_(True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("work", "how", "message"),
    [
        (None, None, "workload: must be a Workload, got None"),
        (Recipe(1), workload(), "workload: must be a Workload, got Recipe"),
        (workload(), {"micro_batch": 1}, "recipe: must be a Recipe, got {'micro_batch': 1}"),
        (workload(2**40, 2**40), Recipe(1), r"1 x 1099511627776 tokens has tensors of more than 2\^63 bytes"),
    ],
)
def test_what_cannot_be_priced_is_one_line(work: Any, how: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        price(work, how)


def test_fields_of_one_rank_stay_out_of_what_is_written() -> None:
    """So that recipes written before there were ranks, and keys made of them, are the same."""
    assert to_mapping(Recipe(4, precision="bf16")) == {"micro_batch": 4, "precision": "bf16"}


def test_a_step_is_a_whole_number_of_sequences() -> None:
    with pytest.raises(UserError, match="must be a multiple of sequence_length"):
        workload(tokens=1000)


def test_learned_positions_bound_the_sequence() -> None:
    with pytest.raises(UserError, match="more than the 1024 positions"):
        Workload(load_shape("gpt2"), 2048, 2048)
