"""A model of PyTorch's caching allocator for CUDA, to see without a GPU why reserved memory exceeds allocated memory.

It follows `c10/cuda/CUDACachingAllocator.cpp` in its default configuration, for one stream: requests are rounded to
512 bytes; up to 1 MiB they are cut from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, and larger ones get a
segment of their own, rounded to 2 MiB; the smallest free block that is large enough is taken, and split where the
rest is worth keeping; freed neighbors in a segment merge; where the device has no more, segments that are free as a
whole go back to it, and the request is tried again.
"""

from dataclasses import dataclass, field

MINIMUM, SMALL, SMALL_SEGMENT = 512, 2**20, 2 * 2**20
LARGE, LARGE_SEGMENT, LARGE_ROUND = 10 * 2**20, 20 * 2**20, 2 * 2**20


class AllocationFailed(MemoryError):
    """The device has no room for a segment, and no free block is large enough, whatever they hold together."""


@dataclass(eq=False)
class Block:
    """A part of a segment: `size` bytes, in use or free, with its neighbors in the segment."""

    size: int
    small: bool
    segment: int
    used: bool = False
    requested: int = 0
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def whole(self) -> bool:
        """Whether this block is its segment."""
        return self.before is None and self.after is None


@dataclass
class CachingAllocator:
    """An allocator over `capacity` bytes of device memory. All sizes are in bytes."""

    capacity: int
    reserved: int = 0
    allocated: int = 0
    retries: int = 0
    _free: list[Block] = field(default_factory=list)
    _segments: int = 0

    def allocate(self, size: int) -> Block:
        """A block for `size` bytes, to be handed to `free`; raises `AllocationFailed`."""
        rounded = max(MINIMUM, -(-size // MINIMUM) * MINIMUM)
        small = rounded <= SMALL
        fitting = [block for block in self._free if block.small == small and block.size >= rounded]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            self._free.remove(block)
        else:
            block = self._new_segment(rounded, small)
        rest = block.size - rounded
        if rest >= MINIMUM if small else rest > SMALL:
            after = Block(rest, small, block.segment, before=block, after=block.after)
            if block.after is not None:
                block.after.before = after
            block.after, block.size = after, rounded
            self._free.append(after)
        block.used, block.requested = True, size
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Give `block` back to the cache, joined with its free neighbors; nothing goes back to the device."""
        if not block.used:
            raise ValueError("this block is free already")
        block.used = False
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other is not None and not other.used:
                self._free.remove(other)
                block.size += other.size
                if other is block.before:
                    block.before = other.before
                    if other.before is not None:
                        other.before.after = block
                else:
                    block.after = other.after
                    if other.after is not None:
                        other.after.before = block
        self._free.append(block)

    def empty_cache(self) -> None:
        """Give segments that are free as a whole back to the device."""
        for block in [one for one in self._free if one.whole]:
            self._free.remove(block)
            self.reserved -= block.size

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block in the cache."""
        return max((block.size for block in self._free), default=0)

    def _new_segment(self, rounded: int, small: bool) -> Block:
        size = -(-rounded // LARGE_ROUND) * LARGE_ROUND
        if rounded < LARGE:
            size = SMALL_SEGMENT if small else LARGE_SEGMENT
        if self.reserved + size > self.capacity:
            self.retries += 1
            self.empty_cache()
        if self.reserved + size > self.capacity:
            raise AllocationFailed(
                f"tried to allocate {rounded} bytes: {self.allocated} are allocated, {self.reserved} reserved, "
                f"{self.capacity - self.reserved} left on the device; the largest free block has {self.largest_free}"
            )
        self.reserved += size
        self._segments += 1
        return Block(size, small, self._segments)
