"""The plain tensors of which others are made: a DTensor's part on this rank, a quantized tensor's codes and scales."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def plain_tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in `values`, nested lists, tuples and dicts; of one made of others, those that hold its bytes.

    Made of others are DTensors, tensors that a collective in flight will fill, and torchao's quantized ones.
    """
    if isinstance(values, torch.Tensor):
        if is_traceable_wrapper_subclass(values):
            for name in values.__tensor_flatten__()[0]:
                yield from plain_tensors(getattr(values, name))
        else:
            yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from plain_tensors(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from plain_tensors(value)


def torn_apart(types: Sequence[type]) -> bool:
    """Whether an operator on tensors of these types becomes several on plain ones, each of which a mode can see.

    A mode that returns `NotImplemented` for it is asked for those: operators on the tensors of this rank, of a
    DTensor; the casts and copies in a product of torchao's tensors in fp8; what reads and writes its quantized states.
    """
    return any(hasattr(one, "__tensor_flatten__") for one in types)
