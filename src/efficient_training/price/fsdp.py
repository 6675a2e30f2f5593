"""FSDP2 in symbols: what it gathers and reduces, when, and how long each buffer lives.

From `torch/distributed/fsdp/_fully_shard/` (torch 2.13); functions are named at each step. All lifetimes there follow
from references that Python holds, and none from a stream, so that what is allocated on CUDA is what this order says:

- `foreach_all_gather`: the shards cast to the dtype of use, one buffer (only under mixed precision, until it returns),
  and an output buffer of the whole unit; under CPU offload the shards are copied to the device first
  (`FSDPParam.all_gather_inputs`: one by one, each cast before the next, which is never more than that output is
  beside the casts), and reduced gradients back, parameter by parameter, so that neither stays;
- `foreach_all_gather_copy_out`: the gathered weights, beside that output. In forward the output lives until the next
  unit's copy-out is done (`FSDPParamGroup.wait_for_unshard`: `AllGatherState` is dropped before the copy, but a local
  variable holds it until the function returns), in backward it is freed at once;
- `FSDPParamGroup._backward_prefetch`: before a unit's backward the next one's output buffer is there already;
- `FSDPParamGroup.post_backward`, `foreach_reduce`: an input buffer of the whole unit in the dtype of the reduction,
  which lives until the next unit's (`ReduceScatterState`), beside the unit's own gradients while it is filled; then the
  reduced shard. The last gradient lives until the function returns: its loop variable holds it;
- the root unit is by default not resharded between forward and backward (`FSDPState._lazy_init`), and reduced after
  all others (`_root_post_backward_final_callback`), since token ids have no gradient that could tell when it is done.
"""

from .algebra import Size
from .autograd import Gradients, Graph, Parameter, Tensor
from .operators import FLOAT, made_by, record, view
from .sizes import RANKS
from .tape import Storage
from .words import Words

GATHERING, REDUCING = "all-gather copy-in", "reduce-scatter"
"""FSDP2's streams that ask for memory (`FSDPCommContext`): for gathered units, and for reduced shards."""


class Runtime:
    """What all units share: the order of forward, and the buffers that outlive the unit that made them."""

    def __init__(self, graph: Graph, words: Words) -> None:
        self.graph, self.words = graph, words
        self.order: list[Unit] = []
        self.gathering: list[Storage] = []
        self.reducing: Storage | None = None
        self.all_reducing: list[Storage] = []
        self.shards: list[Storage] = []

    def buffer(self, size: Size, stream: str = "main") -> Storage:
        """A storage that counts as communication."""
        storage = self.graph.allocate(size)
        storage.entry.component, storage.entry.stream = "communication", stream
        return storage

    def finish(self, root: "Unit") -> None:
        """The end of backward: the root unit's gradients, then all buffers."""
        root.post_backward()
        self.reducing = None
        self.all_reducing.clear()


class Unit:
    """Parameters that are gathered and reduced together: `shard` elements a rank, padding included.

    `parts`: elements of a rank's part of each parameter; of alike blocks, those of one.
    `found`: elements of a rank's part of what the next unit finds being reduced; a unit in symbols may stand in for
    another there.
    """

    def __init__(
        self,
        runtime: Runtime,
        parameters: list[Parameter],
        parts: list[Size],
        shard: Size,
        found: Size | None = None,
    ) -> None:
        self.runtime, self.parameters, self.parts, self.shard = runtime, parameters, parts, shard
        self.found = shard if found is None else found
        self.pending: Storage | None = None
        self.gathered: Storage | None = None

    @property
    def gathered_bytes(self) -> Size:
        """Bytes of the unit as it is gathered."""
        return self.shard * RANKS * self.runtime.words.itemsize

    def unshard(self) -> None:
        """Start gathering, unless that is done."""
        if self.gathered is not None or self.pending is not None:
            return
        words, runtime = self.runtime.words, self.runtime
        copied = words.itemsize != words.state_itemsize or words.offload != "none"
        cast = runtime.buffer(self.shard * words.itemsize, GATHERING) if copied else None
        self.pending = runtime.buffer(self.gathered_bytes, GATHERING)
        del cast

    def wait(self, forward: bool) -> None:
        """Copy out what was gathered."""
        if self.pending is None:
            return
        runtime, pending, self.pending = self.runtime, self.pending, None
        self.gathered = runtime.buffer(self.gathered_bytes)
        if forward:
            runtime.gathering[:] = [pending]

    def forward(self, hidden: Tensor) -> Tensor:
        """What happens to the input of the unit's module: it is told when backward comes back to it."""
        self.begin()
        node = record([hidden], self._post_backward_hook)
        return made_by(node, view(hidden, heads_first=hidden.heads_first))

    def begin(self) -> None:
        """Gather for forward."""
        self.unshard()
        self.wait(forward=True)

    def end(self, output: Tensor, reshard: bool) -> Tensor:
        """What happens to the output of the unit's module."""
        if reshard:
            self.gathered = None
        self.runtime.order.append(self)
        assert output.node is not None
        output.node.before = self._pre_backward
        return output

    def _pre_backward(self) -> None:
        self.unshard()
        self.wait(forward=False)
        position = self.runtime.order.index(self)
        if position:
            self.runtime.order[position - 1].unshard()

    def _post_backward_hook(self, saved: list[Tensor], gradients: Gradients) -> Gradients:
        self.post_backward()
        return [gradients.pop()]

    def post_backward(self) -> None:
        """Let go of the gathered weights, and reduce the gradients into shards."""
        runtime, words = self.runtime, self.runtime.words
        gradients = [parameter.gradient for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.gradient = None
        self.gathered = None
        runtime.reducing = None
        itemsize = FLOAT if words.precision == "bf16-mixed" else words.itemsize
        whole = runtime.buffer(self.found * RANKS * itemsize)
        last = gradients[-1]
        gradients.clear()
        out = runtime.graph.allocate(self.shard * itemsize)
        out.entry.stream = REDUCING
        if words.offload != "none":
            self._to_host()
        if not words.accumulating and words.offload == "none":
            out.entry.component, out.entry.lasting = "gradients", True
            runtime.shards.append(out)
        else:
            out.entry.component, out.entry.lasting = "communication", words.sharding == "hsdp"
            if words.sharding == "hsdp":
                # `AllReduceState` keeps it until `FSDPParamGroup.finalize_backward`.
                runtime.all_reducing.append(out)
        runtime.reducing = whole
        del last, out

    def _to_host(self) -> None:
        """The reduced gradients' way to the host, parameter by parameter: to stay there, or to be added to others."""
        graph, words = self.runtime.graph, self.runtime.words
        with graph.in_host_memory():
            if words.accumulating:
                for size in self.parts:
                    copy = graph.allocate(size * words.state_itemsize)
                    del copy
            else:
                kept = graph.allocate(self.shard * words.state_itemsize)
                kept.entry.component, kept.entry.lasting = "gradients", True
                self.runtime.shards.append(kept)
