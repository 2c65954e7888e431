"""The metrics of a drafter; docs/metrics.md lists them."""

from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from blockdraft_protos.v1 import drafter_pb2

_PREFIX = "SEQUENCE_ERROR_CODE_"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class DrafterMetrics:
    """The metrics of one drafter process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create every metric on `registry`."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"blockdraft_drafter_{name}", text, labels, registry=registry)

        self._steps = counter("steps", "Draft requests answered.")
        self._drafts = counter("drafts", "Drafts with at least one drafted token.")
        self._tokens = counter("drafted_tokens", "Tokens drafted.")
        self._positions = counter("appended_positions", "Positions appended to draft KV caches.")
        self._refused = counter(
            "refused_sequences",
            "Sequences refused within a step, by reason; the verifier repairs each of them.",
            "code",
        )
        self.recompilations = counter(
            "recompilations", "Shapes compiled after warm-up; anything but 0 is a defect."
        )
        self.build = Gauge(
            "blockdraft_drafter_build_info",
            "1, for what is running.",
            ["version", "method", "fingerprint", "target"],
            registry=registry,
        )
        self.kv_cache_sequences = Gauge(
            "blockdraft_drafter_kv_cache_sequences",
            "Sequences that hold a slot of the draft KV cache.",
            registry=registry,
        )
        self._batch = Histogram(
            "blockdraft_drafter_step_sequences",
            "Sequences per request.",
            buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self._seconds = Histogram(
            "blockdraft_drafter_step_seconds",
            "Time of a step: compute is the forward pass, total is from arrival to departure.",
            ("phase",),
            buckets=_SECONDS,
            registry=registry,
        )
        # A series that appears with its first error cannot be alerted on before.
        for name, _ in drafter_pb2.SequenceErrorCode.items():
            if not name.endswith("_UNSPECIFIED"):
                self._refused.labels(code=_label(name))

    def observe(
        self, request: drafter_pb2.DraftRequest, response: drafter_pb2.DraftResponse
    ) -> None:
        """Count one answered step."""
        self._steps.inc()
        self._batch.observe(len(request.sequences))
        starts = {sequence.sequence_id: sequence.context_start for sequence in request.sequences}
        drafts = response.drafts
        self._positions.inc(
            sum(draft.context_length - starts[draft.sequence_id] for draft in drafts)
        )
        drafted = [len(draft.token_ids) for draft in drafts]
        self._tokens.inc(sum(drafted))
        self._drafts.inc(sum(count > 0 for count in drafted))
        for error in response.sequence_errors:
            name = drafter_pb2.SequenceErrorCode.Name(error.code)
            self._refused.labels(code=_label(name)).inc()
        timings = response.timings
        self._seconds.labels(phase="compute").observe(_seconds(timings.compute_time))
        self._seconds.labels(phase="total").observe(_seconds(timings.total_time))


def _label(name: str) -> str:
    return name.removeprefix(_PREFIX).lower()


def _seconds(duration: Duration) -> float:
    return float(duration.ToNanoseconds() * 1e-9)
