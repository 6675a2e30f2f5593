"""What is alive when: the storages of a training step in symbols, as a memory tracker would log them.

The step of `efficient_training.price.step` runs on this tape instead of a device. A storage is alive as long as a
Python object refers to it, as in torch, so that the step's code frees what torch would free, where torch would.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from .algebra import ONE, ZERO, Size, total

NO_FORWARD = ("backward", "optimizer step")


class Region(NamedTuple):
    """How often a stretch of code stands for itself (`times`), whether its instants count (`there`: 1 or 0), and
    whether forward code hands something on from it to the next stretch (`carries`: 1 or 0)."""

    times: Size = ONE
    there: Size = ONE
    carries: Size = ONE


WHOLE = Region()


@dataclass(eq=False, slots=True)
class Entry:
    """What the tape knows of one storage.

    Code of a repeated region runs once, for all its repetitions. What it leaves behind counts `times` over: gradients,
    what forward code keeps for backward, and casts in autocast's cache (`lasting`). What it hands on counts once, or
    not at all, in forward code, where there is nobody to hand it on. `exact` bytes count as they are.
    `stream` is the CUDA stream that was current; `on_host`: it is the host's memory.
    """

    bytes: Size
    region: Region
    forward: bool
    wide: bool
    component: str | None = None
    lasting: bool = False
    exact: bool = False
    stream: str = "main"
    kept: bool = False
    alive: bool = True
    on_host: bool = False

    def resolve(self) -> tuple[str, Size]:
        """Component and bytes, by the same rules as `measure.memory.MemoryTracker`, once the step is over."""
        name = self.component or ("loss" if self.wide else "activations" if self.kept else "temporaries")
        if self.exact:
            return name, self.bytes
        if self.lasting or self.kept or self.component == "gradients":
            return name, _product(self.bytes, self.region.times)
        if name == "communication":
            return name, self.bytes  # a unit's buffer is the next one's to find, wherever it stands
        return name, _product(self.bytes, self.region.carries) if self.forward else self.bytes


class Storage:
    """A handle on an entry of the tape: the entry is freed with the last reference to its handle."""

    __slots__ = ("entry", "tape")

    def __init__(self, tape: "Tape", entry: Entry) -> None:
        self.tape, self.entry = tape, entry

    def __del__(self) -> None:
        self.tape.free(self.entry)


@dataclass(frozen=True)
class Instant:
    """A moment at which the peak of a phase may lie: bytes by component, and their sum."""

    phase: str
    components: dict[str, Size]
    bytes: Size


class Tape:
    """Allocations and frees in order, by phase."""

    def __init__(self) -> None:
        self.region = WHOLE
        self.phase = ""
        self.recomputing = False
        self.on_host = False
        self._events: list[tuple[Entry, bool]] = []
        self._marks: list[tuple[int, str, Size]] = []
        self._rising = False
        self._recent: list[Entry] = []

    def allocate(self, size: Size, wide: bool = False) -> Storage:
        """A new storage of `size` bytes; `wide` where the last dimension is the vocabulary."""
        forward = self.recomputing or self.phase not in NO_FORWARD
        if not forward:
            self._end_forward()
        entry = Entry(size, self.region, forward, wide, on_host=self.on_host)
        if forward:
            self._recent.append(entry)
        self._events.append((entry, True))
        self._rising = True
        return Storage(self, entry)

    def free(self, entry: Entry) -> None:
        """Note that nothing refers to the storage any more."""
        self._mark_if_rising()
        entry.alive = False
        self._events.append((entry, False))

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Name what runs inside the block."""
        self.phase = name
        self._marks.append((len(self._events), name, ONE))
        yield
        self._end_forward()
        self._mark_if_rising()
        self.phase = ""

    @contextmanager
    def within(self, region: Region) -> Iterator[None]:
        """Run the block in a region of the region that is open now."""
        outer = self.region
        self.enter(Region(*(_product(one, other) for one, other in zip(outer, region, strict=True))))
        try:
            yield
        finally:
            self.enter(outer)

    @contextmanager
    def in_host_memory(self, there: bool = True) -> Iterator[None]:
        """What is allocated inside the block is the host's, or the device's where not `there`."""
        outer, self.on_host = self.on_host, there
        try:
            yield
        finally:
            self.on_host = outer

    def enter(self, region: Region) -> None:
        """Go on in `region`."""
        if region != self.region:
            self._mark_if_rising()
            self.region = region

    def instants(self, by_stream: bool = False, on_host: bool = False) -> list[Instant]:
        """The moments just before something is freed, and the start of each phase; to be read when all is over.

        `by_stream`: components are CUDA streams, by which memory was asked for. Bytes are those on the device, or the
        host's.
        Between them bytes only rise, so that no peak lies elsewhere. Moments inside a region that stands for several
        are left out, as those of the first and last of its kind are there by themselves.
        """
        live: dict[str, Size] = {}
        resolved: dict[int, tuple[str, Size]] = {}
        instants, done = [], 0
        for length, phase, there in self._marks:
            for entry, born in self._events[done:length]:
                if entry.on_host != on_host:
                    continue
                if id(entry) not in resolved:
                    name, size = entry.resolve()
                    resolved[id(entry)] = (entry.stream, size) if by_stream else (name, size)
                name, size = resolved[id(entry)]
                live[name] = live.get(name, ZERO) + (size if born else -size)
            done = length
            if phase and there:
                components = {name: _product(size, there) for name, size in live.items() if size}
                instants.append(Instant(phase, components, total(components.values())))
        return instants

    def _end_forward(self) -> None:
        for entry in self._recent:
            entry.kept = entry.alive
        self._recent.clear()

    def _mark_if_rising(self) -> None:
        if self._rising:
            self._rising = False
            self._marks.append((len(self._events), self.phase, self.region.there))


def _product(left: Size, right: Size) -> Size:
    return left if right == ONE else left * right
