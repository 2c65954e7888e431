"""What a supervisor runs, by name."""

from blockdraft_server.supervise.supervisor import Supervisor


def process_ids(supervisor: Supervisor) -> dict[str, int]:
    """Return the running children's process ids."""
    return {name: child.pid for name, child in supervisor.children.items()}


def serving(supervisor: Supervisor) -> set[str]:
    """Return the running children that others wait for and that have become ready."""
    return {
        name
        for name, child in supervisor.children.items()
        if child.spec.health_address and child.ready_since is not None
    }
