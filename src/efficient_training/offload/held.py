"""Where DeepSpeed's stage 3 keeps a rank's state: bytes by place and component, from live tensors and from files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..ledger import Component, Place
from ..recipe import Offload
from ..sharding.held import storage_bytes
from .swap import swapped_bytes

Held = dict[str, dict[str, int]]
"""Bytes by place and component."""


def held(engine: Any, offload: Offload, folder: str | Path | None = None) -> Held:
    """Bytes by place and component of a DeepSpeed engine of stage 3, and of its swap files in `folder`.

    Buffers that data only passes through count as temporaries. A tensor's place is its device. Where there is no GPU,
    all are in the host's memory; then a component's place is the one that `offload` gives it.
    """
    counted: set[int] = set()
    places: Held = {"device": {}, "host": {}, "disk": {}}
    for component, tensors in _tensors(engine).items():
        for tensor in tensors:
            size = storage_bytes([tensor], counted)
            entries = places[_place(tensor, component, offload)]
            entries[component] = entries.get(component, 0) + size
    if folder is not None:
        places["disk"] = {name: size for name, size in _files(Path(folder)).items() if size}
    return {place: {name: size for name, size in entries.items() if size} for place, entries in places.items()}


def _tensors(engine: Any) -> dict[Component, list[torch.Tensor]]:
    """Buffers first: a swapped tensor that is in memory just now is a view of one of them."""
    optimizer = engine.optimizer
    inner = optimizer.optimizer
    return {
        "temporaries": list(_buffers(engine)),
        "weights": [part for p in engine.module.parameters() for part in (p, p.ds_tensor)],
        "gradients": [
            optimizer.grad_partitions_flat_buffer,
            *(master.grad for master in optimizer.fp32_partitioned_groups_flat if master.grad is not None),
            *_too_small(optimizer),
        ],
        "optimizer state": [
            value for state in inner.state.values() for value in state.values() if isinstance(value, torch.Tensor)
        ],
        "master weights": list(optimizer.fp32_partitioned_groups_flat),
    }


def _buffers(engine: Any) -> Iterable[torch.Tensor]:
    swapper = getattr(engine.optimizer, "optimizer_swapper", None)
    if swapper is not None:
        yield from swapper.swap_buffer_manager.all_buffers
    swappers = {id(s): s for p in engine.module.parameters() if (s := getattr(p, "nvme_swapper", None)) is not None}
    for swapper in swappers.values():
        yield swapper.buffers
        if swapper.partitioned_swap_buffer is not None:
            yield swapper.partitioned_swap_buffer


def _too_small(optimizer: Any) -> Iterable[torch.Tensor]:
    """fp32 gradients that wait in memory because they are too small to be swapped."""
    swapper = getattr(optimizer, "optimizer_swapper", None)
    for info in swapper.swap_params_info.values() if swapper is not None else ():
        yield from info.unswapped_gradients.values()


def _place(tensor: torch.Tensor, component: Component, offload: Offload) -> Place:
    if torch.cuda.is_available():
        return "device" if tensor.is_cuda else "host"
    if offload == "none" or (component == "weights" and not offload.startswith("parameters")):
        return "device"
    return "host"


def _files(folder: Path) -> dict[Component, int]:
    """Bytes of swap files by component, as DeepSpeed names them."""
    state = folder / "zero_stage_3" / "optimizer"
    gradients = sum(path.stat().st_size for path in state.rglob("*_gradient_*.swp"))
    moments = sum(path.stat().st_size for path in state.rglob("exp_avg*.swp"))
    everything = swapped_bytes(folder)
    weights = sum(path.stat().st_size for path in folder.rglob("*_param.tensor.swp"))
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer state": moments,
        "master weights": everything - weights - gradients - moments,
    }
