"""What optimizers need to step on fake tensors: they read numbers, and tables of values, which fakes do not have."""

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from .recipe import Algorithm


class _Ones(TorchDispatchMode):
    """Every number read from a tensor (`item`) is 1: no shape in an optimizer's step depends on it."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return 1.0 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **(kwargs or {}))


@contextmanager
def steps_on_fakes(algorithm: Algorithm) -> Iterator[None]:
    """Inside a fake tensor mode: the block in which an optimizer is made and steps.

    Adafactor reads norms and its count of steps. bitsandbytes' optimizers make maps, value by value, when they are
    made, torchao's with their first state, once for the process.
    """
    if algorithm == "adafactor":
        with _Ones():
            yield
    elif algorithm.startswith("bnb"):
        with _maps_of_bitsandbytes():
            yield
    else:
        if algorithm.startswith("torchao"):
            _make_maps_of_torchao()
        yield


@contextmanager
def _maps_of_bitsandbytes() -> Iterator[None]:
    functional = importlib.import_module("bitsandbytes.functional")
    original: Any = functional.create_dynamic_map
    with unset_fake_temporarily():
        maps = {signed: original(signed) for signed in (True, False)}
    functional.create_dynamic_map = lambda signed: maps[signed].clone()  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
            yield
    finally:
        functional.create_dynamic_map = original  # type: ignore[attr-defined]


def _make_maps_of_torchao() -> None:
    with unset_fake_temporarily():
        for module in ("subclass_4bit", "subclass_8bit"):
            maker = importlib.import_module(f"torchao.optim.{module}")
            maker.get_qmap_signed()
            maker.get_qmap_unsigned()
