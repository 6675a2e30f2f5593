"""AdamW's step in symbols, in torch's three implementations, and the gradient scaler's part before it."""

from collections.abc import Iterator

from .algebra import ONE, ZERO, Size, total
from .algorithms import Held, step_of
from .autograd import Graph, Tensor
from .operators import FLOAT, LONG
from .sizes import FURTHER_BLOCKS, OWNED, OWNED_STEP, TWO_BLOCKS
from .tape import WHOLE, Region
from .words import Words

Table = list[tuple[str, Size]]


def optimizer_step(graph: Graph, words: Words, before: Table, block: Table, after: Table) -> None:
    """The step over the parameters before the blocks, of one block, and after them.

    `fused` makes nothing. `foreach` makes the square roots of all second moments at once, as large as the weights.
    `loop` makes two tensors for each parameter in turn, the root and the same over the bias correction; the second
    lives until that of the next parameter is there, so that the peak is over pairs of neighbors.
    Under FSDP2 parameters are their shards, under ZeRO-1 those that the rank owns.
    """
    if words.step_in_backward:
        return
    scalars = _unscale(graph, words) if words.scaled else []
    if words.algorithm != "adamw":
        _other_step(graph, words, before, block, after)
        scalars.clear()
        return
    size = words.state_itemsize
    if words.optimizer == "foreach":
        parts = [s for _, s in before] + [s * (FURTHER_BLOCKS + 1) for _, s in block] + [s for _, s in after]
        _foreach(graph, OWNED if words.sharding == "zero1" else total(parts), size)
    elif words.optimizer == "loop" and words.sharding == "zero1":
        roots = graph.new(OWNED_STEP, size)
        del roots
    elif words.optimizer == "loop":
        last: Tensor | None = None
        for region, numel in _in_turn(before, block, after):
            with graph.within(region):
                root = graph.new(numel, size)
                corrected = graph.new(numel, size)
                del root
                last = corrected
                del corrected
        del last
    scalars.clear()


def _other_step(graph: Graph, words: Words, before: Table, block: Table, after: Table) -> None:
    """The step of another optimizer, and of AdamW over the parameters that it leaves."""
    held: Held = {}
    further = Region(ONE, TWO_BLOCKS)
    left: list[Size] = []
    for region, table, times in (
        (WHOLE, before, ONE),
        (WHOLE, block, FURTHER_BLOCKS + 1),
        (further, block, ZERO),
        (WHOLE, after, ONE),
    ):
        with graph.within(region):
            for name, numel in table:
                step = step_of(words, name)
                if step is None:
                    left.append(numel * times)
                else:
                    step(graph, words, name, numel, held)
    held.clear()
    if left:
        _foreach(graph, total(left), words.state_itemsize)


def step_of_one(graph: Graph, words: Words, name: str, numel: Size) -> None:
    """The step of one parameter by itself, as in backward."""
    step = step_of(words, name)
    if step is not None:
        step(graph, words, name, numel, {})
    elif words.optimizer == "foreach":
        _foreach(graph, numel, words.state_itemsize)
    elif words.optimizer == "loop":
        root = graph.new(numel, words.state_itemsize)
        corrected = graph.new(numel, words.state_itemsize)
        del root, corrected


def _foreach(graph: Graph, numel: Size, itemsize: int) -> None:
    number = graph.new(ONE, FLOAT)
    del number
    roots = graph.new(numel, itemsize)
    del roots


def _in_turn(before: Table, block: Table, after: Table) -> Iterator[tuple[Region, Size]]:
    """Parameters so that every two that are neighbors follow each other, a second block where there is one."""
    further = Region(ONE, TWO_BLOCKS)
    yield from ((WHOLE, size) for _, size in before)
    yield from ((WHOLE, size) for _, size in block)
    yield (further, block[0][1])
    yield from ((further, size) for _, size in block[-1:])
    yield from ((WHOLE, size) for _, size in after)


def _unscale(graph: Graph, words: Words) -> list[Tensor]:
    """What `GradScaler` makes before the step: a few scalars, one of which (whether a gradient is infinite) stays."""
    if words.optimizer == "fused" and words.sharding != "zero1":
        made = [graph.new(ONE, FLOAT) for _ in range(4)]
        del made
        return []
    double = graph.new(ONE, LONG)
    inverse = graph.new(ONE, LONG)
    del double
    inverse = graph.new(ONE, FLOAT)
    found = graph.new(ONE, FLOAT)
    copies = [graph.new(ONE, FLOAT) for _ in range(2)]
    del inverse, copies
    return [found]
