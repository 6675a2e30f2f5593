"""All experiments on two ranks, one after the other: they start and import their libraries only once.

By hand: torchrun --standalone --nproc-per-node 2 several.py ddp zero1 fsdp

Each of them runs alone too.
"""

import argparse

from efficient_training.launch.worker import worker

import accumulate
import clipping
import link
import mixed
import stages
import states
import two_ranks
import wrapping
from model import arguments

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*")
    sizes, sequences, steps, options = arguments(parser)
    with worker() as w:
        states.run(w, options.strategies, sizes, sequences, steps)
        for part in (accumulate, wrapping, clipping, mixed, link):
            part.run(w, sizes)
        two_ranks.run(w)
        stages.run(w, sizes, sequences, steps)
        stages.default_buffers(w, sizes, sequences)
