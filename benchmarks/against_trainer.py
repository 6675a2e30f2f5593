"""Our training loop against `transformers.Trainer`: the same model, data, batch and precision, each in its own process.

Prints medians and ratios; the ratios are what counts, since both run on the same machine within the same minutes, in
turns.

    python benchmarks/against_trainer.py [--steps N] [--rounds N] [--device cpu|cuda]
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from efficient_training.measure.isolated import run_isolated
from efficient_training.measure.timing import STEP, Duration, PhaseTimer, time_steps
from efficient_training.models import ModelShape
from efficient_training.recipe import Recipe
from efficient_training.run import build_trainer, hugging_face_config

SHAPE = ModelShape("small", "qwen2", 384, 6, 6, 2, 64, 1536, 8192, 2048, tied=True)
WARMUP, SEQUENCE, MICRO_BATCH = 3, 128, 4
CASES = {
    "fp32": Recipe(MICRO_BATCH, optimizer="fused"),
    "bf16 autocast": Recipe(MICRO_BATCH, precision="bf16-autocast", optimizer="fused"),
    "bf16 autocast, checkpointed": Recipe(
        MICRO_BATCH, precision="bf16-autocast", checkpointing="full", optimizer="fused"
    ),
}


def ours(case: str, steps: int, device: str) -> dict[str, Any]:
    """Step times and peak of our loop."""
    torch.manual_seed(0)
    trainer = build_trainer(SHAPE, CASES[case], device)
    ids = torch.randint(0, SHAPE.vocab, (MICRO_BATCH, SEQUENCE), device=device)

    def step(timer: PhaseTimer) -> object:
        return trainer.step([ids], timer.phase)

    return result(time_steps(step, device, steps=steps, warmup=WARMUP)[STEP].samples_s, device)


def theirs(case: str, steps: int, device: str) -> dict[str, Any]:
    """Step times and peak of `transformers.Trainer`."""
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    recipe = CASES[case]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(hugging_face_config(SHAPE, "sdpa"), dtype=torch.float32)
    ids = torch.randint(0, SHAPE.vocab, (MICRO_BATCH * (WARMUP + steps), SEQUENCE))
    data = [{"input_ids": row, "labels": row} for row in ids]
    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.begin = self.now()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(self.now() - self.begin)

        def now(self) -> float:
            if device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=MICRO_BATCH, max_steps=WARMUP + steps, optim="adamw_torch_fused",
            bf16=recipe.precision == "bf16-autocast", gradient_checkpointing=recipe.checkpointing == "full",
            use_cpu=device == "cpu", report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            max_grad_norm=0.0, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data, callbacks=[Clock()]).train()
    return result(seconds[WARMUP:], device)


def result(seconds: Any, device: str) -> dict[str, Any]:
    """Times in seconds, and the peak: allocated on CUDA, resident on a CPU."""
    if device == "cuda":
        return {"seconds": list(seconds), "peak": torch.cuda.max_memory_allocated()}
    return {"seconds": list(seconds), "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def pooled(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The steps of all turns, and the highest peak."""
    return {"seconds": [one for turn in turns for one in turn["seconds"]], "peak": max(turn["peak"] for turn in turns)}


def main() -> None:
    """Run every case with both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each, every one a process of its own")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{'case':30} {'ours, ms':>10} {'Trainer, ms':>12} {'time ratio':>11} {'peak ratio':>11}")
    rows = {}
    for case in CASES:
        given = {"case": case, "steps": arguments.steps, "device": arguments.device}
        here = {"PYTHONPATH": str(Path(__file__).resolve().parent)}
        turns: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
        for _ in range(arguments.rounds):
            for name, made in turns.items():
                made.append(run_isolated(f"against_trainer:{name}", given, environment=here))
        mine, other = (pooled(made) for made in turns.values())
        times = [Duration(tuple(made["seconds"])).median_s for made in (mine, other)]
        rows[case] = {"ours": mine, "theirs": other}
        print(
            f"{case:30} {1e3 * times[0]:10.1f} {1e3 * times[1]:12.1f} {times[0] / times[1]:11.2f} "
            f"{mine['peak'] / other['peak']:11.2f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
