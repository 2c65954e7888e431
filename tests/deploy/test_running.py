"""What the manifests say is run for real, on this machine's CPU and as a kubelet would.

Command, variables, probes and grace period are those of the overlay `gke-v5p`. What a machine
without TPU and a target of a few kilobytes ask for is replaced: platform, split, paths, ports and
sizes. Sizes are those of tests/e2e/test_serve.py, whose compiled programs are found again.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml
from flax import nnx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.deploy.queries import DASHBOARDS, queries
from tests.deploy.tools import DEPLOY, ROOT, run, tool
from tests.e2e.ports import free_ports
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_client import AsyncClient, Client, SamplingParams
from blockdraft_models.decoder.model import Decoder

pytestmark = pytest.mark.deploy
# What dashboards show that does not happen here: a TPU, failed requests, refused sequences, TLS.
NOT_HERE = (
    *("duty_cycle", "memory_used", "outcome!~", "refused_sequences"),
    *("tenant_limit", "tls_certificate"),
)
LONG = SamplingParams(max_output_tokens=150, ignore_eos=True)
OUTAGE_SECONDS = 300.0


@dataclass
class Pod:
    """A running container.

    Attributes:
        spec: The pod's, as rendered.
        process: The container's first.
        port: Where the gRPC port of the container is on this machine.
        run_dir: Where its folder of sockets is on this machine.
    """

    spec: dict[str, Any]
    process: subprocess.Popen[bytes]
    port: int
    run_dir: Path

    @property
    def container(self) -> dict[str, Any]:
        return dict(self.spec["containers"][0])

    def probe(self, name: str) -> bool:
        """Return what a probe finds now."""
        probe, address = self.container[name], ("127.0.0.1", self.port)
        if "tcpSocket" in probe:
            with socket.socket() as connection:
                connection.settimeout(probe["timeoutSeconds"])
                return connection.connect_ex(address) == 0
        with grpc.insecure_channel(f"{address[0]}:{address[1]}") as channel:
            request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
                    request, timeout=probe["timeoutSeconds"]
                )
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def child(self, role: str) -> psutil.Process:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if f"blockdraft_{role}" in child.cmdline())


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    made = yaml.safe_load_all(run("kubectl", "kustomize", DEPLOY / "k8s" / "overlays" / "gke-v5p"))
    objects = {one["kind"]: one for one in made}
    spec = objects["Deployment"]["spec"]["template"]["spec"]
    folder = tmp_path_factory.mktemp("pod")
    config = tiny_config(num_layers=5)
    write_hf_checkpoint(Decoder(config, rngs=nnx.Rngs(0)), folder / "target")
    cache, port = ROOT / ".cache" / "serve-tests", free_ports(4)
    told = {f"BLOCKDRAFT_SERVE_{name}": value for name, value in SMALL.items()}
    environment = {
        **{name: value for name, value in os.environ.items() if "BLOCKDRAFT_SERVE" not in name},
        **objects["ConfigMap"]["data"],
        **told,
        "BLOCKDRAFT_CACHE": str(cache),
        "BLOCKDRAFT_SERVE_COMPILATION_CACHE": str(cache / "xla"),
        "BLOCKDRAFT_SERVE_TARGET": str(folder / "target"),
        "JAX_PLATFORMS": "cpu",
    }
    del environment["BLOCKDRAFT_SERVE_TPU_SPLIT"]
    command = " ".join(spec["containers"][0]["args"])
    for there, here in (
        ("0.0.0.0:50051", f"127.0.0.1:{port + 3}"),
        ("=9100", f"={port}"),
        ("/run/blockdraft", str(folder / "run")),
    ):
        assert command.count(there) == 1, command
        command = command.replace(there, here)
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "blockdraft_client", *command.split()], stderr=log, env=environment
    )
    pod = Pod(spec, process, port + 3, folder / "run")
    try:
        start_up = spec["containers"][0]["startupProbe"]
        until(
            lambda: pod.probe("startupProbe"),
            start_up["periodSeconds"] * start_up["failureThreshold"],
        )
        yield pod
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        log.close()
        print((folder / "log").read_text()[-5000:])


SMALL = {
    "DRAFTER": "random",
    "DRAFT_POLICY": "fixed",
    "DTYPE": "bfloat16",
    "MAX_SEQUENCES": "4",
    "MAX_STEP_TOKENS": "32",
    "MAX_CONTEXT_TOKENS": "256",
    "NUM_PAGES": "384",
    "PAGE_SIZE": "16",
}


def until(condition: Callable[[], bool], seconds: float = OUTAGE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_pod_becomes_ready_and_serves(pod: Pod) -> None:
    assert pod.probe("readinessProbe")
    assert pod.probe("livenessProbe")
    with Client(f"127.0.0.1:{pod.port}", timeout=120) as client:
        until(lambda: client.model().drafter is not None)
        assert client.model().name == "llama-3.1-8b-instruct"
        usage = client.generate("ducks", max_output_tokens=24, ignore_eos=True).usage
    assert usage.output_tokens == 24
    assert usage.drafted_tokens > 0


def test_the_probe_of_followers_finds_a_verifier(pod: Pod) -> None:
    group = (DEPLOY / "k8s" / "overlays" / "gke-multihost" / "leaderworkerset.yaml").read_text()
    worker = yaml.safe_load(group)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    program, *flags = worker["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    assert program == "blockdraft"
    here = [flag.replace("/run/blockdraft", str(pod.run_dir)) for flag in flags]
    subprocess.run([sys.executable, "-m", "blockdraft_client", *here], check=True, timeout=60)


@pytest.fixture
def prometheus(pod: Pod, tmp_path: Path) -> Iterator[str]:
    """Run Prometheus with the rules, and return its address."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    targets = [f"127.0.0.1:{pod.port - 3 + offset}" for offset in range(3)]
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "blockdraft", "static_configs": [{"targets": targets}]}],
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


