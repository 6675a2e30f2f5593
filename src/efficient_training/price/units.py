"""FSDP2's units of a model in symbols: the root, and one for each segment of blocks that is checkpointed as one."""

from collections.abc import Sequence

from .algebra import total
from .autograd import Graph, Parameter, Tensor
from .blocks import Weights
from .fsdp import Runtime, Unit
from .parameters import Tables
from .plan import SEVERAL
from .sizes import FURTHER_IN_LAST, FURTHER_IN_SEGMENT
from .words import Words


class Units:
    """The root unit (embedding, final norm, head) and those of the segments, in the order of `plan.plan`."""

    def __init__(self, runtime: Runtime, root: Unit, blocks: list[Unit]) -> None:
        self.runtime, self.root, self.blocks = runtime, root, blocks

    def end(self, loss: Tensor) -> Tensor:
        """The end of forward: the root keeps its weights, and lets go of the last unit's output buffer."""
        self.runtime.gathering.clear()
        return self.root.end(loss, reshard=False)

    def finish(self) -> None:
        """The end of backward."""
        self.runtime.finish(self.root)


def units_of(
    graph: Graph, words: Words, kept: Tables, outer: list[Parameter], inner: Sequence[Sequence[Weights]]
) -> Units:
    """The units of a model whose shards are `kept`, with the parameters `outer`, and `inner` by segment and block.

    Segments in symbols are the first, the second, one for those between, the last but one and the last. In backward the
    second finds the buffer of those between being reduced, or where it is the last but one, the last's; the first that
    of the second, or of the last, or where it is alone, none.
    """
    runtime = Runtime(graph, words)
    rest = [size for _, size in kept.before + kept.after]
    root = Unit(runtime, outer, rest, total(rest))
    full = words.checkpointing == "full"
    parts = [size for _, size in kept.block]
    block = total(parts)
    whole, last = (block * (FURTHER_IN_SEGMENT + 1), block * (FURTHER_IN_LAST + 1)) if full else (block, block)
    two, three, four = SEVERAL[full]
    found = [whole, whole * three + last * (two - three), whole * four + last * (three - four), whole, last]
    shards = [whole, whole, whole, whole, last]
    parameters = [[parameter for weights in segment for parameter in weights.values()] for segment in inner]
    blocks = [Unit(runtime, own, parts, *sizes) for own, *sizes in zip(parameters, shards, found, strict=True)]
    return Units(runtime, root, blocks)
