"""The metrics of a drafter that learns and of its trainer; docs/metrics.md lists them."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from blockdraft_drafter.learning.journal import Journal

_OUTCOMES = ("written", "excluded", "queue_full", "disk", "too_large", "too_short", "incomplete")
_CHANGES = ("swapped", "rolled_back", "refused")
# The trainer has no endpoint of its own: these metrics are fields of its journal.
_COUNTED = {
    "total_steps": ("steps", "Steps of learning, of all candidates, while this process watched."),
    "thrown_away": (
        "thrown_away_steps",
        "Steps not made because loss or gradients were not finite.",
    ),
    "total_evaluations": (
        "evaluations",
        "Comparisons of a candidate with the version that serves, on held-out samples.",
    ),
    "waited_seconds": ("waited_seconds", "Time that learning waited while sequences decoded."),
}
_ENDS = {"promoted": "promoted", "started_over": "given_up"}
_SHOWN = {
    "stepped_at": (
        "last_step_timestamp_seconds",
        "When the last step of learning was made, in seconds since 1970; 0 for never.",
    ),
    "steps": ("candidate_steps", "Steps of the candidate."),
    "loss": ("loss", "Loss of the last step; 0 before the first."),
    "samples_refused": (
        "refused_samples",
        "Training samples that the trainer skipped: damaged, or of another target or feature.",
    ),
}
_COMPARED = {"tau": "candidate", "current_tau": "serving"}


class LearningMetrics:
    """Counts of recorder and learner; the metrics exist, at zero, without them too."""

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
        ends = counter(
            "learning_candidates", "Candidates that were promoted or abandoned.", "outcome"
        )
        held_out = gauge(
            "learning_held_out_tau",
            "τ on held-out samples at the last evaluation, of the candidate and of the version "
            "that served; 0 before the first.",
            "drafter",
        )
        self._counted: dict[str, Counter] = {
            **{
                field: counter(f"learning_{name}", text) for field, (name, text) in _COUNTED.items()
            },
            **{field: ends.labels(outcome) for field, outcome in _ENDS.items()},
        }
        self._shown: dict[str, Gauge] = {
            **{field: gauge(f"learning_{name}", text) for field, (name, text) in _SHOWN.items()},
            **{field: held_out.labels(drafter) for field, drafter in _COMPARED.items()},
        }
        self._journal: Journal | None = None

    def verified(self, version: int, gained: int, *, own_context: bool) -> None:
        """Count a draft of a version that was verified; see `StreamLearner`."""
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

    def learned(self, journal: Journal) -> None:
        """Publish the trainer's journal.

        Steps from before this process began to watch are not counted: a counter that jumped at each
        start would look like learning.
        """
        before, self._journal = self._journal or journal, journal
        for field, counter in self._counted.items():
            earlier, now = getattr(before, field), getattr(journal, field)
            # A count that fell has restarted at zero.
            counter.inc(now - earlier if now >= earlier else now)
        for field, gauge in self._shown.items():
            gauge.set(getattr(journal, field) or 0)
