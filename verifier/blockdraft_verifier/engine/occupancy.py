"""How busy the engine is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences and pages at one moment.

    Attributes:
        running: Sequences being decoded.
        waiting: Sequences waiting to be admitted.
        used_pages: KV cache pages owned by live sequences.
        total_pages: KV cache pages.
    """

    running: int
    waiting: int
    used_pages: int
    total_pages: int
