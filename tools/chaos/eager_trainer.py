"""A trainer that makes steps and evaluations within a run, at everybody's priority.

At its own it gets no processor beside other tests.
"""

import sys
from argparse import Namespace
from dataclasses import replace

from blockdraft_training.online.run import CONFIGURATION, learn
from blockdraft_training.online.settings import Schedule

EAGER = Schedule(
    settle_seconds=0.0,
    idle_seconds=0.2,
    warmup_steps=1,
    batch_size=2,
    blocks_per_sequence=4,
    passes=1,
    held_out_share=0.5,
    held_out_sequences=8,
    first_evaluation=2,
    least_gain=0.0,
    checkpoint_every=2,
    keep=4,
)


def run(args: Namespace) -> int:
    """Learn until SIGTERM and return the exit code."""
    return learn(replace(CONFIGURATION.read(args), schedule=EAGER))


if __name__ == "__main__":
    sys.exit(CONFIGURATION.main(run))
