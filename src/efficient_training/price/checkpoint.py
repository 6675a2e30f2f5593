"""Activation checkpointing in symbols, as torch's `checkpoint(..., use_reentrant=False)` does it.

The first saved tensor that backward asks for runs the segment again, up to the last tensor that it saved the first
time; what was saved is handed out one by one, and each goes when the node that asked for it is done.
"""

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .autograd import Graph, Products, Tensor

Run = Callable[[Tensor], Tensor]


class _Stop(Exception):
    """Everything that was saved has been made again."""


class _Holder:
    """Stands for a saved tensor; empty until the segment is run again."""

    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value: Tensor | None = None


class _Frame:
    """Hooks for the first run of a segment, and what is needed to run it again: its input, and `run`."""

    def __init__(self, graph: Graph, run: Run, hidden: Tensor, replay: Products | None) -> None:
        self.graph, self.run, self.hidden, self.replay = graph, run, hidden, replay
        self.region = graph.region
        self.holders: list[weakref.ref[_Holder]] = []
        self.done = False

    def pack(self, tensor: Tensor) -> _Holder:
        holder = _Holder()
        self.holders.append(weakref.ref(holder))
        return holder

    def unpack(self, holder: _Holder) -> Tensor:
        if not self.done:
            self._run_again()
            self.done = True
        value, holder.value = holder.value, None
        assert value is not None
        return value

    def _run_again(self) -> None:
        graph = self.graph
        region, hooks, products, autocast = graph.region, graph.hooks, graph.products, graph.autocast
        graph.enter(self.region)
        graph.hooks, graph.products, graph.autocast = _Again(self.holders), self.replay, graph.autocasting
        graph.recomputing = True
        with suppress(_Stop):
            self.run(self.hidden)
        graph.casts.clear()
        graph.recomputing = False
        graph.hooks, graph.products, graph.autocast = hooks, products, autocast
        graph.enter(region)


class _Again:
    """Hooks for the second run: fill the holders that are still asked for, and stop after the last."""

    def __init__(self, holders: list["weakref.ref[_Holder]"]) -> None:
        self.holders = holders
        self.count = 0

    def pack(self, tensor: Tensor) -> Tensor:
        holder = self.holders[self.count]()
        self.count += 1
        if holder is not None:
            holder.value = tensor
        if self.count == len(self.holders):
            raise _Stop
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


class _Kept:
    """The results that selective checkpointing keeps: stored in the first run, handed out in the second.

    `half`: of the products of linear layers only every second, from the first on.
    """

    def __init__(self, half: bool) -> None:
        self.results: deque[list[Tensor]] = deque()
        self._half, self._stored, self._replayed = half, 0, 0

    def store(self, make: Callable[[], list[Tensor]], linear: bool) -> list[Tensor]:
        made = make()
        self._stored += linear
        if not (self._half and linear and self._stored % 2 == 0):
            self.results.append([tensor.detach() for tensor in made])
        return made

    def replay(self, make: Callable[[], list[Tensor]], linear: bool) -> list[Tensor]:
        self._replayed += linear
        return make() if self._half and linear and self._replayed % 2 == 0 else self.results.popleft()


def checkpointed(run: Run, hidden: Tensor, policy: str) -> Tensor:
    """`run(hidden)`, of which backward finds only the input, or under a selective `policy` also results of products."""
    graph = hidden.tape
    assert isinstance(graph, Graph)
    kept = _Kept(half=policy.endswith("half")) if policy.startswith("selective") else None
    graph.hooks = _Frame(graph, run, hidden, kept.replay if kept else None)
    graph.products = kept.store if kept else None
    out = run(hidden)
    graph.hooks = graph.products = None
    return out
