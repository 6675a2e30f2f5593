"""Price a recipe: the ledger of a training step in closed form, without torch, hardware or a trace.

The peak of each phase is the largest of a few sums, one for each instant at which it may lie; each sum is a polynomial
over named sizes (`efficient_training.price.sizes`). Which sums there are depends on words alone (precision, family,
checkpointing ...), so that one set serves ints, arrays over thousands of recipes, and recorded expressions.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..ledger import PHASES, Ledger, Place
from ..recipe import Recipe, accumulation_steps
from ..workload import Workload
from .adapters import adapted_sizes
from .algebra import Evaluator
from .candidates import candidates
from .deepspeed import deepspeed_sizes
from .elsewhere import elsewhere, notes
from .evaluate import peaks
from .parameters import owned_sizes, parts_of
from .sizes import named_sizes, sharded_sizes, sizes_of
from .state import state_sizes
from .streams import stream_peaks
from .words import Words, words_of


def price(workload: Workload, recipe: Recipe) -> Ledger:
    """The ledger of `recipe` for `workload` on one CUDA device, as `trace` would find it: of the rank that holds most.

    What has no trace (DeepSpeed) is said in the ledger's notes. Raises `UserError` where the micro-batch does
    not divide the step, and for `compile`, which has no closed form.
    """
    steps = accumulation_steps(workload, recipe)
    if recipe.compile:
        raise UserError("price: a compiled model has no closed form; run it instead, or set compile: false")
    words = words_of(workload.model, recipe, steps > 1)
    sizes = _sizes(workload, recipe, words)
    entries: dict[str, dict[str, dict[str, int]]] = {}
    for place in candidates(words):
        found = price_sizes(words, sizes, place)
        entries[place] = {phase: {n: b for n, b in found[phase].items() if b} for phase in PHASES}
    value = Evaluator(sizes)
    for away, components in elsewhere(words).items():
        entries[away] = {phase: {n: value(size) for n, size in components.items()} for phase in PHASES}
    return Ledger("priced", entries, notes=tuple(notes(words)))


def reserved_at_least(workload: Workload, recipe: Recipe) -> int:
    """Bytes that CUDA's allocator must reserve for `recipe` at least: the sum of the peaks of the streams that it uses.

    Without FSDP2 there is one stream, and this is the peak. Raises as `price`.
    """
    steps = accumulation_steps(workload, recipe)
    words = words_of(workload.model, recipe, steps > 1)
    if not words.fsdp:
        return price(workload, recipe).peak()
    return sum(stream_peaks(words, _sizes(workload, recipe, words)).values())


def _sizes(workload: Workload, recipe: Recipe, words: Words) -> Mapping[str, Any]:
    sizes = sizes_of(
        workload.model,
        batch=recipe.micro_batch,
        sequence=workload.sequence_length,
        checkpoint_every=recipe.checkpoint_every,
    )
    if words.adapter != "none":
        return adapted_sizes(sizes, recipe.adapter_rank)
    if words.fsdp:
        return sharded_sizes(sizes, recipe.shards)
    if words.sharding == "zero1":
        return {**sizes, **owned_sizes(workload.model, recipe.ranks)}
    if words.deepspeed:
        parts = parts_of(words, sizes, recipe.ranks)
        return deepspeed_sizes(sizes, parts, int(words.sharding[-1]), recipe.ranks)
    return sizes


def price_sizes(words: Words, sizes: Mapping[str, Any], place: Place = "device") -> dict[str, dict[str, Any]]:
    """Bytes by phase and component at each phase's peak, for one set of words and the values of `named_sizes`.

    On the device, or on the host, for the words of a recipe that keeps something there and is not DeepSpeed's.

    Values may be ints, NumPy arrays of int64 of one shape, or `ops.Expression`s; the result is of their kind.
    """
    sizes = state_sizes(words, sizes) if words.algorithm != "adamw" else sizes
    return {phase: peaks(found, sizes) for phase, found in candidates(words)[place].items()}


__all__ = ["Words", "named_sizes", "notes", "price", "price_sizes", "reserved_at_least", "words_of"]
