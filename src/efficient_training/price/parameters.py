"""The parameters of a model in symbols, in the order of `model.parameters()`, and how FSDP2 cuts them into shards."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..models import ModelShape
from ..ownership import heaviest_rank, owned_by_rank
from ..recipe import Recipe
from .adapters import adapter_table
from .algebra import ONE, Evaluator, Size, total
from .blocks import INPUTS, block_parameters
from .sizes import FFN, FURTHER_BLOCKS, HIDDEN, POSITIONS, VOCABULARY, rows, sizes_of
from .words import Words, words_of

Table = list[tuple[str, Size]]


class Tables(NamedTuple):
    """Parameters before the blocks, of one block, and after them: names and elements."""

    before: Table
    block: Table
    after: Table


def tables(words: Words) -> Tables:
    """The parameters of a model of these words; a tied head is no parameter of its own."""
    gpt2 = words.family == "gpt2"
    before = [("embedding", VOCABULARY * HIDDEN)] + ([("positions", POSITIONS * HIDDEN)] if gpt2 else [])
    after = [("norm.weight", HIDDEN)] + ([("norm.bias", HIDDEN)] if gpt2 else [])
    if not words.tied:
        after.append(("head", VOCABULARY * HIDDEN))
    return Tables(before, block_parameters(words), after)


def trained(words: Words) -> Tables:
    """Those parameters that get gradients and optimizer state: an adapter's where there is one, else all."""
    return Tables([], adapter_table(words), []) if words.adapter != "none" else tables(words)


def elements(of: Tables) -> Size:
    """The elements of all parameters of a model, all its blocks included."""
    before, block, after = of
    return total(size for _, size in before + after) + total(size for _, size in block) * (FURTHER_BLOCKS + 1)


def number(of: Tables) -> Size:
    """The number of parameters of a model."""
    before, block, after = of
    return Size.of(len(before) + len(after)) + (FURTHER_BLOCKS + 1) * len(block)


def parts_of(words: Words, sizes: Mapping[str, Any], ranks: Any) -> dict[str, Any]:
    """All elements of a model, and of a rank's parts where each parameter is cut by itself (DeepSpeed's stage 3).

    Sizes may be ints, arrays or expressions.
    """
    value = Evaluator(sizes)
    before, block, after = tables(words)
    each: Any = 0
    for table, times in ((before + after, 1), (block, sizes["further_blocks"] + 1)):
        for _, size in table:
            each = each + (value(size) + ranks - 1) // ranks * times
    return {"whole": value(elements(tables(words))), "each": each}


def elements_of(shape: ModelShape) -> list[int]:
    """The elements of each parameter of a model."""
    value = Evaluator(sizes_of(shape))
    before, block, after = tables(words_of(shape, Recipe(1), False))
    return [value(size) for _, size in before + block * shape.layers + after]


def owned_sizes(shape: ModelShape, ranks: int) -> dict[str, int]:
    """The named sizes of what the rank that holds most owns under ZeRO-1; no closed form gives them exactly."""
    elements = elements_of(shape)
    mine = [elements[one] for one in owned_by_rank(elements, ranks)[heaviest_rank(elements, ranks)]]
    # Twice the parameter at hand, root and corrected root, and what is left of the one before.
    steps = [2 * now + before for before, now in zip([0, *mine], mine, strict=False)]
    return {"owned": sum(mine), "owned_parameters": len(mine), "owned_step": max(steps)}


def owned_evenly(words: Words, sizes: Mapping[str, Any], ranks: Any) -> dict[str, Any]:
    """As `owned_sizes`, for arrays and expressions: an even share, as if parameters could be cut.

    The rank that holds most has more, by less than the largest parameter.
    """
    value, table = Evaluator(sizes), tables(words)
    return {
        "owned": (value(elements(table)) + ranks - 1) // ranks,
        "owned_parameters": (value(number(table)) + ranks - 1) // ranks,
        "owned_step": 2 * value(table.before[0][1]),
    }


SIDES: Mapping[str, str] = {"q": "q", "k": "kv", "v": "kv", "o": "hidden", "gate": "ffn", "up": "ffn", "down": "hidden"}
"""The first dimension of a projection's weight, (outputs, inputs), and of its bias."""
OTHERS: Mapping[str, tuple[str, Size]] = {
    "embedding": ("vocabulary", HIDDEN),
    "head": ("vocabulary", HIDDEN),
    "positions": ("positions", HIDDEN),
}
CONV1D: Mapping[str, tuple[str, Size]] = {
    "qkv.weight": ("hidden", 3 * HIDDEN),
    "qkv.bias": ("three_hidden", ONE),
    "o.weight": ("hidden", HIDDEN),
    "up.weight": ("hidden", FFN),
    "down.weight": ("ffn", HIDDEN),
}
"""GPT-2's weights stand the other way round, (inputs, outputs)."""


def shard_elements(name: str, family: str) -> Size:
    """Elements of a parameter's first shard, the largest: a part of its rows, rounded up, as `torch.chunk` cuts them.

    All shards are allocated as large (`FSDPParam._init_sharded_param`: "pre-pad the sharded parameter"), so that what
    is gathered has `ranks` times as many.
    """
    dimension, rest = dimensions(name, family == "gpt2")
    return rows(dimension) * rest


def dimensions(name: str, gpt2: bool) -> tuple[str, Size]:
    """The first dimension of a parameter, by its word, and the elements of one of its rows."""
    if name in OTHERS:
        return OTHERS[name]
    if gpt2 and name in CONV1D:
        return CONV1D[name]
    module, _, kind = name.partition(".")
    if module in ("q_norm", "k_norm"):
        return "head_dim", ONE
    dimension = SIDES.get(module, "hidden")
    return dimension, INPUTS.get(module, HIDDEN) if kind == "weight" and module in SIDES else ONE


def shard_tables(whole: Tables, words: Words) -> Tables:
    """The same parameters with the elements of their first shards."""
    before, block, after = ([(name, shard_elements(name, words.family)) for name, _ in table] for table in whole)
    return Tables(before, block, after)
