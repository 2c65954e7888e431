"""Prometheus metrics of the verifier; the list with queries is docs/metrics.md."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from blockdraft_verifier.drafting.contexts import REPAIR_CAUSES
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.exactness.classes import Exactness
from blockdraft_verifier.scheduling.scheduler import Progress
from blockdraft_verifier.scheduling.sequence import DraftSource, Sequence

PREFIX = "blockdraft_verifier"
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is at one moment.

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


class VerifierMetrics:
    """Every metric of one verifier, on a registry of the caller's choice."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        self.running = Gauge(
            f"{PREFIX}_running_sequences", "Sequences being decoded.", registry=registry
        )
        self.waiting = Gauge(
            f"{PREFIX}_waiting_sequences", "Sequences waiting to be admitted.", registry=registry
        )
        self.pages_used = Gauge(
            f"{PREFIX}_pages_used", "KV cache pages owned by live sequences.", registry=registry
        )
        self.pages_total = Gauge(f"{PREFIX}_pages", "KV cache pages.", registry=registry)
        self.build = Gauge(
            f"{PREFIX}_build_info",
            "1, for what is running.",
            ["version", "model", "target", "dtype"],
            registry=registry,
        )
        self.drafter_attached = Gauge(
            f"{PREFIX}_drafter_attached", "1 while a drafter is connected.", registry=registry
        )
        self.steps = Counter(f"{PREFIX}_steps", "Forward passes of the target.", registry=registry)
        self.step_tokens = Counter(
            f"{PREFIX}_step_tokens", "Tokens run through the target.", registry=registry
        )
        self.verifications = Counter(
            f"{PREFIX}_verifications",
            "Verifications of one sequence, those without drafted tokens included.",
            registry=registry,
        )
        self.output_tokens = Counter(
            f"{PREFIX}_output_tokens", "Tokens generated.", registry=registry
        )
        self.drafts = Counter(
            f"{PREFIX}_drafts",
            "Proposals verified, of at least one token, by source: drafter, lookup.",
            ["source"],
            registry=registry,
        )
        self.drafted = Counter(
            f"{PREFIX}_drafted_tokens",
            "Drafted tokens verified, by source.",
            ["source"],
            registry=registry,
        )
        self.accepted = Counter(
            f"{PREFIX}_accepted_tokens",
            "Drafted tokens accepted, by source.",
            ["source"],
            registry=registry,
        )
        self.accepted_at = Counter(
            f"{PREFIX}_accepted_tokens_per_position",
            "Drafted tokens accepted, by source and position in the block, from 1.",
            ["source", "position"],
            registry=registry,
        )
        for source in DraftSource:
            for counter in (self.drafts, self.drafted, self.accepted):
                counter.labels(source.value)
        self.repairs = Counter(
            f"{PREFIX}_sync_repairs",
            "Differences between the drafter's contexts and the committed lengths, by cause.",
            ["cause"],
            registry=registry,
        )
        for cause in REPAIR_CAUSES:
            self.repairs.labels(cause)
        self.late_drafts = Counter(
            f"{PREFIX}_late_drafts",
            "Requests for proposals that were not answered in time; nobody waited on.",
            registry=registry,
        )
        self.preemptions = Counter(
            f"{PREFIX}_preemptions", "Sequences that gave their pages back.", registry=registry
        )
        self.cached_tokens = Counter(
            f"{PREFIX}_cached_prompt_tokens",
            "Prompt tokens whose computation was reused.",
            registry=registry,
        )
        self.finished = Counter(
            f"{PREFIX}_finished_sequences", "Sequences ended.", ["reason"], registry=registry
        )
        self.recompilations = Counter(
            f"{PREFIX}_recompilations",
            "Executables compiled after warm-up; anything but 0 is a defect.",
            registry=registry,
        )
        self.rounding_classes = Gauge(
            f"{PREFIX}_rounding_classes",
            "Ways in which the served steps round, by the self-test; 1 is exact.",
            ["dtype"],
            registry=registry,
        )
        self.padded_shapes = Gauge(
            f"{PREFIX}_padded_shapes",
            "Step shapes that round otherwise and are padded to one that does not.",
            registry=registry,
        )
        self.step_seconds = Histogram(
            f"{PREFIX}_step_seconds",
            "Time of a step by part: verify, draft, transport, host.",
            ["part"],
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            f"{PREFIX}_queue_seconds",
            "Time from arrival to the first step of a sequence.",
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self.prefill_seconds = Histogram(
            f"{PREFIX}_prefill_seconds",
            "Time from the first step to the first token of a sequence.",
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )

    def count_repair(self, cause: str) -> None:
        """Count one difference found by the accepted-token sync."""
        self.repairs.labels(cause).inc()

    def repair_count(self) -> float:
        """Return how many differences were found so far."""
        [family] = self.repairs.collect()
        samples = (s.value for s in family.samples if s.name.endswith("_total"))
        return sum(samples, start=0.0)

    def count_step_seconds(
        self, verify_seconds: float, times: DraftTimes, total_seconds: float
    ) -> None:
        """Count what one step took.

        Args:
            verify_seconds: The target's part, and whatever the host did meanwhile.
            times: What drafting took before it.
            total_seconds: All of it.
        """
        draft_seconds = min(times.computed, times.waited)
        host_seconds = max(0.0, total_seconds - verify_seconds - times.waited)
        self.step_seconds.labels("verify").observe(verify_seconds)
        self.step_seconds.labels("draft").observe(draft_seconds)
        self.step_seconds.labels("transport").observe(times.transport)
        self.step_seconds.labels("host").observe(host_seconds)

    def count_step(self, progress: list[Progress]) -> None:
        """Count one step and what it gained."""
        self.steps.inc()
        self.step_tokens.inc(sum(len(change.row.token_ids) for change in progress))
        self.output_tokens.inc(sum(len(change.new_tokens) for change in progress))
        # The step that ends a prompt gains a token too, but verifies nothing.
        verified = [c for c in progress if c.row.start >= len(c.row.sequence.request.prompt)]
        self.verifications.inc(len(verified))
        for source in DraftSource:
            drafted = [c for c in verified if c.row.draft_count and c.row.source is source]
            if drafted:
                self._count_drafted(source.value, drafted)

    def _count_drafted(self, source: str, verified: list[Progress]) -> None:
        """Count verifications of tokens that one source drafted."""
        accepted = [change.accepted for change in verified]
        self.drafts.labels(source).inc(len(accepted))
        self.drafted.labels(source).inc(sum(change.row.draft_count for change in verified))
        self.accepted.labels(source).inc(sum(accepted))
        for position in range(1, max(accepted) + 1):
            reached = sum(count >= position for count in accepted)
            self.accepted_at.labels(source, str(position)).inc(reached)

    def count_finished(self, sequence: Sequence) -> None:
        """Count a sequence that ended by itself."""
        usage = sequence.usage
        reason = sequence.finish_reason.value if sequence.finish_reason is not None else "none"
        self.finished.labels(reason).inc()
        self.cached_tokens.inc(usage.cached_prompt_tokens)
        if usage.first_step_time is not None and usage.first_token_time is not None:
            self.queue_seconds.observe(usage.first_step_time - sequence.arrival_time)
            self.prefill_seconds.observe(usage.first_token_time - usage.first_step_time)

    def publish_exactness(self, exactness: Exactness) -> None:
        """Publish what the self-test found."""
        self.rounding_classes.labels(exactness.dtype).set(len(exactness.classes))
        self.padded_shapes.set(len(exactness.padded))

    def publish_load(self, load: Load, *, attached: bool) -> None:
        """Publish the present load."""
        self.running.set(load.running)
        self.waiting.set(load.waiting)
        self.pages_used.set(load.used_pages)
        self.pages_total.set(load.total_pages)
        self.drafter_attached.set(attached)
