"""Bringing the processes of a slice together, by JAX."""

import jax

from blockdraft_verifier.slice.settings import SliceConfig

# The devices of a dead process hold up those of all others: better to start again soon.
_HEARTBEAT_SECONDS = 10
_SHUTDOWN_SECONDS = 10


def start_slice(config: SliceConfig) -> None:
    """Wait for the other processes; must come before JAX has touched a device.

    JAX ends this process when another one dies.

    Raises:
        RuntimeError: If they do not come within JAX's five minutes.
    """
    # It would take SIGTERM for itself, which asks us to drain.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        config.coordinator,
        config.num_processes,
        config.process_id,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
