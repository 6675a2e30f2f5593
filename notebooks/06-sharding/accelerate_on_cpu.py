"""Let accelerate run all of its strategies on CPU processes. Not needed, and not used, where there are GPUs.

accelerate 1.15 enters FSDP and DeepSpeed only from a distributed type that belongs to accelerators. Asked for either on
CPUs it does something else without a word: launched by `accelerate launch`, each process trains alone; under torchrun
with ACCELERATE_USE_CPU=1 it is plain DDP. Nothing in FSDP2 or DeepSpeed itself needs a GPU, so it is enough to answer
accelerate's question for the backend with gloo, and to keep it from asking CUDA for a device.
"""

import os
from typing import Any

import torch


def allow_cpu(device: torch.device) -> None:
    """Call before `Accelerator()`. Does nothing where the device is a GPU."""
    if device.type == "cuda":
        return
    os.environ["ACCELERATE_USE_CPU"] = "false"  # "true" would mean plain DDP, whatever was asked for
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"  # the device, instead of cuda:<local rank>
    os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"  # DDP without device_ids, which it refuses for CPU models
    os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed's own choice of device

    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    def prepare_backend(self: Any, *args: Any, **kwargs: Any) -> tuple[str, DistributedType]:
        return "gloo", DistributedType.MULTI_GPU  # from which accelerate goes on to FSDP or DeepSpeed as asked

    PartialState._prepare_backend = prepare_backend
