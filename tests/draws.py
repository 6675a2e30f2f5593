"""Random models and recipes, small enough to trace in a moment, for the tests of trace and price."""

import random
from dataclasses import replace
from typing import get_args

from efficient_training.models import FAMILIES, ModelShape
from efficient_training.recipe import (
    FSDP,
    PRECISIONS,
    Adapter,
    Algorithm,
    Attention,
    Checkpointing,
    Fp8,
    Packing,
    Precision,
    Quantization,
    Recipe,
    Sharding,
)
from efficient_training.workload import Workload


def draw(seed: int, deepest: int = 7, small: bool = False) -> tuple[Workload, Recipe]:
    """The workload and recipe of `seed`, over all families, precisions, checkpointing, losses, optimizers, kernels.

    `small`: fit for real tensors."""
    rng = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    heads = rng.choice([1, 2, 4, 6])
    head_dim = rng.choice([8, 16, 20, 32])
    kv_heads = heads if family == "gpt2" else rng.choice([k for k in (1, 2, 3, 4, 6) if heads % k == 0])
    hidden = heads * (head_dim if family == "gpt2" else rng.choice([8, 16, 20, 40]))
    layers = rng.randint(1, deepest)
    biased = rng.random() < 0.3
    shape = ModelShape(
        "drawn", family, hidden, layers, heads, kv_heads, head_dim, rng.choice([40, 100, 176, 300, 700]),
        rng.choice([61, 503, 2003] if small else [61, 503, 2003, 9001, 40009]), 1024, rng.random() < 0.5,
        attention_bias=biased and family in ("llama", "qwen3"), mlp_bias=biased and family == "llama",
    )  # fmt: skip
    precision = rng.choice(PRECISIONS["none"])
    checkpointing = rng.choice(get_args(Checkpointing))
    attention: Attention = rng.choice(["sdpa", "sdpa", "efficient", "math", "sdpa" if precision == "fp32" else "flash"])
    recipe = Recipe(
        rng.choice([1, 2, 3, 5]),
        precision=precision,
        checkpointing=checkpointing,
        checkpoint_every=rng.randint(1, min(layers + 1, 4)) if checkpointing == "full" else 1,
        optimizer=rng.choice(["loop", "foreach", "fused"]),
        loss=rng.choice(["upcast", "native", "chunked"]),
        attention=attention,
    )
    sequence = rng.choice([1, 7, 16, 33, 64, 100] if small or attention == "math" else [1, 7, 16, 33, 100, 250, 600])
    return Workload(shape, sequence, sequence * recipe.micro_batch * rng.choice([1, 1, 2, 3])), recipe


def draw_offloaded(
    seed: int, deepest: int = 7, small: bool = False, ranks: int | None = None
) -> tuple[Workload, Recipe]:
    """As `draw`, or as `draw_sharded` where the seed is odd, with saved tensors or shards on the host, or both."""
    workload, recipe = draw_sharded(seed, deepest, small, ranks) if seed % 2 or ranks else draw(seed, deepest, small)
    rng = random.Random(11 * seed + 3)
    shards = recipe.sharding in FSDP and rng.random() < 0.7
    if not shards or rng.random() < 0.5:
        recipe = replace(recipe, checkpointing="none", checkpoint_every=1, offload_activations=True)
    return workload, replace(recipe, offload="parameters" if shards else "none")


def draw_packed(seed: int, deepest: int = 7, small: bool = False) -> tuple[Workload, Recipe]:
    """As `draw`, with rows of documents, apart by a mask or, in 16 bits, half of the time by lengths."""
    workload, recipe = draw(seed, deepest, small)
    rng = random.Random(13 * seed + 5)
    if recipe.precision != "fp32" and rng.random() < 0.5:
        attention: Attention = "sdpa" if recipe.attention in ("math", "efficient") else recipe.attention
        return workload, replace(recipe, packing="varlen", attention=attention)
    attention = "sdpa" if recipe.attention == "flash" else recipe.attention
    return workload, replace(recipe, packing="mask", attention=attention)


def draw_fp8(seed: int, deepest: int = 7, small: bool = False) -> tuple[Workload, Recipe]:
    """As `draw`, with linear layers in fp8, of sizes that these take, and now and then what they save on the host."""
    workload, recipe = draw(seed, deepest, small)
    rng = random.Random(13 * seed + 5)
    shape = workload.model
    family = shape.family if shape.family != "gpt2" else "llama"
    head_dim = rng.choice([16, 32, 48])
    hidden, ffn = 16 * shape.heads * rng.choice([1, 2, 3]), 16 * rng.choice([3, 7, 11, 20, 44])
    shape = replace(shape, family=family, hidden=hidden, head_dim=head_dim, ffn=ffn)
    fp8: Fp8 = rng.choice(["tensorwise", "rowwise", "rowwise-gw-hp"])
    away = recipe.checkpointing == "none" and rng.random() < 0.3
    precision: Precision = rng.choice(["bf16", "bf16-autocast"])
    recipe = replace(recipe, precision=precision, fp8=fp8, offload_activations=away)
    sequence = workload.sequence_length if fp8 == "rowwise-gw-hp" else rng.choice([16, 48, 112] if small else [16, 256])
    steps = workload.tokens_per_step // (workload.sequence_length * recipe.micro_batch)
    return Workload(shape, sequence, sequence * recipe.micro_batch * steps), recipe


