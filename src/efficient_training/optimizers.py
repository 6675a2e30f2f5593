"""Optimizers by one word: torch's, bitsandbytes', torchao's, and a few lines of our own.

What each of them keeps, in bytes, stands in `optimizer_state`.
"""

import importlib
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

from .errors import UserError
from .optimizer_state import Word, check_word, muon_takes

Named = Mapping[str, torch.nn.Parameter]


def build(
    word: Word,
    parameters: Named,
    lr: float,
    *,
    weight_decay: float = 0.0,
    full_precision: Collection[str] = (),
    stochastic_rounding: bool = False,
    **options: Any,
) -> Optimizer:
    """The optimizer `word` over named parameters (`dict(model.named_parameters())`); frozen ones are left out.

    - `full_precision`: names of parameters whose state bitsandbytes shall keep in fp32.
    - `stochastic_rounding`: torchao's optimizers round bf16 weights at random instead of to nearest.
    - `options` go to the optimizer, such as `fused=True`. torchao's steps run through `torch.compile`, unless
      `TORCHDYNAMO_DISABLE=1` is in the environment: faster on a GPU, a long wait and no gain for small models on a CPU.

    Raises `UserError` on an unknown word or name, an option that the optimizer does not have, a missing package.
    """
    shapes = {name: p.shape for name, p in parameters.items()}
    check_word(word, full_precision, shapes)
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trained:
        raise UserError(f"optimizer {word}: no parameter is trained; set requires_grad on some")
    if stochastic_rounding and not word.startswith("torchao"):
        raise UserError(f"optimizer {word}: stochastic rounding needs one of torchao's optimizers")
    common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, **options}
    if word == "muon":
        taken = [p for name, p in trained.items() if muon_takes(name, p.shape)]
        others = [p for name, p in trained.items() if not muon_takes(name, p.shape)]
        parts: list[Optimizer] = [torch.optim.Muon(taken, adjust_lr_fn="match_rms_adamw", **common)] if taken else []
        # foreach is what torch takes on a GPU anyway.
        parts += [torch.optim.AdamW(others, lr=lr, weight_decay=weight_decay, foreach=True)] if others else []
        return Together(parts)
    if word.startswith("bnb"):
        bnb = _package("bitsandbytes", word)
        made: Optimizer = getattr(bnb.optim, _BNB[word])(trained.values(), **common)
        for name in trained.keys() & full_precision:
            _keep_32_bits(bnb, trained[name])
        return made
    if word.startswith("torchao"):
        rounded = {"bf16_stochastic_round": stochastic_rounding}
        made = getattr(_package("torchao.optim", word), _TORCHAO[word])(trained.values(), **rounded, **common)
        return made
    kinds: dict[str, Callable[..., Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adafactor": torch.optim.Adafactor,
        "lion": Lion,
    }
    return kinds[word](trained.values(), **common)


_BNB = {"bnb-adamw8bit": "AdamW8bit", "bnb-paged-adamw8bit": "PagedAdamW8bit", "bnb-lion8bit": "Lion8bit"}
_TORCHAO = {"torchao-adamw8bit": "AdamW8bit", "torchao-adamw4bit": "AdamW4bit", "torchao-adamwfp8": "AdamWFp8"}


def eagerly(word: Word) -> AbstractContextManager[Any]:
    """Around steps of the optimizer `word`, so that none of it is compiled: torchao's steps would be."""
    return torch.compiler.set_stance("force_eager") if word.startswith("torchao") else nullcontext()


def _package(name: str, word: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UserError(f"optimizer {word} needs {package}, which is not installed: pip install {package}") from None


def _keep_32_bits(bnb: Any, parameter: torch.nn.Parameter) -> None:
    """bitsandbytes keeps such wishes in one table of the process, by `id`; ours go when the parameter does."""
    manager = bnb.optim.GlobalOptimManager.get_instance()
    manager.override_config(parameter, "optim_bits", 32)
    weakref.finalize(parameter, manager.pid2config.pop, id(parameter), None)


class Lion(Optimizer):
    """Lion: the sign of a mean of gradient and momentum (Chen et al., arXiv 2302.06675, algorithm 2). One state."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; a closure is not supported."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                momentum = self.state[p]["momentum"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(momentum * beta1 + p.grad * (1 - beta1)), alpha=-group["lr"])
                momentum.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Together(Optimizer):
    """Several optimizers, each with parameters of its own, that step as one."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._read()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of each; a closure is not supported."""
        for part in self.parts:
            part.step()
        self._read()

    def state_dict(self) -> dict[str, Any]:
        """The parts' states, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._read()

    def _read(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        for part in self.parts:
            self.state.update(part.state)


class InBackward:
    """Step each parameter as soon as backward has its whole gradient, and free the gradient.

    Each parameter has an optimizer of its own. What needs all gradients at once has no place here: clipping by their
    norm, a gradient scaler, accumulation over micro-batches (every `backward()` is a step).
    """

    def __init__(self, word: Word, parameters: Named, lr: float, **options: Any) -> None:
        self.optimizers = {
            p: build(word, {name: p}, lr, **options) for name, p in parameters.items() if p.requires_grad
        }
        self._handles = [p.register_post_accumulate_grad_hook(self._step) for p in self.optimizers]

    def _step(self, parameter: torch.Tensor) -> None:
        self.optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    def step(self) -> None:
        """Step parameters that have a gradient: after a backward pass, none."""
        for parameter in self.optimizers:
            if parameter.grad is not None:
                self._step(parameter)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: gradients are gone."""

    @property
    def state(self) -> dict[torch.Tensor, Any]:
        """The state of all parameters, as that of an optimizer."""
        return {p: state for optimizer in self.optimizers.values() for p, state in optimizer.state.items()}

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
