"""DeepSpeed's ZeRO stages in symbols: partitions, buckets and gathered weights around the same step (DeepSpeed 0.19.8).

What is kept follows the source to the byte; what comes and goes is taken as if it were there throughout its phase, so
that a peak is at most what DeepSpeed's default configuration reaches, and by less than a bucket above it. Functions of
`deepspeed/runtime/zero/`; Ψ elements in all, P of them a rank's (stages 1 and 2 cut the flat weights, stage 3 each
parameter), itemsize 2 under `bf16`:

- stages 1 and 2, `stage_1_and_2.DeepSpeedZeroOptimizer`: the flat weights, P a rank with padding; an fp32 master
  partition, in fp32 too; Adam's moments of it; `setup_buckets`: a bucket of `reduce_bucket_size` elements in backward
  (not two: `overlap_comm` is off by default below stage 3), however small the model; `average_tensor` flattens what is
  reduced into another tensor, at most as large.
- Stage 1 keeps whole gradients to the end of backward (`process_gradients`), stage 2 copies each to the bucket at once
  and keeps its partition (`copy_grads_in_partition`).
- `step`: the gradients' partition flat, then in fp32 too, then that alone; then AdamW's own temporaries.
- Stage 3, `stage3.DeepSpeedZeroOptimizer_Stage3`: bf16 partitions and fp32 masters (in fp32 too), a flat buffer for
  the gradients' and the bucket, all kept; gathered weights, no more than `stage3_max_live_parameters`, and of a model
  smaller than `stage3_max_reuse_distance` all, as none is let go that will soon be used again
  (`PartitionedParameterCoordinator`); reductions take a copy of the bucket (`reduce_scatter_coalesced`); the step goes
  by sub-groups of `sub_group_size` elements.
- Offload of the optimizer: master weights, moments, gradients in fp32 and their bf16 partition are the host's, with
  `parameters` the bf16 weights too; `nvme` puts on disk what the host would have, and takes buffers of the size of the
  largest sub-group, and of the largest parameter, on the host (`swap_tensor/`).
"""

from collections.abc import Mapping
from typing import Any

from .algebra import Size
from .autograd import Graph
from .operators import FLOAT
from .ops import maximum, minimum
from .tape import Storage
from .words import Words

REDUCE_BUCKET, MAX_LIVE, SUB_GROUP = 500_000_000, 1_000_000_000, 1_000_000_000
"""DeepSpeed's defaults: `reduce_bucket_size`, `stage3_max_live_parameters`, `sub_group_size`, in elements."""

PART = Size.named("part")
"""Elements of a rank's partition, padding included."""
PADDED = Size.named("padded")
"""Elements of all partitions."""
BUCKETED = Size.named("bucketed")
"""Elements that a bucket holds at most."""
LIVE = Size.named("live")
"""Elements of gathered weights at most."""
GROUP = Size.named("group")
"""Elements of the largest sub-group of a rank's partition."""
LARGEST = Size.named("largest")
"""Elements of the largest parameter: the embedding, or a projection of the MLP."""
BUFFERS, WEIGHT_BUFFERS = 4, 5
"""Swap buffers on the host: of sub-groups in fp32, and of parameters (`buffer_count`)."""

TOLERANCE_NOTE = (
    "what DeepSpeed keeps is exact; buckets, gathered weights and reductions are taken at their largest throughout "
    "their phase, at DeepSpeed's default sizes: the peak is an upper bound"
)


def deepspeed_sizes(sizes: Mapping[str, Any], parts: Mapping[str, Any], stage: int, ranks: Any) -> dict[str, Any]:
    """`sizes` with the partitions': `parts` has `whole`, all elements, and `each`, the sum of each parameter's part."""
    whole = parts["whole"]
    part = parts["each"] if stage == 3 else (whole + 2 * ranks - 1) // (2 * ranks) * 2
    return {
        **sizes,
        "part": part,
        "padded": part * ranks,
        "bucketed": minimum(whole, REDUCE_BUCKET),
        "live": minimum(whole, MAX_LIVE),
        "group": minimum(part, SUB_GROUP),
        "largest": maximum(sizes["vocabulary"], sizes["ffn"]) * sizes["hidden"],
        "ranks": ranks,
    }


