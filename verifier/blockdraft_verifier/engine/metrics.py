"""Prometheus metrics of the verifier; the list with queries is docs/metrics.md."""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as CounterMetric

from blockdraft_verifier.drafting.draft_caches import REPAIR_CAUSES
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.scheduling.row import SequenceProgress
from blockdraft_verifier.scheduling.sequence import DraftSource, TokenSequence

PREFIX = "blockdraft_verifier"
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

Metric = TypeVar("Metric", CounterMetric, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Load:
    """The load at one moment: sequences that run and wait, slots, pages in use and in all."""

    running: int
    waiting: int
    slots: int
    used_pages: int
    total_pages: int


@dataclass(slots=True)
class DraftCounts:
    """Drafts of a source that were verified, their tokens, and accepted ones by position."""

    drafts: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)

    def accept(self, position: int, count: int) -> None:
        """Count accepted tokens at a position from 0; other threads may read meanwhile."""
        self.accepted.extend([0] * (position + 1 - len(self.accepted)))
        self.accepted[position] += count


class VerifierMetrics:
    """Every metric of one verifier, on a registry of the caller's choice."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""

        def new(kind: type[Metric], name: str, text: str, *labels: str, **options: Any) -> Metric:
            return kind(f"{PREFIX}_{name}", text, labels, registry=registry, **options)

        gauge, counter = partial(new, Gauge), partial(new, CounterMetric)
        self.running = gauge("running_sequences", "Sequences being decoded.")
        self.waiting = gauge("waiting_sequences", "Sequences waiting to be admitted.")
        # Ratios are for routers and autoscalers, which read gauges and divide none by another.
        self.slots = gauge("slots", "Sequences that can be decoded at a time.")
        self.saturation = gauge(
            "saturation_ratio", "Sequences that run and wait, of the slots; above 1 some wait."
        )
        self.pages_used = gauge("pages_used", "KV cache pages owned by live sequences.")
        self.pages_total = gauge("pages", "KV cache pages.")
        self.kv_cache_usage = gauge(
            "kv_cache_usage_ratio", "Share of the KV cache pages owned by live sequences, 0 to 1."
        )
        self.build = gauge(
            "build_info", "1, for what is running.", "version", "model", "target", "dtype"
        )
        self.drafter_attached = gauge("drafter_attached", "1 while a drafter is connected.")
        self.steps = counter("steps", "Forward passes of the target.")
        self.step_tokens = counter("step_tokens", "Tokens run through the target.")
        self.verifications = counter(
            "verifications",
            "Verifications of one sequence, those without drafted tokens included.",
        )
        self.canvases = counter("canvases", "Canvases of a diffusion target that were denoised.")
        self.denoising_steps = counter("denoising_steps", "Steps that denoised one canvas each.")
        self.output_tokens = counter("output_tokens", "Tokens generated.")
        self.drafts = counter(
            "drafts",
            "Drafts verified, of at least one token, by source: drafter, prompt_lookup, grammar.",
            "source",
        )
        self.drafted = counter("drafted_tokens", "Drafted tokens verified, by source.", "source")
        self.accepted = counter("accepted_tokens", "Drafted tokens accepted, by source.", "source")
        self.source_counts = {source: DraftCounts() for source in DraftSource}
        self.accepted_at = counter(
            "accepted_tokens_per_position",
            "Drafted tokens accepted, by source and position in the block, from 1.",
            *("source", "position"),
        )
        self.discarded = counter(
            "discarded_draft_tokens",
            "Drafted tokens that were not verified, as the grammar of the output forbids them.",
            "source",
        )
        for source in DraftSource:
            for metric in (self.drafts, self.drafted, self.accepted, self.discarded):
                metric.labels(source.value)
        self.repairs = counter(
            "sync_repairs",
            "Differences between the draft KV caches and the committed lengths, by cause.",
            "cause",
        )
        for cause in REPAIR_CAUSES:
            self.repairs.labels(cause)
        self.late_drafts = counter(
            "late_drafts",
            "Requests for drafts that were not answered in time; no sequence waited on.",
        )
        self.preemptions = counter("preemptions", "Sequences that gave their pages back.")
        self.cached_tokens = counter(
            "cached_prompt_tokens", "Prompt tokens whose computation was reused."
        )
        self.finished = counter("finished_sequences", "Sequences ended.", "reason")
        self.recompilations = counter(
            "recompilations", "Executables compiled after warm-up; anything but 0 is a defect."
        )
        self.numerics_classes = gauge(
            "numerics_classes",
            "Numerics classes of the served steps, by the self-test; 1 is exact.",
            "dtype",
        )
        self.padded_shapes = gauge(
            "padded_shapes",
            "Step shapes of another numerics class, which are padded to one that is served.",
        )
        self.step_seconds = new(
            Histogram,
            "step_seconds",
            "Time of a step by part: verify, draft, transport, host.",
            "part",
            buckets=STEP_BUCKETS,
        )
        requests = partial(new, Histogram, buckets=REQUEST_BUCKETS)
        self.queue_seconds = requests(
            "queue_seconds", "Time from arrival to the first step of a sequence."
        )
        self.prefill_seconds = requests(
            "prefill_seconds", "Time from the first step to the first token of a sequence."
        )

    def count_repair(self, cause: str) -> None:
        """Count one difference found by the accepted-token sync."""
        self.repairs.labels(cause).inc()

    def count_step_seconds(
        self, verify_seconds: float, times: DraftTimes, total_seconds: float
    ) -> None:
        """Count what one step took: the target, drafting before it, and all of it."""
        parts = {
            "verify": verify_seconds,
            "draft": times.draft,
            "transport": times.transport,
            "host": max(0.0, total_seconds - verify_seconds - times.waited),
        }
        for part, seconds in parts.items():
            self.step_seconds.labels(part).observe(seconds)

    def count_step(self, progress: list[SequenceProgress]) -> None:
        """Count one step and what it gained."""
        self.steps.inc()
        self.step_tokens.inc(sum(len(change.row.token_ids) for change in progress))
        self.output_tokens.inc(sum(len(change.new_tokens) for change in progress))
        # The step that ends a prompt gains a token too, but verifies nothing.
        verified = [c for c in progress if c.row.start >= len(c.row.sequence.request.prompt)]
        denoised = [change for change in progress if change.row.canvas_count]
        if denoised:
            verified = []
            self.denoising_steps.inc(len(denoised))
            self.canvases.inc(sum(bool(change.new_tokens) for change in denoised))
        self.verifications.inc(len(verified))
        drafts: Counter[DraftSource] = Counter()
        drafted: Counter[DraftSource] = Counter()
        accepted: Counter[tuple[DraftSource, int]] = Counter()
        for change in verified:
            sources = change.row.sources
            drafts.update(set(sources))
            drafted.update(sources)
            accepted.update(zip(sources[: change.accepted], itertools.count(1)))
            self.discarded.labels(change.row.source.value).inc(change.row.discarded)
        for source, count in drafts.items():
            self.drafts.labels(source.value).inc(count)
            self.drafted.labels(source.value).inc(drafted[source])
            counts = self.source_counts[source]
            counts.drafts += count
            counts.drafted += drafted[source]
        for (source, position), count in accepted.items():
            self.accepted.labels(source.value).inc(count)
            self.accepted_at.labels(source.value, str(position)).inc(count)
            self.source_counts[source].accept(position - 1, count)

    def count_finished(self, sequence: TokenSequence) -> None:
        """Count a sequence that ended by itself."""
        usage = sequence.usage
        reason = sequence.finish_reason.value if sequence.finish_reason is not None else "none"
        self.finished.labels(reason).inc()
        self.cached_tokens.inc(usage.cached_prompt_tokens)
        if usage.first_step_time is not None and usage.first_token_time is not None:
            self.queue_seconds.observe(usage.first_step_time - sequence.arrival_time)
            self.prefill_seconds.observe(usage.first_token_time - usage.first_step_time)

    def publish_exactness(self, exactness: Exactness) -> None:
        """Publish the result of the self-test."""
        self.numerics_classes.labels(exactness.dtype).set(len(exactness.classes))
        self.padded_shapes.set(len(exactness.padded))

    def publish_load(self, load: Load, *, attached: bool) -> None:
        """Publish the present load."""
        self.running.set(load.running)
        self.waiting.set(load.waiting)
        self.slots.set(load.slots)
        self.saturation.set((load.running + load.waiting) / load.slots)
        self.pages_used.set(load.used_pages)
        self.pages_total.set(load.total_pages)
        self.kv_cache_usage.set(load.used_pages / load.total_pages)
        self.drafter_attached.set(attached)
