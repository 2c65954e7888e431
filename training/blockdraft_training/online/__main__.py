"""`python -m blockdraft_training.online`: the process of `blockdraft learn run`."""

import sys

from blockdraft_training.online.run import CONFIGURATION, run_learner

if __name__ == "__main__":
    sys.exit(CONFIGURATION.main(run_learner))
