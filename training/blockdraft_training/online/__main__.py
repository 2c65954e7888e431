"""`python -m blockdraft_training.online`: the process of `blockdraft learn run`."""

import sys

from blockdraft_training.online.commands.run import CONFIGURATION, run

if __name__ == "__main__":
    sys.exit(CONFIGURATION.main(run))
