"""Classes of rounding: which step shapes add alike, and what the padding of short steps costs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_aot.modelled import Modelled
from blockdraft_aot.rounding import Difference, Rounding


@dataclass(frozen=True, slots=True)
class RoundingClass:
    """Programs of one signature.

    Attributes:
        label: Such as "2.1"; classes with the same number before the point differ in the order of
            passes only, which need not round differently.
        rounding: The signature.
        programs: Those that have it.
        differences: What the programs of the class before this one do differently; empty for the
            first class.
    """

    label: str
    rounding: Rounding
    programs: tuple[Modelled, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Padding:
    """A plain step as it is compiled, and as it would be without padding.

    Attributes:
        padded: The program that is compiled.
        unpadded: That of one token a row.
    """

    padded: Modelled
    unpadded: Modelled

    @property
    def cost(self) -> float:
        """The modelled time of padding as a share of the unpadded step."""
        return self.padded.seconds / self.unpadded.seconds - 1

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What the unpadded step does differently."""
        return self.unpadded.compiled.rounding.differences(self.padded.compiled.rounding)


def classes_of(programs: Sequence[Modelled]) -> tuple[RoundingClass, ...]:
    """Group programs that add alike, fewest tokens first."""
    members: dict[Rounding, list[Modelled]] = {}
    for each in sorted(programs, key=lambda each: (each.program.tokens, each.program.rows)):
        members.setdefault(each.compiled.rounding, []).append(each)
    families: dict[Rounding, int] = {}
    variants: Counter[int] = Counter()
    classes: list[RoundingClass] = []
    for rounding, alike in members.items():
        family = families.setdefault(rounding.without_order(), len(families) + 1)
        variants[family] += 1
        before = classes[-1].rounding.differences(rounding) if classes else ()
        label = f"{family}.{variants[family]}"
        classes.append(RoundingClass(label, rounding, tuple(alike), before))
    return tuple(classes)