class Engine:
    """What the engine allocates in a step, on the tape."""

    def __init__(self, graph: Graph, words: Words) -> None:
        self.graph, self.words = graph, words
        self.stage = int(words.sharding[-1])
        self.on_device = words.offload == "none"
        self._held: list[Storage] = []

    def constants(self) -> list[tuple[str, Size]]:
        """What is there throughout."""
        words, itemsize = self.words, self.words.itemsize
        out = [("weights", PADDED * itemsize if self.stage < 3 else PART * itemsize)]
        if words.offload.startswith("parameters"):
            out = []
        if self.on_device:
            out += [("master weights", PART * FLOAT), ("optimizer state", PART * (2 * FLOAT) + FLOAT)]
        elif self.stage < 3:
            out.append(("communication", LARGEST * itemsize))
        if self.stage == 3:
            out.append(("communication", Size.of(REDUCE_BUCKET * itemsize)))
            out += [("gradients", PART * itemsize)] if self.on_device else []
        elif self.stage == 2 and self.on_device and words.accumulating:
            out.append(("gradients", PART * itemsize))
        return out

    def begin(self, whole: Size) -> None:
        """Forward begins: stage 3 gathers; under accumulation stage 1 has gradients of `whole` elements."""
        if self.stage == 3:
            self._hold("communication", LIVE * self.words.itemsize)
        elif self.stage == 1 and self.words.accumulating:
            self._hold("gradients", whole * self.words.itemsize)

    def begin_backward(self) -> None:
        """Backward begins: the bucket, and from stage 2 on what is reduced while others are computed."""
        words, itemsize = self.words, self.words.itemsize
        if self.stage < 3:
            self._hold("communication", Size.of(REDUCE_BUCKET * itemsize))
        if self.stage > 1:
            self._hold("communication", BUCKETED * itemsize)
        if self.stage == 2 and self.on_device and not words.accumulating:
            self._hold("gradients", PART * itemsize)

    def finish(self) -> None:
        """The end of backward: stage 1 reduces its gradients, and buffers go."""
        if self.stage == 1:
            self._hold("communication", BUCKETED * self.words.itemsize)
            if self.on_device:
                self._hold("gradients", PART * self.words.itemsize)
        self._held.clear()

    def step(self) -> None:
        """The optimizer's step over the partition, or over its largest sub-group."""
        if not self.on_device:
            return
        words, itemsize = self.words, self.words.itemsize
        size = GROUP if self.stage == 3 else PART
        parts = None if self.stage == 3 else self._storage("gradients", PART * itemsize)
        flat = self._storage("gradients", size * itemsize)
        gradient = flat if itemsize == FLOAT else self._storage("gradients", size * FLOAT)
        del parts, flat
        if words.optimizer != "fused":
            roots = self.graph.allocate(size * (FLOAT if words.optimizer == "foreach" else 2 * FLOAT))
            del roots
        del gradient

    def _hold(self, component: str, size: Size) -> None:
        self._held.append(self._storage(component, size))

    def _storage(self, component: str, size: Size) -> Storage:
        storage = self.graph.allocate(size)
        storage.entry.component, storage.entry.exact = component, True
        return storage


def elsewhere(words: Words) -> dict[str, dict[str, Size]]:
    """Bytes by place and component off the device: the same in every phase."""
    itemsize = words.itemsize
    weights = {"weights": PART * itemsize}
    states = {"master weights": PART * FLOAT, "optimizer state": PART * (2 * FLOAT)}
    gradients = {"gradients": PART * (itemsize + FLOAT)}
    if words.offload == "none":
        return {}
    if words.offload == "optimizer":
        return {"host": states | gradients}
    if words.offload == "parameters":
        return {"host": weights | states | gradients}
    host = {"gradients": PART * itemsize, "temporaries": GROUP * (BUFFERS * FLOAT)}
    disk = states | {"gradients": PART * FLOAT}
    if words.offload == "parameters-nvme":
        host["temporaries"] = host["temporaries"] + LARGEST * (WEIGHT_BUFFERS * itemsize) + GROUP * itemsize
        disk |= weights
    return {"host": host, "disk": disk}
