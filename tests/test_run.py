"""The training loop: what is the same under every recipe, and what a recipe changes."""

import pytest
import torch
from torch import nn

from efficient_training.chunks import chunk_rows
from efficient_training.losses import IGNORE, shift_labels, token_loss_sum
from efficient_training.models import ModelShape
from efficient_training.plain import build_plain
from efficient_training.recipe import Recipe
from efficient_training.run import Trainer, build_trainer

QWEN = ModelShape("q2", "qwen2", 64, 4, 4, 2, 16, 176, 300, 512, True)
SHAPES = [
    QWEN,
    ModelShape("ll", "llama", 64, 2, 4, 4, 16, 144, 200, 512, False),
    ModelShape("q3", "qwen3", 64, 2, 4, 2, 32, 144, 200, 512, True),
    ModelShape("g", "gpt2", 64, 2, 4, 4, 16, 256, 200, 512, True),
]


def trainer(shape: ModelShape, recipe: Recipe) -> Trainer:
    torch.manual_seed(0)
    return build_trainer(shape, recipe)


def window(shape: ModelShape, micro_batches: int, sequences: int, tokens: int = 24) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(
        torch.randint(0, shape.vocab, (micro_batches * sequences, tokens), generator=generator).split(sequences)
    )


def losses(made: Trainer, ids: list[torch.Tensor], steps: int = 3) -> list[float]:
    return [float(made.step(ids)) for _ in range(steps)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_loss_is_that_of_transformers(shape: ModelShape) -> None:
    ids = window(shape, 1, 3)
    made = trainer(shape, Recipe(3))
    with torch.no_grad():
        theirs = made.model(input_ids=ids[0], labels=ids[0]).loss
    torch.testing.assert_close(made.step(ids), theirs)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("checkpointing", ["full", "selective", "selective-half"])
def test_checkpointing_changes_no_loss(shape: ModelShape, checkpointing: str) -> None:
    ids = window(shape, 1, 2)
    plain = losses(trainer(shape, Recipe(2)), ids)
    assert losses(trainer(shape, Recipe(2, checkpointing=checkpointing)), ids) == plain  # type: ignore[arg-type]
    assert plain[-1] < plain[0]


def test_segments_of_several_blocks_change_no_loss() -> None:
    ids = window(QWEN, 1, 2)
    every = Recipe(2, checkpointing="full", checkpoint_every=3)
    assert losses(trainer(QWEN, every), ids) == losses(trainer(QWEN, Recipe(2)), ids)


def test_the_implementations_of_adamw_agree() -> None:
    ids = window(QWEN, 1, 2)
    loop, foreach, fused = (
        losses(trainer(QWEN, Recipe(2, optimizer=one)), ids) for one in ("loop", "foreach", "fused")
    )
    assert foreach == pytest.approx(loop, rel=1e-6)
    assert fused == pytest.approx(loop, rel=1e-5)


def test_accumulation_equals_one_batch() -> None:
    one, four = trainer(QWEN, Recipe(8)), trainer(QWEN, Recipe(2))
    whole, parts = window(QWEN, 1, 8), window(QWEN, 4, 2)
    assert torch.equal(torch.cat(parts), whole[0])
    assert losses(four, parts) == pytest.approx(losses(one, whole), rel=1e-5)


@pytest.mark.parametrize("form", ["native", "chunked"])
def test_forms_of_the_loss_and_their_gradients_are_equal_in_fp32(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficient_training.chunks.CHUNK_BYTES", 4 * 50 * 7)
    assert chunk_rows(50) == 7
    torch.manual_seed(0)
    hidden, head = torch.randn(3, 11, 8), torch.randn(50, 8)
    labels = shift_labels(torch.randint(0, 50, (3, 11)))
    labels[0, :4] = IGNORE
    made = []
    for one in ("upcast", form):
        x, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        loss = token_loss_sum(x, w, labels, one)  # type: ignore[arg-type]
        (loss / 3).backward()
        made.append((loss.detach(), x.grad, w.grad))
    torch.testing.assert_close(made[1], made[0])


def test_a_step_with_an_overflow_leaves_the_weights_alone() -> None:
    """fp16's scaler: gradients that are not finite are not applied, and the scale falls."""
    made = trainer(QWEN, Recipe(2, precision="fp16-autocast"))
    made.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    ids = window(QWEN, 1, 2)
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    made.step(ids)
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
    assert made.scaler.get_scale() == 2.0**39
    made.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    made.step(ids)
    assert not all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["bf16-autocast", "fp16-autocast", "bf16"])
def test_sixteen_bits_come_near(precision: str) -> None:
    ids = window(QWEN, 1, 2)
    made = trainer(QWEN, Recipe(2, precision=precision))  # type: ignore[arg-type]
    wanted = torch.bfloat16 if precision == "bf16" else torch.float32
    assert {parameter.dtype for parameter in made.model.parameters()} == {wanted}
    assert (made.scaler is not None) == (precision == "fp16-autocast")
    assert losses(made, ids, 1) == pytest.approx(losses(trainer(QWEN, Recipe(2)), ids, 1), rel=0.02)


def test_the_plain_loop_makes_the_same_steps() -> None:
    ids = window(QWEN, 2, 2)
    torch.manual_seed(0)
    plain = build_plain(QWEN, Recipe(2))
    assert losses(plain, ids) == pytest.approx(losses(trainer(QWEN, Recipe(2)), ids), rel=1e-6)


def test_phases_are_named_in_order() -> None:
    import contextlib

    seen: list[str] = []

    def phase(name: str) -> contextlib.AbstractContextManager[None]:
        seen.append(name)
        return contextlib.nullcontext()

    for build in (build_trainer, build_plain):
        seen.clear()
        build(QWEN, Recipe(2)).step(window(QWEN, 2, 2), phase)
        assert seen == ["forward", "backward", "forward", "backward", "optimizer step"]


def test_blocks_are_really_checkpointed() -> None:
    made = trainer(QWEN, Recipe(2, checkpointing="full"))
    calls: list[nn.Module] = []
    for module in made.model.modules():
        if type(module).__name__ == "Qwen2DecoderLayer":
            module.register_forward_pre_hook(lambda module, _: calls.append(module))
    made.step(window(QWEN, 1, 2))
    assert len(calls) == 2 * QWEN.layers