def draw_algorithm(seed: int, deepest: int = 7, small: bool = False) -> tuple[Workload, Recipe]:
    """As `draw`, with any optimizer, and for some with the step in backward."""
    workload, recipe = draw(seed, deepest, small)
    rng = random.Random(13 * seed + 5)
    words = get_args(Algorithm)
    algorithm: Algorithm = words[seed % len(words)]
    optimizer = recipe.optimizer if algorithm == "adamw" else "foreach"
    in_backward = recipe.precision != "fp16-autocast" and rng.random() < 0.4
    if in_backward:
        workload = replace(workload, tokens_per_step=workload.sequence_length * recipe.micro_batch)
    return workload, replace(recipe, algorithm=algorithm, optimizer=optimizer, step_in_backward=in_backward)


def draw_sharded(seed: int, deepest: int = 7, small: bool = False, ranks: int | None = None) -> tuple[Workload, Recipe]:
    """As `draw`, over several ranks: DDP, ZeRO-1, FSDP2 with and without resharding, and HSDP (not of two ranks)."""
    workload, recipe = draw(seed, deepest, small)
    rng = random.Random(7 * seed + 1)
    choices: list[Sharding] = ["ddp", "zero1", "fsdp", "fsdp", "fsdp-no-reshard", "hsdp" if ranks != 2 else "fsdp"]
    sharding = rng.choice(choices)
    replicas = (2 if ranks else rng.choice([2, 3])) if sharding == "hsdp" else 1
    count = ranks or (replicas * rng.choice([2, 4, 5]) if replicas > 1 else rng.choice([2, 3, 4, 8, 64]))
    sharded = replace(
        recipe,
        sharding=sharding,
        ranks=count,
        replicas=replicas,
        precision=rng.choice(PRECISIONS[sharding]),
        attention="sdpa" if recipe.attention == "flash" else recipe.attention,
    )
    return replace(workload, tokens_per_step=workload.tokens_per_step * count), sharded


def draw_adapted(seed: int, deepest: int = 7, small: bool = False) -> tuple[Workload, Recipe]:
    """As `draw`, of two tokens or more, with an adapter on a frozen model, which is in NF4 or not (GPT-2: never)."""
    workload, recipe = draw(seed, deepest, small)
    rng = random.Random(13 * seed + 5)
    sequence = max(workload.sequence_length, 2)
    tokens = workload.tokens_per_step // workload.sequence_length * sequence
    gpt2 = workload.model.family == "gpt2"
    adapter: Adapter = rng.choice(["lora", "dora"] if gpt2 else ["lora", "dora", "ia3"])
    if adapter == "ia3":
        bits: list[Quantization] = ["none"] if recipe.precision == "bf16" else ["none", "nf4", "nf4-double"]
        adapted = replace(recipe, adapter="ia3", quantization=rng.choice(bits))
        return replace(workload, sequence_length=sequence, tokens_per_step=tokens), adapted
    adapted = replace(
        recipe,
        adapter=adapter,
        adapter_rank=rng.choice([1, 4, 16, 64]),
        adapter_targets="all-linear" if gpt2 else rng.choice(["q-v", "all-linear"]),
        quantization="none" if gpt2 else rng.choice(["none", "nf4", "nf4-double"]),
    )
    return replace(workload, sequence_length=sequence, tokens_per_step=tokens), adapted


def draw_combined(seed: int, deepest: int = 7) -> tuple[Workload, Recipe]:
    """As `draw_adapted`, with any optimizer, in backward or after it, over rows of documents or not."""
    workload, recipe = draw_adapted(seed, deepest)
    rng = random.Random(17 * seed + 3)
    words = get_args(Algorithm)
    algorithm: Algorithm = words[seed % len(words)]
    optimizer = recipe.optimizer if algorithm == "adamw" else "foreach"
    in_backward = recipe.precision != "fp16-autocast" and rng.random() < 0.5
    if in_backward:
        workload = replace(workload, tokens_per_step=workload.sequence_length * recipe.micro_batch)
    packing: Packing = rng.choice(["none", "mask", "none" if recipe.precision == "fp32" else "varlen"])
    return workload, replace(
        recipe,
        algorithm=algorithm,
        optimizer=optimizer,
        step_in_backward=in_backward,
        packing=packing,
        attention="sdpa" if packing != "none" else recipe.attention,
    )
