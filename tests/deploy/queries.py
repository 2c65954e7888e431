"""The queries of the checked-in dashboards."""

import json
from dataclasses import dataclass
from typing import Any

from tests.deploy.tools import DEPLOY

FILES = tuple(sorted((DEPLOY / "grafana").glob("*.json")))
DASHBOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FILES}


@dataclass(frozen=True)
class Query:
    """A query of a panel, ready for Prometheus."""

    dashboard: str
    panel: str
    expression: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expression}"


def queries() -> list[Query]:
    """Return all queries, with what Grafana puts in for variables."""
    return [
        Query(
            name,
            panel["title"],
            target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*"),
        )
        for name, dashboard in DASHBOARDS.items()
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
