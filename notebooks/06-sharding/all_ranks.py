"""`states.py`, `resume.py` and `stages.py` on the largest number of ranks, which start and import libraries only once.

By hand: torchrun --standalone --nproc-per-node 4 all_ranks.py ddp fsdp --folder checkpoints --save-every 5
"""

import argparse
from pathlib import Path

from efficient_training.launch.worker import worker

import resume
import stages
import states
from model import arguments

IN_FP32 = [name for name, (_, settings) in stages.SETTINGS.items() if "bf16" not in settings]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="+")
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoints")
    parser.add_argument("--save-after", type=int, default=5, help="the step after which one is written")
    parser.add_argument("--train-to", type=int, default=9, help="the last step of the run that writes it")
    sizes, sequences, steps, options = arguments(parser)
    with worker() as w:
        states.run(w, options.strategies, sizes, sequences, steps)
        resume.train(w, options.folder, options.train_to, options.save_after)
        stages.run(w, sizes, sequences, steps, IN_FP32)
