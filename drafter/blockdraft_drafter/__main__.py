"""`python -m blockdraft_drafter` is `blockdraft drafter`, whatever PATH says."""

import sys

from blockdraft_drafter.command import CONFIGURATION, run

sys.exit(CONFIGURATION.main(run))
