"""The parameters of a model in symbols, and who shards them: what is there throughout a step, and at its turns."""

from collections.abc import Sequence

from .adapters import KINDS, Quantized, compute_itemsize
from .algebra import Size
from .autograd import Graph, Parameter, Tensor
from .blocks import Weights
from .deepspeed import Engine
from .frozen import frozen_bytes
from .operators import FLOAT
from .optimizer import optimizer_step, step_of_one
from .parameters import Tables, elements, number, shard_tables, tables, trained
from .plan import Segment
from .sizes import HALF_HEAD, OWNED, OWNED_PARAMETERS
from .state import STATE
from .units import units_of
from .words import Words


class Model:
    """The parameters, of each segment's blocks and outside of them; FSDP2's units of them, or DeepSpeed's engine."""

    def __init__(self, graph: Graph, words: Words, segments: Sequence[Segment]) -> None:
        self.graph, self.words = graph, words
        self.frozen = tables(words) if words.adapter != "none" else Tables([], [], [])
        self.table = trained(words)
        self.kept = shard_tables(self.table, words) if words.fsdp else self.table
        frozen = self.frozen.before + self.frozen.after
        self.outer = {name: Parameter(graph, size, words.itemsize, frozen=True) for name, size in frozen}
        self.outer |= {name: self._parameter(name, size) for name, size in self.table.before + self.table.after}
        self.inner = [self._segment_weights(segment) for segment in segments]
        self.units = units_of(graph, words, self.kept, list(self.outer.values()), self.inner) if words.fsdp else None
        self.engine = Engine(graph, words) if words.deepspeed else None

    def _segment_weights(self, segment: Segment) -> list[Weights]:
        weights = []
        with self.graph.within(segment.region):
            for region in segment.blocks:
                with self.graph.within(region):
                    own: Weights = {name: self._frozen(name, size) for name, size in self.frozen.block}
                    weights.append(own | {name: self._parameter(name, size) for name, size in self.table.block})
        return weights

    def _frozen(self, name: str, numel: Size) -> Parameter:
        words, (layer, _, part) = self.words, name.partition(".")
        if words.quantization != "none" and layer in KINDS and part == "weight":
            return Quantized(self.graph, KINDS[layer], compute_itemsize(words), words.quantization == "nf4-double")
        if words.quantization != "none" and layer in KINDS:
            return Parameter(self.graph, numel, compute_itemsize(words), frozen=True)
        return Parameter(self.graph, numel, words.itemsize, frozen=True)

    def _parameter(self, name: str, numel: Size) -> Parameter:
        """A weight, which has no storage here, as all weights are one constant; but its gradient has.

        Under DDP, gradients of the micro-batches before the last are tensors of their own (`no_sync`), until the last
        one is added and the sum copied to a bucket. DeepSpeed's buckets take each from stage 2 on.
        """
        words = self.words
        taken = words.ddp or words.sharding in ("deepspeed-2", "deepspeed-3")
        there = words.accumulating and (words.ddp or not taken) and not words.fsdp
        itemsize = words.state_itemsize if words.adapter != "none" else words.itemsize
        made = Parameter(self.graph, numel, itemsize, there, taken)
        if words.step_in_backward:
            made.step = lambda: step_of_one(self.graph, words, name, numel)
        if words.ddp and words.accumulating:
            made.gradient = self.graph.new(numel, words.itemsize)
            assert made.gradient.storage is not None
            made.gradient.storage.entry.component = "gradients"
        return made

    def begin(self) -> None:
        """Forward begins."""
        if self.units is not None:
            self.units.root.begin()
        if self.engine is not None:
            self.engine.begin(elements(self.table))

    def end(self, loss: Tensor) -> Tensor:
        """Forward ends with the loss."""
        return self.units.end(loss) if self.units is not None else loss

    def begin_backward(self) -> None:
        """Backward begins."""
        if self.engine is not None:
            self.engine.begin_backward()

    def finish(self) -> None:
        """Backward ends."""
        if self.units is not None:
            self.units.finish()
        if self.engine is not None:
            self.engine.finish()
            for weights in [self.outer, *(own for segment in self.inner for own in segment)]:
                for parameter in weights.values():
                    parameter.gradient = None

    def step(self) -> None:
        """The optimizer's step, where its state is."""
        if self.engine is not None:
            self.engine.step()
        else:
            with self.graph.in_host_memory(self.words.offload != "none"):
                optimizer_step(self.graph, self.words, *self.kept)

    def constants(self) -> list[tuple[str, Size]]:
        """What is alive on the device throughout: weights and buffers (two of rotary frequencies), the optimizer's
        state, and the gradients: under accumulation, and under DDP always, as its buckets."""
        words = self.words
        buffers = ("weights", Size.of(0) if words.family == "gpt2" else HALF_HEAD * (2 * FLOAT))
        if self.engine is not None:
            return [buffers, *self.engine.constants()]
        return [buffers] if words.offload != "none" else [buffers, *self._states()]

    def host_constants(self) -> list[tuple[str, Size]]:
        """What is alive on the host throughout: under FSDP2's `CPUOffloadPolicy` the shards and their states."""
        return self._states() if self.words.fsdp and self.words.offload != "none" else []

    def _states(self) -> list[tuple[str, Size]]:
        """Weights and state: AdamW's two moments and its step of each parameter, or what `state` works out."""
        words = self.words
        weights = elements(self.kept) * words.state_itemsize
        state = weights * 2 + number(self.table) * FLOAT
        if words.sharding == "zero1":
            state = OWNED * (2 * words.state_itemsize) + OWNED_PARAMETERS * FLOAT
        elif words.algorithm != "adamw":
            state = STATE
        out = [("weights", weights + frozen_bytes(words, self.frozen)), ("optimizer state", state)]
        return [*out, ("gradients", weights)] if words.accumulating or words.ddp else out
