"""One training step, and the model and optimizer for it: the loop that is run, and traced, everywhere in the book."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from .attention import implementation
from .blocks import apply_checkpointing
from .fp8_layers import convert
from .host import SavedOnHost
from .losses import shift_labels, token_loss_sum
from .models import ModelShape
from .optimizers import InBackward, build, eagerly
from .packing import window as packed
from .packing.attention import IMPLEMENTATION as PACKED
from .packing.window import Batch
from .recipe import Recipe, accumulation_steps
from .workload import Workload

AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
PhaseContext = Callable[[str], AbstractContextManager[None]]


def no_phase(name: str) -> AbstractContextManager[None]:
    """The phases of a step that nobody watches."""
    return nullcontext()


def hugging_face_config(shape: ModelShape, attention: str) -> Any:
    """The transformers configuration of `shape`, with the given attention implementation and no cache."""
    from transformers import AutoConfig

    common: dict[str, Any] = {"vocab_size": shape.vocab, "tie_word_embeddings": shape.tied, "use_cache": False}
    common |= {"attn_implementation": attention, "bos_token_id": None, "eos_token_id": None}
    if shape.family == "gpt2":
        return AutoConfig.for_model(
            "gpt2", n_embd=shape.hidden, n_layer=shape.layers, n_head=shape.heads, n_inner=shape.ffn,
            n_positions=shape.positions, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common,
        )  # fmt: skip
    if shape.family != "qwen2":
        common["attention_bias"] = shape.attention_bias
    if shape.family == "llama":
        common["mlp_bias"] = shape.mlp_bias
    return AutoConfig.for_model(
        shape.family, hidden_size=shape.hidden, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.ffn,
        max_position_embeddings=shape.positions, **common,
    )  # fmt: skip


def build_model(shape: ModelShape, recipe: Recipe, device: str | torch.device = "cpu") -> nn.Module:
    """A transformers model of `shape` with random weights, in the recipe's precision and with its checkpointing.

    Memory and time do not depend on the values of the weights. With `compile`, all but head and loss is compiled when
    it first runs.
    """
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    config = hugging_face_config(shape, PACKED if recipe.packing == "varlen" else implementation(recipe.attention))
    if recipe.adapter != "none":
        from .adapted import build_adapted

        model: Any = build_adapted(shape, config, recipe, device)
    else:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    convert(model, shape, recipe, device)
    apply_checkpointing(model, recipe)
    if recipe.compile:
        model.base_model.compile()
    model.train()
    return model  # type: ignore[no-any-return]


def adamw_flags(recipe: Recipe) -> dict[str, Any]:
    """The arguments by which torch's AdamW runs in the recipe's implementation."""
    return {"fused": True} if recipe.optimizer == "fused" else {"foreach": recipe.optimizer == "foreach"}


def build_optimizer(model: nn.Module, recipe: Recipe, lr: float = 1e-4) -> torch.optim.Optimizer:
    """The recipe's optimizer over the model's trainable parameters, with the weight decay of torch's AdamW.

    Raises `UserError` where its package is missing.
    """
    options = {"weight_decay": 0.01, **(adamw_flags(recipe) if recipe.algorithm == "adamw" else {})}
    named = dict(model.named_parameters())
    if recipe.step_in_backward:
        return cast(torch.optim.Optimizer, InBackward(recipe.algorithm, named, lr, **options))
    return build(recipe.algorithm, named, lr, **options)


@dataclass
class Trainer:
    """A model, its optimizer and, under fp16, its gradient scaler: all that a step needs.

    `saving` is entered around each forward pass, for what that saves.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    scaler: torch.amp.GradScaler | None = field(default=None)
    saving: AbstractContextManager[Any] = field(default_factory=nullcontext)

    def step(self, window: Sequence[Batch], phase: PhaseContext = no_phase) -> torch.Tensor:
        """One optimizer step over a window of micro-batches of token ids (sequences, tokens); their mean loss a token.

        With packing, micro-batches are what `packing.batch.packed_batch` returns, all on the model's device.
        The summed loss of each micro-batch is divided by the predicted tokens of the whole window, so that the gradient
        is that of the window as one batch. `phase` gets the names `forward`, `backward` and `optimizer step`.
        Raises `UserError` where a micro-batch is packed and the recipe is not, or the other way round.
        """
        targets = [shift_labels(packed.labels_of(packed.checked(one, self.recipe.packing))) for one in window]
        tokens = self._tokens(window)
        total: torch.Tensor | None = None
        for number, (batch, target) in enumerate(zip(window, targets, strict=True), 1):
            with self._reducing(last=number == len(window)):
                with phase("forward"), self.saving:
                    loss = self._loss(batch, target) / tokens
                with phase("backward"), self._eagerly():
                    (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
            del loss
        with phase("optimizer step"), self._updating():
            self.update()
        self.optimizer.zero_grad(set_to_none=True)
        assert total is not None
        return total

    def update(self) -> None:
        """Step the optimizer; under a gradient scaler, unless it finds an overflow."""
        with self._eagerly():
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def _eagerly(self) -> AbstractContextManager[Any]:
        """Around the optimizer's step: torchao's, written to be compiled, is with the recipe's `compile` only."""
        return nullcontext() if self.recipe.compile else eagerly(self.recipe.algorithm)

    @property
    def states(self) -> torch.optim.Optimizer:
        """The optimizer that holds this process's optimizer state."""
        return self.optimizer

    def buckets(self) -> list[torch.Tensor]:
        """Tensors in which gradients stand that outlive the step; none but under DDP."""
        return []

    def watched(self) -> list[nn.Parameter]:
        """Parameters beside the model's own that get gradients; gathered ones under FSDP."""
        return []

    def _updating(self) -> AbstractContextManager[None]:
        """Around the optimizer's step."""
        return nullcontext()

    def on_host(self) -> Iterable[torch.Tensor]:
        """Tensors in host memory that outlive a micro-batch; none but under FSDP2's offload."""
        return []

    def _tokens(self, window: Sequence[Batch]) -> float:
        """By what the summed loss is divided: the predicted tokens of the window."""
        return sum(packed.targets_in(batch) for batch in window)

    def _reducing(self, last: bool) -> AbstractContextManager[None]:
        """Around the forward and backward pass of one micro-batch, the last or not."""
        return nullcontext()

    def _loss(self, batch: Batch, target: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, batch, target, self.recipe)


def loss_of(model: nn.Module, batch: Batch, target: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """The loss of a causal language model, summed over tokens; the shifted labels are (sequences, tokens)."""
    dtype, whole = AUTOCAST.get(recipe.precision), cast(Any, model)
    with torch.autocast(target.device.type, dtype, enabled=dtype is not None):
        hidden = whole.base_model(**packed.inputs_of(batch, recipe.packing)).last_hidden_state
        head = whole.get_output_embeddings().weight
        return token_loss_sum(hidden, head, target, recipe.loss)


def build_trainer(shape: ModelShape, recipe: Recipe, device: str | torch.device = "cpu") -> Trainer:
    """Model, optimizer and scaler for `recipe`; with several ranks, this process's part of them.

    Raises `UserError` where there is no process group of the recipe's ranks.
    """
    model = build_model(shape, recipe, device)
    scaler = None
    if recipe.precision == "fp16-autocast":
        scaler = torch.amp.GradScaler(torch.device(device).type)
    saving = SavedOnHost(model.parameters()) if recipe.offload_activations else nullcontext()
    if recipe.sharding == "none":
        return Trainer(model, build_optimizer(model, recipe), recipe, scaler, saving)
    from .ranks import build_for_ranks

    return build_for_ranks(model, recipe, scaler, saving)


def random_batch(workload: Workload, recipe: Recipe) -> Batch:
    """Random token ids (sequences, tokens) of one micro-batch; with packing in documents, the same for all of them."""
    ids = torch.randint(0, workload.model.vocab, (recipe.micro_batch, workload.sequence_length))
    return ids if recipe.packing == "none" else packed.cut_rows(ids, packed.random_documents(*ids.shape))


def random_window(workload: Workload, recipe: Recipe, device: str | torch.device = "cpu") -> list[Batch]:
    """Random micro-batches for one step of one rank, drawn on the CPU.

    Raises `UserError` where the micro-batches of all ranks do not divide the step.
    """
    made = [random_batch(workload, recipe) for _ in range(accumulation_steps(workload, recipe))]
    return [packed.moved(one, device) for one in made]
