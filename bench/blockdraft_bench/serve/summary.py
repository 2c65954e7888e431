"""The arithmetic of a load: percentiles, throughput, goodput, cost, and drafted against plain.

Pure functions of the requests' records, so that other limits or another price need no new run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blockdraft_bench.common.statistics import identical_share, mean, percentiles
from blockdraft_bench.serve.load_level import AtLevel, LoadLevel, Method, RunKey
from blockdraft_bench.serve.request_record import Records, RequestRecord
from blockdraft_bench.serve.settings import Limits


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles (linear between neighbours) and mean of what answers took, in seconds."""

    p50: float
    p95: float
    p99: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary(AtLevel):
    """One method at one level of load.

    Attributes:
        method: "drafted", "plain" or "learning".
        requests: Requests sent.
        failed: Those without a whole answer.
        errors: How many of those failed for each reason.
        duration_seconds: From when the first was due to the end of the last.
        output_tokens: Tokens of whole answers.
        output_tokens_per_second: They over the duration.
        ttft_seconds: From when a request was due to its first token.
        tpot_seconds: Per token after the first message, averaged over each answer.
        gap_seconds: Between neighbouring messages of an answer.
        latency_seconds: From when a request was due to its last token.
        slo_share: Share of all requests within both limits; None if there are none.
        goodput_requests_per_second: Those requests over the duration; None without limits.
        acceptance_length: Tokens gained per verification, over whole answers.
        cached_prompt_share: Share of prompt tokens that cost the service nothing.
        cost_per_million_tokens: Price of the time a million output tokens took.
    """

    method: Method
    requests: int
    failed: int
    errors: dict[str, int]
    duration_seconds: float
    output_tokens: int
    output_tokens_per_second: float
    ttft_seconds: Distribution | None
    tpot_seconds: Distribution | None
    latency_seconds: Distribution | None
    slo_share: float | None
    goodput_requests_per_second: float | None
    acceptance_length: float | None
    cached_prompt_share: float | None
    cost_per_million_tokens: float | None
    gap_seconds: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup(AtLevel):
    """Drafted against plain decoding at one level of load.

    Attributes:
        speedup: Output tokens per second with drafting over those without. In an open loop both
            follow the arrivals, and it says little below saturation.
        identical_share: Share of requests answered by both whose token ids are the same.
    """

    speedup: float | None
    identical_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOfLearning(AtLevel):
    """A service that learns against itself while its trainer stands still and nothing is recorded.

    Attributes:
        throughput: Output tokens per second, as a share of those without.
        gap_p99: 99th percentile of the time between messages, over that without.
        first_token_p99: The same of the time to the first token.
        identical_share: Share of requests answered by both whose token ids are the same.
        trainer_seconds: Processor time of the trainer meanwhile.
    """

    throughput: float | None
    gap_p99: float | None
    first_token_p99: float | None
    identical_share: float | None
    trainer_seconds: float


def summarize(
    level: LoadLevel, method: Method, records: Sequence[RequestRecord], limits: Limits
) -> LoadSummary:
    """Sum up one run of at least one request."""
    good = [record for record in records if record.succeeded]
    duration = max(r.ended for r in records) - min(r.scheduled for r in records)
    tokens = sum(len(record.token_ids) for record in good)
    rate = tokens / duration
    met = sum(map(limits.met_by, records))
    steps = sum(record.verification_steps for record in good)
    accepted = sum(record.accepted_tokens for record in good)
    prompt_tokens = sum(record.prompt_tokens for record in good)
    cached = sum(record.cached_prompt_tokens for record in good)
    return LoadSummary(
        mode=level.mode,
        load=level.value,
        method=method,
        requests=len(records),
        failed=len(records) - len(good),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        duration_seconds=duration,
        output_tokens=tokens,
        output_tokens_per_second=rate,
        ttft_seconds=distribution([record.ttft for record in good]),
        tpot_seconds=distribution([r.tpot for r in good if r.tpot is not None]),
        latency_seconds=distribution([record.latency for record in good]),
        slo_share=met / len(records) if limits.has_slo else None,
        goodput_requests_per_second=met / duration if limits.has_slo else None,
        acceptance_length=1 + accepted / steps if steps else None,
        cached_prompt_share=cached / prompt_tokens if prompt_tokens else None,
        cost_per_million_tokens=limits.cost_per_million_tokens(rate),
        gap_seconds=distribution([gap for record in good for gap in record.gaps]),
    )


def distribution(seconds: Sequence[float]) -> Distribution | None:
    """Return percentiles and mean; None of nothing."""
    average = mean(seconds)
    if average is None:
        return None
    p50, p95, p99 = percentiles(seconds, (50, 95, 99))
    return Distribution(p50, p95, p99, average)


def compare(
    level: LoadLevel, drafted: Sequence[RequestRecord], plain: Sequence[RequestRecord]
) -> Speedup:
    """Compare both methods at one level of load."""
    fast = summarize(level, "drafted", drafted, Limits()).output_tokens_per_second
    slow = summarize(level, "plain", plain, Limits()).output_tokens_per_second
    return Speedup(
        mode=level.mode,
        load=level.value,
        speedup=fast / slow if fast and slow else None,
        identical_share=_identical(drafted, plain),
    )


def _identical(ones: Sequence[RequestRecord], others: Sequence[RequestRecord]) -> float | None:
    """Return the share of equal answers; None if no request was answered twice."""
    by_request = {record.request: record.token_ids for record in others if record.succeeded}
    pairs = [
        (record.token_ids, by_request[record.request])
        for record in ones
        if record.succeeded and record.request in by_request
    ]
    return identical_share(pairs) if pairs else None


def speedups(runs: Mapping[RunKey, Records]) -> list[Speedup]:
    """Compare both methods wherever both ran."""
    return [
        compare(key.level, records.requests, runs[plain].requests)
        for key, records in runs.items()
        if key.method == "drafted" and (plain := replace(key, method="plain")) in runs
    ]


def cost_of_learning(level: LoadLevel, learning: Records, drafted: Records) -> CostOfLearning:
    """Compare a service that learns with one that does not, at one level of load."""
    beside = summarize(level, "learning", learning.requests, Limits())
    alone = summarize(level, "drafted", drafted.requests, Limits())

    def p99(ours: Distribution | None, theirs: Distribution | None) -> float | None:
        return ours.p99 / theirs.p99 if ours and theirs and theirs.p99 else None

    without = alone.output_tokens_per_second
    return CostOfLearning(
        mode=level.mode,
        load=level.value,
        throughput=beside.output_tokens_per_second / without if without else None,
        gap_p99=p99(beside.gap_seconds, alone.gap_seconds),
        first_token_p99=p99(beside.ttft_seconds, alone.ttft_seconds),
        identical_share=_identical(learning.requests, drafted.requests),
        trainer_seconds=learning.trainer_seconds or 0.0,
    )


def costs_of_learning(runs: Mapping[RunKey, Records]) -> list[CostOfLearning]:
    """Compare learning with drafting alone wherever both ran."""
    return [
        cost_of_learning(key.level, records, runs[without])
        for key, records in runs.items()
        if key.method == "learning" and (without := replace(key, method="drafted")) in runs
    ]
