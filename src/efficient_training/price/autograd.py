"""Tensors and a backward pass in symbols: who refers to which storage, and in which order torch's engine works.

The order is that of `torch/csrc/autograd/engine.cpp`: of the nodes whose gradients have all arrived, the one made last
runs next, and parameters take their gradients at once. Gradients that meet are added out of place.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .algebra import Size
from .tape import WHOLE, Region, Storage, Tape

Gradients = list["Tensor | None"]
Products = Callable[[Callable[[], list["Tensor"]], bool], list["Tensor"]]
Backward = Callable[[list["Tensor"], Gradients], Gradients]
FIRST = 1 << 62


class Hooks(Protocol):
    """What happens to tensors that are saved for backward, as `torch.autograd.graph.saved_tensors_hooks` does."""

    def pack(self, tensor: "Tensor") -> Any:
        """What to keep instead of `tensor`."""

    def unpack(self, packed: Any) -> "Tensor":
        """The tensor for which `packed` was kept."""


class Tensor:
    """Elements (`numel`) of `itemsize` bytes in a storage, and the node that made it; parameters have no storage here.

    `heads_first`: its memory is in the order batch, heads, tokens, head_dim, so that to look at it as tokens by width
    copies it, as it copies one in that order to look at its heads as a batch of matrices.
    """

    __slots__ = ("heads_first", "itemsize", "node", "numel", "output", "storage", "tape")

    def __init__(
        self, tape: Tape, storage: Storage | None, numel: Size, itemsize: int, heads_first: bool = False
    ) -> None:
        self.tape, self.storage, self.numel, self.itemsize = tape, storage, numel, itemsize
        self.heads_first = heads_first
        self.node: Node | None = None
        self.output = 0

    @property
    def bytes(self) -> Size:
        """Bytes of its elements."""
        return self.numel * self.itemsize

    def detach(self) -> "Tensor":
        """The same storage, and no history."""
        return Tensor(self.tape, self.storage, self.numel, self.itemsize, self.heads_first)


class Edge(NamedTuple):
    """Where a gradient goes, and the size and dtype that it must have there."""

    node: "Node"
    output: int
    numel: Size
    itemsize: int


class Node:
    """One operator of the graph: `run` turns saved tensors and the gradients of outputs into gradients of inputs.

    `before` is a hook on its output, called when the gradient of that has come.
    """

    __slots__ = ("before", "edges", "order", "region", "run", "saved")

    def __init__(self, tape: "Graph", inputs: Sequence[Tensor | None], run: Backward, saved: Sequence[Tensor]) -> None:
        self.order = tape.next_order()
        self.region: Region = tape.region
        self.edges = [_edge(tensor) for tensor in inputs]
        self.before: Callable[[], None] | None = None
        self.run = run
        self.saved: list[tuple[Hooks | None, Any]] = []
        for tensor in saved:
            self.save(tape, tensor)

    def save(self, tape: "Graph", tensor: Tensor) -> None:
        """Keep `tensor` for backward, in the hands of the hooks that are in force."""
        hooks, value = tape.hooks, tensor.detach()
        self.saved.append((hooks, hooks.pack(value) if hooks else value))


class Parameter(Tensor):
    """A weight: a leaf, whose gradient is taken from the first backward pass and added to in the next.

    A `frozen` one needs no gradient, and has no node.
    `bucketed`: DDP copies the gradient to a bucket of its own as soon as it is there. `step`: the parameter is updated
    then, and the gradient let go of.
    """

    __slots__ = ("bucketed", "gradient", "has_gradient", "step")

    def __init__(
        self,
        tape: "Graph",
        numel: Size,
        itemsize: int,
        has_gradient: bool = False,
        bucketed: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__(tape, None, numel, itemsize)
        self.gradient: Tensor | None = None
        self.step: Callable[[], None] | None = None
        self.has_gradient, self.bucketed = has_gradient, bucketed
        if not frozen:
            self.node = Node(tape, (), self._accumulate, ())
            self.node.order = FIRST

    def _accumulate(self, saved: list[Tensor], gradients: Gradients) -> Gradients:
        new = gradients[0]
        if self.gradient is None and not self.has_gradient and new is not None and new.storage is not None:
            new.storage.entry.component = "gradients"
            self.gradient = new
        if self.step is not None:
            self.step()
        if self.bucketed or self.step is not None:
            self.gradient = None
        return []


class Graph(Tape):
    """A tape with what the making of a graph needs: an order of nodes, hooks on saved tensors, autocast's cache."""

    def __init__(self, autocasting: bool) -> None:
        super().__init__()
        self.hooks: Hooks | None = None
        self.casts: dict[Parameter, Tensor] = {}
        self.autocasting = autocasting
        self.autocast = False
        self.products: Products | None = None
        self._order = 0

    def next_order(self) -> int:
        """The number of the next node."""
        self._order += 1
        return self._order

    def new(self, numel: Size, itemsize: int, wide: bool = False, heads_first: bool = False) -> Tensor:
        """A tensor with a storage of its own."""
        return Tensor(self, self.allocate(numel * itemsize, wide), numel, itemsize, heads_first)

    def outside(self, numel: Size, itemsize: int) -> Tensor:
        """A tensor of the caller's, whose bytes do not count here; what is copied of it does."""
        return Tensor(self, self.allocate(Size.of(0)), numel, itemsize)

    def keep(self, make: Callable[[], list[Tensor]], linear: bool = False) -> list[Tensor]:
        """The results of a matrix product (`linear`: of a linear layer) or of attention, which selective checkpointing
        keeps (`Products`)."""
        return self.products(make, linear) if self.products is not None else make()

    def backward(self, root: Tensor, after: Callable[[], None] | None = None) -> None:
        """Run backward from the scalar `root`, then `after`; the root's own gradient is alive throughout, as the caller
        holds it."""
        seed = self.new(root.numel, root.itemsize)
        node = root.node
        assert node is not None
        root.node = None
        waiting = _count_dependencies(node)
        arrived: dict[Node, dict[int, Tensor]] = {node: {0: seed.detach()}}
        ready = [(-node.order, 0, node)]
        while ready:
            _, _, node = heapq.heappop(ready)
            self.enter(node.region)
            self._run(node, arrived, waiting, ready)
        self.enter(WHOLE)
        if after is not None:
            after()

    def _run(
        self,
        node: Node,
        arrived: dict[Node, dict[int, Tensor]],
        waiting: dict[Node, int],
        ready: list[tuple[int, int, Node]],
    ) -> None:
        inputs = arrived.pop(node)
        if node.before is not None:
            node.before()
        gradients: Gradients = [inputs.get(output) for output in range(max(inputs) + 1)]
        inputs.clear()
        saved = [hooks.unpack(value) if hooks else value for hooks, value in node.saved]
        outputs = node.run(saved, gradients)
        saved.clear()
        for number, edge in enumerate(node.edges):
            gradient = outputs[number]
            if edge is not None and gradient is not None:
                outputs[number] = _validate(gradient, edge)
            gradient = None
        node.saved = []
        gradients.clear()
        for number, edge in enumerate(node.edges):
            if edge is None:
                continue
            gradient, outputs[number] = outputs[number], None
            if gradient is not None:
                slots = arrived.setdefault(edge.node, {})
                before = slots.get(edge.output)
                if before is None:
                    slots[edge.output] = gradient
                else:
                    slots[edge.output] = _sum(before, gradient)
            gradient = before = None
            waiting[edge.node] -= 1
            if not waiting[edge.node]:
                heapq.heappush(ready, (-edge.node.order, self.next_order(), edge.node))


