"""The state of the verifiers under vLLM's names of metrics, for those who read these."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from blockdraft_server.routing.pool import VerifierPool


class VllmMetrics(Collector):
    """Metrics of a model's healthy verifiers together; a drafted token is one of any source."""

    def __init__(self, name: str, pool: VerifierPool) -> None:
        """Read the pool at each scrape; `name` is that of the model."""
        self._name = name
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the load, and what became of drafts."""
        load = self._pool.load
        for name, value, words in (
            ("num_requests_running", load.running_sequences, "Sequences that run."),
            ("num_requests_waiting", load.waiting_sequences, "Sequences that wait."),
            (
                "kv_cache_usage_perc",
                load.used_pages / (load.total_pages or 1),
                "Share of the KV cache that is used, from 0 to 1.",
            ),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", words, labels=["model_name"])
            gauge.add_metric([self._name], value)
            yield gauge
        counts = [counts for drafting in self._pool.drafting for counts in drafting.sources]
        for name, count, words in (
            ("num_drafts", sum(c.drafts for c in counts), "Drafts verified."),
            ("num_draft_tokens", sum(c.drafted_tokens for c in counts), "Tokens drafted."),
            ("num_accepted_tokens", sum(c.accepted_tokens for c in counts), "Tokens accepted."),
        ):
            counter = CounterMetricFamily(f"vllm:spec_decode_{name}", words, labels=["model_name"])
            counter.add_metric([self._name], count)
            yield counter
        by_position = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens accepted, by position in the draft.",
            labels=["model_name", "position"],
        )
        depth = max((len(c.accepted_per_position) for c in counts), default=0)
        for position in range(depth):
            accepted = (c.accepted_per_position[position : position + 1] for c in counts)
            by_position.add_metric([self._name, str(position)], sum(map(sum, accepted)))
        yield by_position
