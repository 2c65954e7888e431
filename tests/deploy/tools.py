"""What tests of `deploy/` share: its programs, its manifests, its queries and the metrics.

`make test-deploy` installs the programs apart from the project.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.metrics import DrafterMetrics
from blockdraft_server.metrics import ServerMetrics
from blockdraft_training.online.metrics import TrainerMetrics
from blockdraft_verifier.engine.metrics import VerifierMetrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = tuple(sorted(path.name for path in (DEPLOY / "k8s" / "overlays").iterdir()))
WITH_CHIPS = tuple(name for name in OVERLAYS if not name.startswith("cpu"))
COMPONENTS = tuple(sorted(path.name for path in (DEPLOY / "k8s" / "components").iterdir()))
_BIN = Path(os.environ.get("BLOCKDRAFT_DEPLOY_TOOLS", ROOT / ".venv" / "deploy" / "bin"))
_PAGES = sorted((DEPLOY / "grafana").glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in _PAGES}
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

Manifest = dict[str, Any]


def tool(program: str) -> Path:
    """Return where a program is; without one of Prometheus's, the test is skipped."""
    path = _BIN / program
    if program in ("prometheus", "promtool") and not path.exists():
        pytest.skip(f"{path} is not there: apt could not fetch Debian's package prometheus")
    return path


def run(program: str, *arguments: str | Path) -> str:
    """Run a program, from the root; return what it printed. A failure fails the test."""
    done = subprocess.run(
        [str(tool(program)), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
    return done.stdout


@cache
def rendered(subject: str) -> str:
    """Return what kustomize makes of an overlay, and components after it with blanks between."""
    overlay, *components = subject.split()
    if not components:
        return run("kubectl", "kustomize", DEPLOY / "k8s" / "overlays" / overlay)
    with tempfile.TemporaryDirectory() as name:
        kustomization = {
            "namespace": "blockdraft",
            "resources": [os.path.relpath(DEPLOY / "k8s" / "overlays" / overlay, name)],
            "components": [
                os.path.relpath(DEPLOY / "k8s" / "components" / one, name) for one in components
            ],
        }
        (Path(name) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return run("kubectl", "kustomize", name)


def made_of(subject: str) -> list[Manifest]:
    """Return the same as manifests."""
    return list(yaml.safe_load_all(rendered(subject)))


def variables(spec: Manifest, manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return what a pod's container gets in its environment from ConfigMaps."""
    maps = {one["metadata"]["name"]: one["data"] for one in manifests if one["kind"] == "ConfigMap"}
    [container] = spec["containers"]
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        found |= maps[source["configMapRef"]["name"]]
    for one in container.get("env", []):
        if "value" in one:
            found[one["name"]] = one["value"]
            continue
        if "secretKeyRef" in one["valueFrom"]:
            continue
        key = one["valueFrom"]["configMapKeyRef"]
        values = maps[key["name"]]
        if key["key"] in values or not key.get("optional"):
            found[one["name"]] = values[key["key"]]
    return found


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
            title,
            expression.replace("$__rate_interval", "5m").replace("$instance", ".*"),
        )
        for name, dashboard in DASHBOARDS.items()
        for title, expression in (
            *((one["title"], each["expr"]) for one in panels(name) for each in one["targets"]),
            *((one["name"], one["expr"]) for one in dashboard["annotations"]["list"]),
        )
    ]


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard that show something."""
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


@cache
def registered() -> frozenset[str]:
    """Return every series name of the project's own metrics."""
    registry = CollectorRegistry()
    for metrics in (
        ServerMetrics,
        VerifierMetrics,
        DrafterMetrics,
        LearningMetrics,
        TrainerMetrics,
    ):
        metrics(registry)
    return frozenset(
        family.name + suffix for family in registry.collect() for suffix in _SUFFIXES[family.type]
    )


def names_in(expression: str) -> set[str]:
    """Return the names of this project's metrics in a query."""
    return set(re.findall(r"blockdraft_(?:server|verifier|drafter|trainer)_\w+", expression))
