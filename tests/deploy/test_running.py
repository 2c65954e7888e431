"""What the manifests say is run for real, on this machine's CPU and as a kubelet would.

Here the overlay `gke-v5p` with the component `openai`, and Prometheus beside it; `gke-split` is in
test_split.py.
"""

import json
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.pod import (
    GRPC,
    LONG,
    Pod,
    blockdraft,
    check_draining,
    check_serving,
    running,
    small,
    translated,
    write_target,
)
from tests.deploy.tools import DEPLOY, queries, tool
from tests.patience import until
from tests.ports import free_ports

from blockdraft_client import Client

pytestmark = pytest.mark.deploy
OPENAI = "0.0.0.0:8000"
# What dashboards show that does not happen here: a TPU, failed requests, refused sequences, TLS,
# a drafter that learns, canvases.
NOT_HERE = (
    *("duty_cycle", "memory_used", "outcome!~", "refused_sequences"),
    *("tenant_limit", "tls_certificate", "drafter_version_verifications"),
    *("blockdraft_trainer", "version_changes", "verifier_canvases"),
)


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("pod")
    port = free_ports(5)
    here = {
        GRPC: f"127.0.0.1:{port + 3}",
        OPENAI: f"127.0.0.1:{port + 4}",
        "=9100": f"={port}",
        "/run/blockdraft": str(folder / "run"),
    }
    told = small(write_target(folder))
    with running("gke-v5p openai", "blockdraft", folder, here, **told) as pod:
        pod.until_started()
        yield pod


def test_the_pod_becomes_ready_and_serves(pod: Pod) -> None:
    check_serving(pod)


def test_the_pod_serves_openais_api(pod: Pod) -> None:
    until(partial(pod.probe, "readinessProbe"))
    with urllib.request.urlopen(f"http://{pod.here[OPENAI]}/v1/models", timeout=10) as response:
        [model] = json.load(response)["data"]
    assert model["id"] == "llama-3.1-8b-instruct"


def test_the_probe_of_followers_finds_a_verifier(pod: Pod) -> None:
    group = (DEPLOY / "k8s" / "overlays" / "gke-multihost" / "leaderworkerset.yaml").read_text()
    worker = yaml.safe_load(group)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    program, *flags = worker["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    assert program == "blockdraft"
    assert blockdraft(*translated(flags, pod.here))


@pytest.fixture
def prometheus(pod: Pod, tmp_path: Path) -> Iterator[str]:
    """Run Prometheus with the rules, and return its address."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    first = int(pod.here["=9100"].removeprefix("="))
    targets = [f"127.0.0.1:{first + offset}" for offset in range(3)]
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {
                "job_name": "blockdraft",
                "static_configs": [{"targets": targets, "labels": {"namespace": "blockdraft"}}],
            }
        ],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(1)}"
    command = [str(tool("prometheus")), f"--config.file={tmp_path / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            yield address
        finally:
            process.terminate()
            process.wait(30)


def answer(address: str, expression: str) -> list[Any]:
    """Return the series that a query has now."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=10) as response:
        return list(json.load(response)["data"]["result"])


def test_rules_and_dashboards_show_a_service_under_load(pod: Pod, prometheus: str) -> None:
    def scraped() -> bool:
        try:
            return len(answer(prometheus, "up == 1")) == 3
        except OSError:
            return False

    def steps() -> float:
        found = answer(prometheus, "sum(blockdraft_verifier_steps_total)")
        return float(found[0]["value"][1]) if found else 0.0

    def more_steps_than(before: float) -> bool:
        return steps() > before

    until(scraped)
    with Client(pod.here[GRPC], timeout=120) as client:
        client.generate("before", sampling=LONG)
        # Rates are of what happens between two scrapes.
        for number in range(3):
            before = steps()
            client.generate(f"ducks {number}", sampling=LONG)
            until(partial(more_steps_than, before))
        # What would start it again stands still until a scrape has shown that it is away.
        pod.process.send_signal(signal.SIGSTOP)
        try:
            pod.child("drafter").kill()
            client.generate("without", sampling=LONG)
            until(lambda: bool(answer(prometheus, "blockdraft_verifier_drafter_attached == 0")))
        finally:
            pod.process.send_signal(signal.SIGCONT)
        until(lambda: bool(answer(prometheus, "blockdraft_verifier_drafter_attached == 1")))
        client.generate("again", sampling=LONG)
    recorded = re.findall(r"record: (\S+)", (DEPLOY / "prometheus" / "rules.yaml").read_text())
    scaled = (DEPLOY / "k8s/components/autoscaling-keda/scaledobject.yaml").read_text()
    triggers = [one["metadata"]["query"] for one in yaml.safe_load(scaled)["spec"]["triggers"]]
    expressions = {one.expression for one in queries()} | {*recorded, *triggers}

    def empty() -> set[str]:
        return {one for one in expressions if not answer(prometheus, one)}

    until(lambda: empty() <= {one for one in expressions if any(map(one.count, NOT_HERE))})
    # Nobody is told of a drafter that was away for seconds.
    assert not answer(prometheus, 'ALERTS{alertstate="firing"}')


def test_an_outage_of_readiness_restarts_nothing_but_what_died(pod: Pod) -> None:
    server = pod.child("server").pid
    pod.child("verifier").kill()
    until(lambda: not pod.probe("readinessProbe"))
    assert pod.probe("livenessProbe")
    until(lambda: pod.probe("readinessProbe"))
    assert pod.process.poll() is None
    assert pod.child("server").pid == server


def test_the_pod_drains_within_its_grace_period(pod: Pod) -> None:
    check_draining(pod)
