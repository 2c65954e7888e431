"""Numerics classes: the step shapes that give the same bits for the same tokens.

Batch invariance is the contract of the verifier: for one element type on one device, the logits of
a position depend on the tokens up to it and on nothing else. They do not depend on how many tokens
or rows share the step, how a prompt was cut, what the prefix cache held, or which attempt it is.
All of that comes down to one thing: whatever the shape of a step, a position gets the same bits.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from blockdraft_verifier.device.buckets import Bucket, bucket_for

logger = logging.getLogger(__name__)

# How much longer steps may take, so that they have the same bits.
_MOST_COST = 1.3


class InexactError(ValueError):
    """No choice among the compiled steps keeps the contract."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of a self-test."""

    dtype: str  # element type that the target computes in
    # Step shapes that give the same bits, class by class, each in the order of their size.
    classes: tuple[tuple[Bucket, ...], ...]
    # Shapes that give one row other bits than another row of the same step. Each is a class of its
    # own as well.
    unsteady: tuple[Bucket, ...] = ()
    # Shapes of other classes, which are not served but padded to one of `classes`.
    padded: tuple[Bucket, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every step gives the same bits."""
        return len(self.classes) == 1 and not self.unsteady

    @property
    def step_tokens(self) -> int:
        """The most tokens of a step that is served."""
        return max(bucket.tokens for bucket in self.classes[0])

    def mended(self, seconds: Mapping[Bucket, float]) -> "Exactness":
        """Return the result once every step is padded to a shape of the cheapest class.

        The cost of a class is the greatest ratio of a step's seconds, padded to it and unpadded. It
        must hold a draft of every row; steps of more tokens, which prompts have, are cut.

        Raises:
            InexactError: If no class costs less than 1.3 times.
        """
        buckets = [bucket for shapes in self.classes for bucket in shapes]
        most_rows = max(bucket.rows for bucket in buckets)
        most_choices = max(bucket.choices for bucket in buckets)

        def cost(shapes: tuple[Bucket, ...]) -> float:
            most_tokens = max(bucket.tokens for bucket in shapes)
            fitting = (bucket for bucket in buckets if bucket.tokens <= most_tokens)
            return max(
                seconds[bucket_for(shapes, bucket.rows, bucket.tokens)] / seconds[bucket]
                for bucket in fitting
            )

        costs = {
            shapes: cost(shapes)
            for shapes in self.classes
            if not set(shapes) & set(self.unsteady)
            and any(bucket.rows == most_rows and bucket.tokens >= most_choices for bucket in shapes)
        }
        cheapest = min(costs, key=costs.__getitem__, default=())
        if not cheapest or costs[cheapest] > _MOST_COST:
            raise InexactError(
                f"{self.summary()}. Padding does not mend that at {_MOST_COST} times the cost: "
                "--allow-inexact serves completions that may depend on drafts and other requests"
            )
        other_buckets = sorted(bucket for bucket in buckets if bucket not in cheapest)
        return Exactness(self.dtype, (cheapest,), padded=tuple(other_buckets))

    def log(self, seconds: Mapping[Bucket, float]) -> None:
        """Log the result, and what padding costs."""
        logger.log(logging.INFO if self.exact else logging.WARNING, "%s", self.summary())
        for bucket in self.padded:
            if bucket.tokens > self.step_tokens:
                logger.warning("steps of %s are cut to %d tokens", bucket, self.step_tokens)
                continue
            instead = bucket_for(self.classes[0], bucket.rows, bucket.tokens)
            logger.warning(
                "steps of %s are padded to %s and take %.1f instead of %.1f ms",
                *(bucket, instead, 1e3 * seconds[instead], 1e3 * seconds[bucket]),
            )

    def summary(self) -> str:
        """Return the result in one sentence."""
        count = sum(map(len, self.classes))
        if self.padded:
            padded = " ".join(map(str, self.padded))
            return (
                f"exact in {self.dtype}: {count} step shapes are batch-invariant, "
                f"{padded} are padded"
            )
        if self.exact:
            return f"exact in {self.dtype}: all {count} step shapes are batch-invariant"
        classes = " | ".join(" ".join(map(str, shapes)) for shapes in self.classes)
        return (
            f"inexact in {self.dtype}: {count} step shapes (rows x tokens) fall into "
            f"{len(self.classes)} numerics classes: {classes}"
        )


def find_classes(dtype: str, signatures: Mapping[Bucket, Collection[bytes]]) -> Exactness:
    """Group step shapes by the signatures of what they computed."""
    members: dict[frozenset[bytes], list[Bucket]] = {}
    for bucket in sorted(signatures):
        members.setdefault(frozenset(signatures[bucket]), []).append(bucket)
    steady = [shapes for digests, shapes in members.items() if len(digests) == 1]
    unsteady = sorted(
        bucket for digests, shapes in members.items() if len(digests) > 1 for bucket in shapes
    )
    classes = sorted([*map(tuple, steady), *((bucket,) for bucket in unsteady)])
    return Exactness(dtype, tuple(classes), tuple(unsteady))
