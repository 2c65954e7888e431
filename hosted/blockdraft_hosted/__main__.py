"""`python -m blockdraft_hosted` is `blockdraft hosted`, whatever PATH says."""

import sys

from blockdraft_hosted.command import CONFIGURATION, run

sys.exit(CONFIGURATION.main(run))
