"""Hooks that see a parameter's gradient before others do."""

from collections.abc import Callable
from typing import Any

import torch


def hook_first(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Have `hook` called before others that may free the gradient, such as an optimizer that steps in backward."""
    handle = parameter.register_post_accumulate_grad_hook(hook)
    hooks: Any = parameter._post_accumulate_grad_hooks
    others = [key for key in hooks if key != handle.id]
    for key in others:
        hooks[key] = hooks.pop(key)
    return handle
