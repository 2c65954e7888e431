"""The names of the metrics that the three processes expose."""

import re
from functools import cache

from prometheus_client import CollectorRegistry

from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_server.metrics import ServerMetrics
from blockdraft_verifier.engine.metrics import VerifierMetrics

_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


@cache
def registered() -> frozenset[str]:
    """Return every series name of the project's own metrics."""
    registry = CollectorRegistry()
    for metrics in (ServerMetrics, VerifierMetrics, DrafterMetrics, LearningMetrics):
        metrics(registry)
    return frozenset(
        family.name + suffix for family in registry.collect() for suffix in _SUFFIXES[family.type]
    )


def names_in(expression: str) -> set[str]:
    """Return the names of this project's metrics in a query."""
    return set(re.findall(r"blockdraft_(?:server|verifier|drafter)_\w+", expression))
