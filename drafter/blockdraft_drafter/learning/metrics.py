"""What a drafter that learns counts; docs/metrics.md lists it."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from blockdraft_drafter.learning.stream import Serving

_OUTCOMES = ("written", "excluded", "queue_full", "disk", "too_large", "too_short", "incomplete")
_CHANGES = ("swapped", "rolled_back", "refused")


class LearningMetrics:
    """Counts for `Recorder` and `Learner`; the metrics are there, at zero, without them too."""

    def __init__(
        self, registry: CollectorRegistry, on_serving: Callable[[], None] = lambda: None
    ) -> None:
        """Create every metric.

        Args:
            registry: Where.
            on_serving: Called when another version drafts.
        """
        self._on_serving = on_serving
        self._version = Gauge(
            "blockdraft_drafter_version",
            "Version that drafts, of a drafter that learns; 0 of others.",
            registry=registry,
        )
        self._gained = Counter(
            "blockdraft_drafter_version_gained_tokens",
            "Tokens gained by verified proposals, the target's own included, by version, and by "
            "whether it made the whole context (own) or a version before it a part (older).",
            ["version", "context"],
            registry=registry,
        )
        self._verified = Counter(
            "blockdraft_drafter_version_verifications",
            "Verified proposals, by version and context.",
            ["version", "context"],
            registry=registry,
        )
        self._changes = Counter(
            "blockdraft_drafter_version_changes",
            "Versions taken over, sent back because τ fell, or refused, by kind.",
            ["kind"],
            registry=registry,
        )
        self._recordings = Counter(
            "blockdraft_drafter_recordings",
            "Sequences that ended or were excluded, by whether they were recorded, and if not, "
            "why.",
            ["outcome"],
            registry=registry,
        )
        self._recorded_bytes = Gauge(
            "blockdraft_drafter_recorded_bytes", "Bytes of recordings on disk.", registry=registry
        )
        for kind in _CHANGES:
            self._changes.labels(kind)
        for outcome in _OUTCOMES:
            self._recordings.labels(outcome)

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """Count a verified proposal; see `Observer.verified`."""
        labels = str(version), "own" if own_context else "older"
        self._gained.labels(*labels).inc(gained)
        self._verified.labels(*labels).inc()

    def changed(self, kind: str) -> None:
        """Count what became of a version: "swapped", "rolled_back" or "refused"."""
        self._changes.labels(kind).inc()

    def serves(self, serving: Serving) -> None:
        """Publish the version that drafts now."""
        self._version.set(serving.number)
        self._on_serving()

    def written(self, size_bytes: int) -> None:
        """Count a recording, given what all of them take now."""
        self._recordings.labels("written").inc()
        self._recorded_bytes.set(size_bytes)

    def dropped(self, cause: str) -> None:
        """Count a sequence that was to be recorded and is not."""
        self._recordings.labels(cause).inc()

    def excluded(self) -> None:
        """Count a sequence that its caller or tenant keeps out."""
        self._recordings.labels("excluded").inc()
