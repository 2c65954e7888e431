"""Which chips of a topology are the verifier's and which the drafter's."""

import math

from blockdraft_aot.errors import AotError
from blockdraft_runtime.tpu_split import ChipSplit, ChipSplitError

# The rectangle that a process with so many chips gets (`blockdraft_runtime.tpu_split`).
_RECTANGLES = {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (2, 4)}


def role_topologies(topology: str, split: str | None, *, drafting: bool) -> tuple[str, str | None]:
    """Return the topologies that verifier and drafter see; None for a drafter without chips.

    Args:
        topology: All chips, such as "v5p:2x2x1".
        split: `V+D`; by default half each, or all for the verifier if it is alone.
        drafting: Whether there is a drafter.

    Raises:
        AotError: If the chips cannot be split like this.
    """
    generation, _, shape = topology.partition(":")
    try:
        bounds = [int(size) for size in shape.split("x")]
        chips = math.prod(bounds)
        if not drafting and split is None:
            return topology, None
        half = max(1, chips // 2)
        parts = ChipSplit(half, half) if split is None else ChipSplit.parse(split)
    except ChipSplitError as error:
        raise AotError(str(error)) from error
    except ValueError as error:
        raise AotError(f"a topology is written like v5p:2x2x1, got {topology!r}") from error
    wanted = {parts.verifier, parts.drafter} - {0}
    if not wanted <= _RECTANGLES.keys() or parts.verifier + parts.drafter > chips:
        raise AotError(
            f"{topology} cannot be split {parts}: each process needs 1, 2, 4 or 8 chips, together "
            f"at most {chips}"
        )
    if drafting != (parts.drafter > 0):
        raise AotError(f"--tpu-split {parts} and --drafter contradict each other")

    def rectangle(count: int) -> str:
        sizes = (*_RECTANGLES[count], 1)[: len(bounds)]
        return f"{generation}:{'x'.join(str(size) for size in sizes)}"

    return rectangle(parts.verifier), rectangle(parts.drafter) if drafting else None
