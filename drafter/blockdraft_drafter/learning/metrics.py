"""The metrics of a drafter that learns; docs/metrics.md lists them."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

_OUTCOMES = ("written", "excluded", "queue_full", "disk", "too_large", "too_short", "incomplete")
_CHANGES = ("swapped", "rolled_back", "refused")


class LearningMetrics:
    """Counts of samples and versions; the metrics exist, at zero, without them too."""

    def __init__(
        self, registry: CollectorRegistry, on_serving: Callable[[], None] = lambda: None
    ) -> None:
        """Create every metric; `on_serving` is called when another version drafts."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"blockdraft_drafter_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"blockdraft_drafter_{name}", text, labels, registry=registry)

        self._on_serving = on_serving
        self._version = gauge(
            "version", "Version that drafts, of a drafter that learns; 0 of others."
        )
        self._gained = counter(
            "version_gained_tokens",
            "Tokens gained by verified drafts, the target's own included, by version, and by "
            "whether it filled the whole draft KV cache (own) or an older version a part (older).",
            *("version", "context"),
        )
        self._verified = counter(
            "version_verifications",
            "Verified drafts, by version and by what filled the draft KV cache.",
            *("version", "context"),
        )
        changes = counter(
            "version_changes",
            "Versions loaded, rolled back because τ fell, or refused, by kind.",
            "kind",
        )
        self._changes = {kind: changes.labels(kind) for kind in _CHANGES}
        samples = counter(
            "training_samples",
            "Sequences that ended or were excluded, by whether they were recorded, and if not, "
            "why.",
            "outcome",
        )
        self._samples = {outcome: samples.labels(outcome) for outcome in _OUTCOMES}
        self._sample_bytes = gauge(
            "training_sample_bytes",
            "Bytes of training samples on disk, those that are being written included.",
        )

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """Count a draft of a version that was verified; see `StreamObserver`."""
        labels = str(version), "own" if own_context else "older"
        self._gained.labels(*labels).inc(gained)
        self._verified.labels(*labels).inc()

    def changed(self, kind: str) -> None:
        """Count a change of versions: "swapped", "rolled_back" or "refused"."""
        self._changes[kind].inc()

    def serves(self, version: int) -> None:
        """Publish the version that drafts now."""
        self._version.set(version)
        self._on_serving()

    def recorded(self, size_bytes: int) -> None:
        """Count a sample; `size_bytes` are those of all samples now."""
        self._samples["written"].inc()
        self._sample_bytes.set(size_bytes)

    def not_recorded(self, cause: str) -> None:
        """Count a sequence that is not recorded."""
        self._samples[cause].inc()
