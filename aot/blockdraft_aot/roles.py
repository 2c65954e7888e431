"""Which chips of a topology are the verifier's and which the drafter's."""

from blockdraft_aot.errors import AotError
from blockdraft_runtime.tpu_host import TpuHost, TpuHostError
from blockdraft_runtime.tpu_split import (
    ChipSplit,
    ChipSplitError,
    default_split,
    drafter_environment,
    verifier_environment,
)


def role_topologies(topology: str, split: str | None, *, drafting: bool) -> tuple[str, str | None]:
    """Return the topologies that verifier and drafter see; None for a drafter without chips.

    They are those that `blockdraft serve` gives its processes.

    Args:
        topology: All chips, such as "v5p:2x2x1".
        split: `V+D`; by default half each, or all for the verifier if it is alone.
        drafting: Whether there is a drafter.

    Raises:
        AotError: If the chips cannot be split like this.
    """
    generation, _, shape = topology.partition(":")
    try:
        host = TpuHost.of_slice(generation, shape)
        parts = default_split(host, drafting=drafting) if split is None else ChipSplit.parse(split)
        if drafting != (parts.drafter > 0):
            raise AotError(f"--tpu-split {parts} and --drafter contradict each other")
        verifier = verifier_environment(host, parts)
        drafter = drafter_environment(host, parts) if drafting else None
    except (TpuHostError, ChipSplitError) as error:
        raise AotError(str(error)) from error

    def rectangle(environment: dict[str, str]) -> str:
        sizes = environment["TPU_CHIPS_PER_PROCESS_BOUNDS"].split(",")[: shape.count("x") + 1]
        return f"{generation}:{'x'.join(sizes)}"

    if host.num_hosts > 1:
        return topology, None
    return rectangle(verifier), None if drafter is None else rectangle(drafter)
