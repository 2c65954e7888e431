"""`python -m tests.chaos`: load and faults, a report, and exit code 1 if anything was lost."""

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path

from tests.chaos.report import as_json, as_page
from tests.chaos.run import chaos
from tests.chaos.schedule import schedule


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of requests and schedule")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=36)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--output", type=Path, default=Path("bench-results/chaos.json"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    planned = schedule(args.seed, args.faults, args.requests)
    found = asyncio.run(chaos(args.seed, args.requests, planned, args.concurrency))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(as_json(found), indent=2) + "\n")
    print(as_page(found))
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
