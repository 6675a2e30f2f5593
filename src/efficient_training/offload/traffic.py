"""What offloading moves: bytes for each parameter, over each link, in each part of a step.

For 16-bit weights and gradients with fp32 master weights and Adam's fp32 moments, on one rank. The entries of DeepSpeed
and FSDP2 are read from their source (DeepSpeed 0.19.8, PyTorch 2.13), function by function; those named `least` are
what the two papers count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..errors import UserError
from ..recipe import Offload

Link = Literal["up", "down", "read", "write"]
LINKS: tuple[Link, ...] = ("up", "down", "read", "write")
"""Host to GPU, GPU to host, disk to host, host to disk."""

Bytes = Mapping[Link, float]


@dataclass(frozen=True)
class Traffic:
    """Bytes per parameter: in each micro-batch's forward and backward; in the last backward; in the optimizer step."""

    micro_batch: Bytes = field(default_factory=dict)
    last_backward: Bytes = field(default_factory=dict)
    optimizer_step: Bytes = field(default_factory=dict)

    def total(self, link: Link, micro_batches: int = 1) -> float:
        """Bytes per parameter over `link` in one optimizer step of so many micro-batches."""
        once = self.last_backward.get(link, 0) + self.optimizer_step.get(link, 0)
        return micro_batches * self.micro_batch.get(link, 0) + once


# ZeRO-Offload (Ren et al. 2021, section 3): 16-bit gradients down, 16-bit weights up, no less with Adam on the host.
# ZeRO-Infinity (Rajbhandari et al. 2021, section 4): weights up for forward and for backward, gradients down; of the
# optimizer's disk traffic, 16 bytes read and written: master weights, two moments and fp32 gradients.
_LEAST: dict[Offload, Traffic] = {
    "none": Traffic(),
    "optimizer": Traffic(last_backward={"down": 2}, optimizer_step={"up": 2}),
    "parameters": Traffic(micro_batch={"up": 4}, last_backward={"down": 2}),
    "optimizer-nvme": Traffic(last_backward={"down": 2, "write": 4}, optimizer_step={"up": 2, "read": 16, "write": 12}),
    "parameters-nvme": Traffic(
        micro_batch={"up": 4, "read": 4},
        last_backward={"down": 2, "write": 4},
        optimizer_step={"read": 16, "write": 14},
    ),
}

# DeepSpeed's stage 3. partition_grads: each micro-batch's 16-bit gradient goes to a buffer on the host, and back up to
# be added to there; _offload_grad_partition_at_boundary: the sum goes down once more, in fp32.
# _reassign_or_swap_out_partitioned_parameters: new weights are cast on the host, and go up where they live on the GPU.
# Of the disk: PartitionedOptimizerSwapper (fp32 gradients out in backward, in with the state, the state out) and
# AsyncPartitionedParameterSwapper.
_SUM: Bytes = {"up": 2, "down": 2}
_DEEPSPEED: dict[Offload, Traffic] = {
    "none": Traffic(),
    "optimizer": Traffic(_SUM, {"down": 4}, {"up": 2}),
    "parameters": Traffic({"up": 2 + 4, "down": 2}, {"down": 4}),
    "optimizer-nvme": Traffic(_SUM, {"down": 4, "write": 4}, {"up": 2, "read": 16, "write": 12}),
    "parameters-nvme": Traffic({"up": 2 + 4, "down": 2, "read": 4}, {"down": 4, "write": 4}, {"read": 16, "write": 14}),
}

# FSDP2's CPUOffloadPolicy. FSDPParam.all_gather_inputs copies the fp32 shard up and casts there, for forward and again
# for backward; foreach_reduce hands the gradient back in the parameter's dtype, fp32, in each micro-batch.
_FSDP2: dict[Offload, Traffic] = {
    "none": Traffic(),
    "parameters": Traffic(micro_batch={"up": 8, "down": 4}),
}

ENGINES: Mapping[str, Mapping[Offload, Traffic]] = {"least": _LEAST, "deepspeed": _DEEPSPEED, "fsdp2": _FSDP2}


def traffic(offload: Offload, engine: str = "least") -> Traffic:
    """The traffic of one way to offload; raises `UserError` where the engine does not have it."""
    if engine not in ENGINES:
        raise UserError(f"offload: no engine {engine!r}; known: {', '.join(ENGINES)}")
    if offload not in ENGINES[engine]:
        raise UserError(f"offload: {engine} has no {offload!r}; known: {', '.join(ENGINES[engine])}")
    return ENGINES[engine][offload]
