"""The metrics of the trainer; docs/metrics.md lists them."""

from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, Gauge

from blockdraft_training.online.journal import Journal


class TrainerMetrics:
    """The journal as metrics, and the time of waiting."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create every metric on `registry`."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"blockdraft_trainer_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"blockdraft_trainer_{name}", text, labels, registry=registry)

        self.waited_seconds = counter(
            "waited_seconds", "Time that learning waited while sequences decoded."
        )
        ends = counter("candidates", "Candidates that were promoted or abandoned.", "outcome")
        tau = gauge(
            "held_out_tau",
            "τ on held-out samples at the last evaluation, of the candidate and of the version "
            "that served; 0 before the first.",
            "drafter",
        )
        self._counters = {
            "total_steps": counter("steps", "Steps of learning, of all candidates."),
            "thrown_away": counter(
                "thrown_away_steps", "Steps not made because loss or gradients were not finite."
            ),
            "total_evaluations": counter(
                "evaluations",
                "Comparisons of a candidate with the version that serves, on held-out samples.",
            ),
            "promoted": ends.labels("promoted"),
            "started_over": ends.labels("given_up"),
        }
        self._gauges = {
            "stepped_at": gauge(
                "last_step_timestamp_seconds",
                "When the last step was made, in seconds since 1970; 0 for never.",
            ),
            "steps": gauge("candidate_steps", "Steps of the candidate."),
            "loss": gauge("loss", "Loss of the last step; 0 before the first."),
            "samples_refused": gauge(
                "refused_samples",
                "Training samples that were skipped: damaged, or of another target or feature.",
            ),
            "tau": tau.labels("candidate"),
            "current_tau": tau.labels("serving"),
        }
        self._counted: Journal | None = None

    def publish(self, journal: Journal) -> None:
        """Publish a journal; of the first one, which the process before left, counts are not."""
        before, self._counted = self._counted or journal, replace(journal)
        for field, counter in self._counters.items():
            counter.inc(getattr(journal, field) - getattr(before, field))
        for field, gauge in self._gauges.items():
            gauge.set(getattr(journal, field) or 0)
