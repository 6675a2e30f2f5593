"""DeepSpeed's ZeRO stages, on the model and batch of `states.py`, as they come by default and with other settings."""

from efficient_training.launch.worker import worker
from efficient_training.measure.memory import MemoryTracker
from efficient_training.sharding.engine import BUCKET

from model import arguments, batch, own
from states import prepare, train

SETTINGS = {
    "stage1": ("deepspeed-1", {}),
    "stage2": ("deepspeed-2", {}),
    "stage3": ("deepspeed-3", {}),
    # each rank's gradients are reduced to it alone, in place of an all-reduce whose result is then cut
    "stage2.reduce": ("deepspeed-2", {"zero": {"use_multi_rank_bucket_allreduce": False}}),
    # gathered weights are released after forward, however small the model is
    "stage3.released": ("deepspeed-3", {"zero": {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}}),
    "stage1.bf16": ("deepspeed-1", {"bf16": True}),
    "stage3.bf16": ("deepspeed-3", {"bf16": True}),
}


def run(w, sizes, sequences, steps, names=tuple(SETTINGS)):
    """Train under each of the `names`."""
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], sequences))
    for name in names:
        strategy, settings = SETTINGS[name]
        sharded = prepare(strategy, sizes, w, **settings)
        w.report(of="stages", name=name, **train(sharded, tokens, targets, steps))


def default_buffers(w, sizes, sequences):
    """The buffers in which stage 2 collects gradients, at their default size, beside what the step needs otherwise."""
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], sequences))
    sharded = prepare("deepspeed-2", sizes, w, bucket=BUCKET)
    with MemoryTracker() as tracker:
        train(sharded, tokens, targets, 1)
    w.report(of="stages", name="stage2.default_buffers", peak=tracker.peak.bytes)


if __name__ == "__main__":
    sizes, sequences, steps, _ = arguments()
    with worker() as w:
        run(w, sizes, sequences, steps)
        default_buffers(w, sizes, sequences)
