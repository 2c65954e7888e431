"""Bringing the processes of a slice together, by JAX."""

import jax

from blockdraft_runtime.settings.slice import SliceSettings

# The devices of a dead process hold up those of all others: better to start again soon.
_HEARTBEAT_SECONDS = 10
_SHUTDOWN_SECONDS = 10


def start_slice(settings: SliceSettings) -> None:
    """Wait for the other processes; must come before JAX has touched a device.

    JAX ends this process when another one dies.

    Raises:
        RuntimeError: If they do not come within JAX's five minutes.
    """
    # It would take SIGTERM for itself, which asks us to drain.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        settings.coordinator,
        settings.num_processes,
        settings.process_id,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
