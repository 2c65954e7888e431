"""`blockdraft learn run`: learn from training samples."""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from blockdraft_models.errors import ModelError
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_training.errors import TrainingError
from blockdraft_training.online.settings import LearnSettings

CONFIGURATION = Configuration("learn run", LearnSettings)

_LOWEST_PRIORITY = 19

logger = logging.getLogger(__name__)


def take_lowest_priority() -> None:
    """Let all other processes compute first."""
    os.nice(_LOWEST_PRIORITY)
    # Where Linux groups processes by session, priorities count within a session alone, and `serve`
    # gives each of its processes its own. Then the group's priority is what must be lowered.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_LOWEST_PRIORITY))


def run_learner(args: argparse.Namespace) -> int:
    """Learn until SIGTERM or SIGINT and return the exit code; 2 if learning can never work."""
    settings = CONFIGURATION.read(args)
    take_lowest_priority()
    return learn(settings)


def learn(settings: LearnSettings) -> int:
    """Learn as `run_learner` does, at this process's priority."""
    configure_logging("learn")
    # These log every checkpoint.
    for noisy in ("absl", "orbax"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if settings.threads is not None:
        # Read by XLA's CPU client when it makes its threads.
        os.environ["NPROC"] = str(settings.threads)
    # Imported here: `--help` must not wait for jax, nor jax make its threads before.
    from prometheus_client import REGISTRY, start_http_server

    from blockdraft_models.executables import keep_executables
    from blockdraft_training.online.learner import Learner
    from blockdraft_training.online.metrics import TrainerMetrics
    from blockdraft_training.online.pace import Pace, Verifiers

    keep_executables()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    metrics = TrainerMetrics(REGISTRY)
    pace = Pace(
        Verifiers(settings.watch).busy,
        settings.schedule.settle_seconds,
        metrics.waited_seconds.inc,
    )
    try:
        if settings.metrics_port is not None:
            start_http_server(settings.metrics_port, settings.metrics_address)
        learner = Learner(settings, pace, metrics, stop.is_set, sleep=stop.wait)
        logger.info("learning for target %s", settings.target)
        learner.run()
    except (TrainingError, ModelError) as error:
        # A target or drafter that is wrong now will be wrong the next time.
        print(f"blockdraft learn run: {error}", file=sys.stderr)
        return 2
    return 0
