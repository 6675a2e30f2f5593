"""`states.py` and the smaller experiments on the same ranks, which start and import their libraries only once."""

import argparse

import accumulate
import clipping
import link
import mixed
import states
import wrapping
from model import arguments

from efficient_training.launch.worker import worker

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategies", nargs="*")
    sizes, sequences, steps, options = arguments(parser)
    with worker() as w:
        states.run(w, options.strategies, sizes, sequences, steps)
        for part in (accumulate, wrapping, clipping, mixed, link):
            part.run(w, sizes)