def test_rules_and_dashboards_show_a_service_under_load(
    pod: Pod, prometheus: str, tmp_path: Path
) -> None:
    def scraped() -> bool:
        try:
            return len(answer(prometheus, "up == 1")) == 3
        except OSError:
            return False

    def steps() -> float:
        found = answer(prometheus, "sum(blockdraft_verifier_steps_total)")
        return float(found[0]["value"][1]) if found else 0.0

    until(scraped)
    with Client(f"127.0.0.1:{pod.port}", timeout=120) as client:
        client.generate("before", sampling=LONG)
        # Rates are of what happens between two scrapes.
        for number in range(3):
            before = steps()
            client.generate(f"ducks {number}", sampling=LONG)
            until(lambda before=before: steps() > before)  # type: ignore[misc]
        pod.child("drafter").kill()
        client.generate("without", sampling=LONG)
        until(lambda: bool(answer(prometheus, "blockdraft_verifier_drafter_attached == 0")))
        until(lambda: bool(answer(prometheus, "blockdraft_verifier_drafter_attached == 1")))
        client.generate("again", sampling=LONG)
    recorded = re.findall(r"record: (\S+)", (DEPLOY / "prometheus" / "rules.yaml").read_text())
    expressions = {one.expression for one in queries()} | set(recorded)

    def empty() -> set[str]:
        return {one for one in expressions if not answer(prometheus, one)}

    until(lambda: empty() <= {one for one in expressions if any(map(one.count, NOT_HERE))})
    # Nobody is told of a drafter that was away for seconds.
    assert not answer(prometheus, 'ALERTS{alertstate="firing"}')
    command = [sys.executable, str(DEPLOY / "grafana" / "draw.py"), f"http://{prometheus}"]
    command += [str(tmp_path / "images"), "--minutes", "1"]
    subprocess.run(command, check=True, timeout=120)
    images = {path.stem for path in (tmp_path / "images").glob("*.png")}
    assert images == set(DASHBOARDS)


def test_an_outage_of_readiness_restarts_nothing_but_what_died(pod: Pod) -> None:
    server = pod.child("server").pid
    pod.child("verifier").kill()
    until(lambda: not pod.probe("readinessProbe"))
    assert pod.probe("livenessProbe")
    until(lambda: pod.probe("readinessProbe"))
    assert pod.process.poll() is None
    assert pod.child("server").pid == server


def test_the_pod_drains_within_its_grace_period(pod: Pod) -> None:
    async def last_request() -> tuple[int, float]:
        async with AsyncClient(f"127.0.0.1:{pod.port}", timeout=120) as client:
            tokens = 0
            async for chunk in client.stream("the last ducks", sampling=LONG):
                if tokens == 0:
                    pod.process.send_signal(signal.SIGTERM)
                    stopped = time.monotonic()
                tokens += len(chunk.token_ids)
            return tokens, stopped

    until(lambda: pod.probe("readinessProbe"))
    tokens, stopped = asyncio.run(last_request())
    assert tokens == LONG.max_output_tokens
    grace = pod.spec["terminationGracePeriodSeconds"]
    wait = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod.process.wait(grace - wait - (time.monotonic() - stopped)) == 0
