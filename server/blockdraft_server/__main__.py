"""`python -m blockdraft_server` is `blockdraft server`, whatever PATH says."""

import sys

from blockdraft_server.command import CONFIGURATION, run

sys.exit(CONFIGURATION.main(run))
