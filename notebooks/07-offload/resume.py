"""Go on from the checkpoints that places.py saved, in a new process, and report the losses."""

from efficient_training import native
from efficient_training.launch.worker import worker
from efficient_training.offload.swap import watch

from places import arguments, start, train

if __name__ == "__main__":
    given = arguments()
    native.load()
    with worker() as this, watch():
        for offload in given.offload:  # in the order in which they were saved: DeepSpeed names swap files by number
            engine = start(offload, given.folder / f"{offload}-resumed", given)
            engine.load_checkpoint(given.folder / f"checkpoint-{offload}")
            this.report(offload=offload, after=train(engine, given.rows, 2)[0])
            engine.destroy()
