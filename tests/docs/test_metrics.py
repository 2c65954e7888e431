"""docs/metrics.md lists the metrics of all processes, no more and no less."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from tests.deploy.tools import names_in
from tests.deploy.tools import registered as series
from tests.docs.pages import blocks, code, read, rows, section

from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_server.metrics import ServerMetrics
from blockdraft_training.online.metrics import TrainerMetrics
from blockdraft_verifier.engine.metrics import VerifierMetrics

PROCESSES: dict[str, Callable[[CollectorRegistry], Any]] = {
    "Server": ServerMetrics,
    "Verifier": VerifierMetrics,
    "Drafter": DrafterMetrics,
    "Learning": LearningMetrics,
    "Trainer": TrainerMetrics,
}
# The page says that names tell the type.
SUFFIX = {"counter": "_total", "gauge": "", "histogram": "_bucket"}


def registered(make: Callable[[CollectorRegistry], Any]) -> dict[str, set[str]]:
    """Return the labels of every metric by its exposed name."""
    registry = CollectorRegistry()
    make(registry)
    found = {}
    for collector in registry._collector_to_names:
        assert isinstance(collector, MetricWrapperBase)
        [family] = collector.collect()
        found[family.name + SUFFIX[family.type]] = set(collector._labelnames)
    return found


@pytest.mark.parametrize("process", PROCESSES)
def test_tables_list_what_is_registered(process: str) -> None:
    table = rows(section(read("docs/metrics.md"), process), 3)
    documented = {code(name)[0]: set(code(labels)) for name, labels, _ in table}
    assert documented == registered(PROCESSES[process])


def test_queries_use_names_that_exist() -> None:
    texts = [block.text for language in ("promql", "yaml") for block in blocks(language)]
    used = set().union(*map(names_in, texts))
    assert used
    assert used <= series()
