"""`python -m tools.chaos`: load and faults, a report, and exit code 1 if anything was lost."""

import asyncio
import logging
import sys

from tools.chaos.report import as_json, command_line, tell
from tools.chaos.run import chaos
from tools.chaos.schedule import schedule


def main() -> int:
    """Run what the command line says."""
    parser = command_line("chaos", __doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=36)
    parser.add_argument("--concurrency", type=int, default=32)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    planned = schedule(args.seed, args.faults, args.requests)
    found = asyncio.run(chaos(args.seed, args.requests, planned, args.concurrency))
    tell(as_json(found), args.output)
    return int(not found.good)


if __name__ == "__main__":
    sys.exit(main())
