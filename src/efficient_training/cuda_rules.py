"""What CUDA does otherwise than the CPU, for fake CPU tensors that stand in for CUDA ones.

A CPU-only torch has no CUDA tensors, not even fake ones. So a traced CUDA step runs on fake CPU tensors, and inside
`as_on_cuda` takes what differs and matters to memory from CUDA: the attention kernels' own operators
(`efficient_training.attention` asks `on_cuda`), and autocast's list of operators that run in fp32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ContextFn = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

_on_cuda: ContextVar[bool] = ContextVar("on_cuda", default=False)

FP32_ON_CUDA = frozenset({torch.pow, torch.Tensor.pow})
"""Operators of the supported models that autocast runs in fp32 on CUDA, and as they come on the CPU.

From torch's "CUDA Ops that can autocast to float32"; the others on that list that these models use have fp32 inputs
anyway (`rsqrt`, `layer_norm`), or are in `losses`, which chooses its precision itself.
"""


class _AutocastOnCuda(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in FP32_ON_CUDA and torch.is_autocast_enabled("cpu"):
            args = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
        return func(*args, **kwargs)


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Inside the block, fake CPU tensors follow CUDA's rules, so that their shapes and dtypes are CUDA's."""
    token, asked = _on_cuda.set(True), torch.is_autocast_enabled
    # Asked without a device, as peft does, it answers for CUDA.
    torch.is_autocast_enabled = lambda device="cpu": asked(device)
    try:
        with _AutocastOnCuda():
            yield
    finally:
        torch.is_autocast_enabled = asked
        _on_cuda.reset(token)


def recomputing(context_fn: ContextFn) -> ContextFn:
    """`context_fn` of torch's checkpoint, for a recomputation that follows these rules where the first run does.

    Backward turns function modes off, so that what runs in it has to turn them on again.
    """
    if not _on_cuda.get():
        return context_fn

    def both() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        first, again = context_fn()
        return first, _Following(again)

    return both


class _Following(AbstractContextManager[None]):
    # A class, as a generator would let go of `context`, and of what selective checkpointing keeps in it, too early.
    def __init__(self, context: AbstractContextManager[Any]) -> None:
        self._context, self._mode = context, _AutocastOnCuda()

    def __enter__(self) -> None:
        self._mode.__enter__()
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        self._mode.__exit__(*error)


def on_cuda(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is on a GPU, or stands in for one that is."""
    return tensor.is_cuda or _on_cuda.get()  # in this order: a compiler knows the first, and not the second
