"""Logging of the serving processes: one line per event on stderr."""

import logging
import sys
import time


def configure_logging(role: str, level: str = "info") -> None:
    """Log to stderr as `time level role logger: message`, UTC.

    Args:
        role: Name of the process, such as "verifier".
        level: Name of the least severe level to show.

    Raises:
        ValueError: If the level is unknown.
    """
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {role} %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # Libraries narrate their inner life at these levels.
    for noisy in ("jax", "asyncio", "urllib3", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