def _edge(tensor: Tensor | None) -> Edge | None:
    if tensor is None or tensor.node is None:
        return None
    return Edge(tensor.node, tensor.output, tensor.numel, tensor.itemsize)


def _sum(left: Tensor, right: Tensor) -> Tensor:
    wide = left.storage is not None and left.storage.entry.wide
    storage = left.tape.allocate(left.bytes, wide)
    return Tensor(left.tape, storage, left.numel, left.itemsize, left.heads_first or right.heads_first)


def _validate(gradient: Tensor, edge: Edge) -> Tensor:
    """Summed over what was broadcast, then cast, as the engine's `validate_outputs` does."""
    tape = gradient.tape
    if gradient.numel != edge.numel:
        gradient = Tensor(tape, tape.allocate(edge.numel * gradient.itemsize), edge.numel, gradient.itemsize)
    if gradient.itemsize != edge.itemsize:
        wide = gradient.storage is not None and gradient.storage.entry.wide
        storage = tape.allocate(edge.numel * edge.itemsize, wide)
        gradient = Tensor(tape, storage, edge.numel, edge.itemsize, gradient.heads_first)
    return gradient


def _count_dependencies(root: Node) -> dict[Node, int]:
    counts: dict[Node, int] = {}
    seen, stack = {root}, [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None:
                counts[edge.node] = counts.get(edge.node, 0) + 1
                if edge.node not in seen:
                    seen.add(edge.node)
                    stack.append(edge.node)
    return counts
