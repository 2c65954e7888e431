"""Whether there is a drafter for the target, which decides what is started and who owns chips."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from blockdraft_runtime.settings.drafter import NO_DRAFTER_STATUS, DrafterSettings
from blockdraft_server.supervise.plan import DRAFTER, ServePlan
from blockdraft_server.supervise.settings import ServeSettings

logger = logging.getLogger(__name__)


def plan_for_target(settings: ServeSettings, folder: Path, environ: Mapping[str, str]) -> ServePlan:
    """Return the plan for what `blockdraft serve` is told, without a drafter if none is known.

    Args:
        settings: What it is told.
        folder: Where the sockets between the processes go.
        environ: Environment variables.

    Raises:
        ValueError: As by `ServePlan.of`, or if the files of target or drafter cannot be read.
    """
    plan = ServePlan.of(settings, folder, environ)
    # One that was named is loaded, or the drafter ends and says why not. Where it learns, the
    # trainer makes one if there is none.
    if plan.drafter is None or settings.names_drafter or plan.learns:
        return plan
    if _exists(plan.drafter, plan.environment):
        return plan
    logger.warning("starting no drafter; what prompt and answer repeat is drafted all the same")
    return ServePlan.of(replace(settings, no_drafter=True), folder, environ)


def _exists(drafter: DrafterSettings, environment: Mapping[str, str]) -> bool:
    """Ask the drafter's own command, which also downloads what is on the hub."""
    # A process of its own, because this one imports no models.
    command = [sys.executable, "-m", "blockdraft_drafter"]
    command += DRAFTER.flags(replace(drafter, find=True))
    # It looks at files only, and must not take a chip.
    found = subprocess.run(
        command, env={**environment, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.DEVNULL, check=False
    )
    if found.returncode not in (0, NO_DRAFTER_STATUS):
        raise ValueError(f"cannot look for a drafter (exit status {found.returncode})")
    return found.returncode == 0
