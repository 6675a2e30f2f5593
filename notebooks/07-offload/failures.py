"""What goes wrong with swapping to disk: each failure caught, and reported as the user would read it."""

import argparse
import contextlib
import os
import resource

from efficient_training import native
from efficient_training.errors import UserError
from efficient_training.launch.worker import worker
from efficient_training.offload.swap import prepare_folder, swapped_bytes, watch

import deepspeed
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.utils import safe_get_full_fp32_param
from places import arguments, start, train


def no_libaio(given):
    """DeepSpeed asks the compiler whether libaio is there; one that always fails stands for a machine without."""
    before = os.environ.get("CC")
    os.environ["CC"] = "false"
    try:
        AsyncIOBuilder().load(verbose=False)
    finally:
        os.environ.pop("CC") if before is None else os.environ.update(CC=before)
        native.load()  # only now: what is loaded is not looked for


def no_folder(given):
    """A folder that cannot be made, because a file has its name."""
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "file").touch()
    start("optimizer-nvme", given.folder / "file" / "swap", given)


def no_room(given):
    """More than the folder's file system has."""
    prepare_folder(given.folder, 2**60)


def small(given):
    """A model of which no sub-group has a MiB."""
    narrow = argparse.Namespace(**{**vars(given), "width": 256, "sub_group": 2**16})
    engine = start("optimizer-nvme", given.folder / "small", narrow)
    train(engine, given.rows, 2)
    return {"files": swapped_bytes(given.folder / "small")}


def small_buffer(given):
    """Buffers that do not hold the largest parameter."""
    from places import build, config

    model = build(given.width, given.layers)
    settings = config("parameters-nvme", model, given.folder / "buffer", given.sub_group, given.rows)
    settings["zero_optimization"]["offload_param"]["buffer_size"] = given.width * given.width // 2
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]
    return {"losses": train(engine, given.rows, 3)[0]}


def full_disk(given):
    """No file takes anything beyond its first MiB in the fourth step: so a full disk looks to DeepSpeed."""
    engine = start("optimizer-nvme", given.folder / "full", given)
    train(engine, given.rows, 3)
    saved = {name: safe_get_full_fp32_param(weight) for name, weight in engine.module.named_parameters()}
    torch.save(saved, given.folder / "saved.pt")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        train(engine, given.rows, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        kept = torch.load(given.folder / "saved.pt")
        given.lost = sum(not torch.equal(kept[name], weight) for name, weight in saved.items())
    return {"losses": train(engine, given.rows, 2)[0]}


FAILURES = {
    "no_libaio": (no_libaio, False),
    "no_folder": (no_folder, True),
    "no_room": (no_room, True),
    "small": (small, True),
    "small_buffer": (small_buffer, True),
    "full_disk": (full_disk, True),
    "full_disk_unwatched": (full_disk, False),
}

if __name__ == "__main__":
    given = arguments()
    with worker() as this:
        for name, (failure, watched) in FAILURES.items():
            given.lost, made = None, {}
            try:
                with watch() if watched else contextlib.nullcontext():
                    made = failure(given) or {}
            except (UserError, RuntimeError, AssertionError) as error:
                made = {"error": type(error).__name__, "message": str(error).replace(str(given.folder), "FOLDER")}
            this.report(failure=name, lost=given.lost, **made)
