"""`python -m blockdraft_verifier` is `blockdraft verifier`, whatever PATH says."""

import sys

from blockdraft_verifier.command import CONFIGURATION, run

sys.exit(CONFIGURATION.main(run))
