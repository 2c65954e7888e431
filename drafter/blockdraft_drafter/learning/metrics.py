"""What a drafter that learns counts, and what its trainer does; docs/metrics.md lists it."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.stream import Serving

_OUTCOMES = ("written", "excluded", "queue_full", "disk", "too_large", "too_short", "incomplete")
_CHANGES = ("swapped", "rolled_back", "refused")
_ENDS = ("promoted", "given_up")
_COMPARED = ("candidate", "serving")


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
        # The trainer has no endpoint of its own: what follows is read in its journal.
        self._steps = Counter(
            "blockdraft_drafter_learning_steps",
            "Steps of learning, of all candidates, while this process watched.",
            registry=registry,
        )
        self._thrown_away = Counter(
            "blockdraft_drafter_learning_thrown_away_steps",
            "Steps not made because loss or gradients were no numbers.",
            registry=registry,
        )
        self._looks = Counter(
            "blockdraft_drafter_learning_looks",
            "Comparisons of a candidate with the version that serves, on held-out recordings.",
            registry=registry,
        )
        self._candidates = Counter(
            "blockdraft_drafter_learning_candidates",
            "Candidates that were promoted or given up.",
            ["outcome"],
            registry=registry,
        )
        self._waited = Counter(
            "blockdraft_drafter_learning_waited_seconds",
            "Time that learning waited for what was decoded.",
            registry=registry,
        )
        self._last_step = Gauge(
            "blockdraft_drafter_learning_last_step_timestamp_seconds",
            "When the last step of learning was made, in seconds since 1970; 0 for never.",
            registry=registry,
        )
        self._candidate_steps = Gauge(
            "blockdraft_drafter_learning_candidate_steps",
            "Steps of the candidate.",
            registry=registry,
        )
        self._loss = Gauge(
            "blockdraft_drafter_learning_loss",
            "Loss of the last step; 0 before the first.",
            registry=registry,
        )
        self._held_out_tau = Gauge(
            "blockdraft_drafter_learning_held_out_tau",
            "τ on held-out recordings at the last comparison, of the candidate and of the version "
            "that served; 0 before the first.",
            ["drafter"],
            registry=registry,
        )
        self._refused_recordings = Gauge(
            "blockdraft_drafter_learning_refused_recordings",
            "Recordings that the trainer passed over: damaged, or of another target or feature.",
            registry=registry,
        )
        self._journal: Journal | None = None
        for kind in _CHANGES:
            self._changes.labels(kind)
        for outcome in _ENDS:
            self._candidates.labels(outcome)
        for drafter in _COMPARED:
            self._held_out_tau.labels(drafter)
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

    def learned(self, journal: Journal) -> None:
        """Publish what the trainer says of itself.

        What it did before this process began to watch is not counted: a counter that jumped at
        each start would look like learning.
        """
        before, self._journal = self._journal or journal, journal
        counted = (
            (self._steps, before.total_steps, journal.total_steps),
            (self._thrown_away, before.thrown_away, journal.thrown_away),
            (self._looks, before.total_looks, journal.total_looks),
            (self._candidates.labels("promoted"), before.promoted, journal.promoted),
            (self._candidates.labels("given_up"), before.started_over, journal.started_over),
            (self._waited, before.waited_seconds, journal.waited_seconds),
        )
        for counter, earlier, now in counted:
            # A count that fell began anew.
            counter.inc(max(0, now - earlier if now >= earlier else now))
        self._last_step.set(journal.stepped_at or 0)
        self._candidate_steps.set(journal.steps)
        self._loss.set(journal.loss or 0)
        self._held_out_tau.labels("candidate").set(journal.tau or 0)
        self._held_out_tau.labels("serving").set(journal.current_tau or 0)
        self._refused_recordings.set(journal.recordings_refused)
