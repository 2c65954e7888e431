"""Whether a process fits its chips, and how much context it has room for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockdraft_aot.compiled import Compiled
from blockdraft_aot.errors import DoesNotFitError

_LENGTHS = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """What one chip of a role holds, in bytes.

    Attributes:
        usable: What may be used at all.
        weights: The model's.
        context: Of the drafter's context buffer; 0 for a verifier, whose pages take the rest.
        temporaries: Of the program that needs most while it runs.
        results: Of the program that returns most.
        code: Of all programs, loaded at once.
    """

    usable: int
    weights: int
    context: int
    temporaries: int
    results: int
    code: int

    @property
    def consumers(self) -> Mapping[str, int]:
        """What takes memory, and how much."""
        return {
            "weights": self.weights,
            "context": self.context,
            "temporaries": self.temporaries,
            "results": self.results,
            "code": self.code,
        }

    @property
    def left(self) -> int:
        """What is left; negative if it does not fit."""
        return self.usable - sum(self.consumers.values())


def memory_of(
    compiled: Sequence[Compiled], *, usable: int, weights: int, context: int = 0
) -> Memory:
    """Return what programs need of a chip beside weights and contexts.

    Args:
        compiled: All programs of the role.
        usable: Bytes that may be used.
        weights: Bytes of the weights.
        context: Bytes of the drafter's contexts.
    """
    return Memory(
        usable=usable,
        weights=weights,
        context=context,
        temporaries=max(each.temporary_bytes for each in compiled),
        results=max(each.result_bytes for each in compiled),
        code=sum(each.code_bytes for each in compiled),
    )


def pages_that_fit(memory: Memory, page_bytes: int, needed: int) -> int:
    """Return how many pages of K/V the rest of the memory holds.

    Args:
        memory: Of a verifier's chip.
        page_bytes: One page over all layers, on one chip.
        needed: Pages of one sequence of the greatest length.

    Raises:
        DoesNotFitError: If there is not room for `needed`; names the largest consumer.
    """
    pages = memory.left // page_bytes
    if pages < needed:
        raise DoesNotFitError(
            f"the verifier does not fit: {_largest(memory)} of {_gb(memory.usable)} usable, which "
            f"leaves room for {max(0, pages)} of the {needed} pages that one sequence needs"
        )
    return pages


def check_drafter(memory: Memory) -> None:
    """Raise `DoesNotFitError`, which names the largest consumer, if a drafter does not fit."""
    if memory.left < 0:
        raise DoesNotFitError(
            f"the drafter does not fit: it lacks {_gb(-memory.left)} of {_gb(memory.usable)} "
            f"usable; {_largest(memory)}"
        )


def batch_by_context(pages: int, page_size: int, most_tokens: int) -> dict[int, int]:
    """Return how many sequences of a length fit, for lengths that halve down from the greatest.

    Args:
        pages: That fit.
        page_size: Tokens per page.
        most_tokens: The greatest length.
    """
    lengths: list[int] = []
    length = most_tokens
    while length >= page_size and len(lengths) < _LENGTHS:
        lengths.append(length)
        length //= 2
    return {length: pages // -(-length // page_size) for length in lengths}


def _largest(memory: Memory) -> str:
    name, size = max(memory.consumers.items(), key=lambda item: item[1])
    return f"{name} take {_gb(size)}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
