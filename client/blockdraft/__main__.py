"""`python -m blockdraft` is the `blockdraft` command."""

import sys

from blockdraft_client.cli.main import main

sys.exit(main())
