"""A pod of a rendered overlay, run on this machine's CPU as a kubelet would run it.

Command, variables, probes and grace period are the overlay's. What a machine without TPU and a
target of a few kilobytes ask for is replaced: platform, split, paths, ports and sizes. Target and
sizes are those of tests/e2e/test_serve.py, whose compiled programs are found again.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.certificates import Authority
from tests.deploy.tools import ROOT, Manifest, made_of, variables
from tests.models.tiny import write_hf_checkpoint
from tests.patience import until
from tests.supervised import child_of
from tests.verifier.support import tiny_decoder

from blockdraft_client import Client, SamplingParams

GRPC = "0.0.0.0:50051"
LONG = SamplingParams(max_tokens=150, ignore_eos=True, temperature=1.0, seed=5)
SMALL = {
    "DRAFTER": "random",
    "DRAFT_POLICY": "fixed",
    "DTYPE": "bfloat16",
    "MAX_SEQUENCES": "4",
    "MAX_STEP_TOKENS": "16",
    "MAX_MODEL_LEN": "256",
    "PAGE_SIZE": "16",
}
# That of a KV cache which fills the memory of a TPU.
UNSET = ("BLOCKDRAFT_SERVE_KV_CACHE_MEMORY",)


@dataclass
class Pod:
    """A running container; `here` is what stands for its paths and addresses on this machine."""

    spec: Manifest
    process: subprocess.Popen[bytes]
    here: Mapping[str, str]
    log: Path

    @property
    def container(self) -> Manifest:
        return dict(self.spec["containers"][0])

    def probe(self, name: str) -> bool:
        """Return what a probe finds now."""
        probe = self.container[name]
        if "exec" in probe:
            program, *flags = probe["exec"]["command"]
            assert program == "blockdraft"
            return blockdraft(*translated(flags, self.here), timeout=probe["timeoutSeconds"])
        if "tcpSocket" in probe:
            host, _, port = self.here[f"0.0.0.0:{probe['tcpSocket']['port']}"].rpartition(":")
            with socket.socket() as connection:
                connection.settimeout(probe["timeoutSeconds"])
                return connection.connect_ex((host, int(port))) == 0
        with grpc.insecure_channel(self.here[f"0.0.0.0:{probe['grpc']['port']}"]) as channel:
            request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
                    request, timeout=probe["timeoutSeconds"]
                )
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def until_started(self) -> None:
        """Wait as long as the start-up probe does."""
        probe = self.container["startupProbe"]
        until(
            lambda: self.process.poll() is not None or self.probe("startupProbe"),
            probe["periodSeconds"] * probe["failureThreshold"],
        )
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def child(self, role: str) -> psutil.Process:
        return child_of(self.process.pid, role)


def check_serving(front: Pod, *behind: Pod, model: str = "llama-3.1-8b-instruct") -> None:
    """See that pods become ready, and that the first of them answers with drafts, as `model`."""
    for pod in (front, *behind):
        # Twice asked, since a server that hears nothing for seconds may take its verifier for away.
        until(partial(pod.probe, "readinessProbe"))
        assert pod.probe("livenessProbe")
    with Client(front.here[GRPC], timeout=120) as client:
        until(lambda: client.model().drafter is not None)
        assert client.model().name == model
        usage = client.generate("ducks", max_tokens=24, ignore_eos=True).usage
    assert usage.output_tokens == 24
    assert usage.drafted_tokens > 0


def check_draining(front: Pod, *behind: Pod) -> None:
    """Stop pods within an answer: it comes whole, and all end within their grace periods."""
    pods = (front, *behind)
    until(lambda: all(pod.probe("readinessProbe") for pod in pods))
    tokens, stopped = 0, 0.0
    with (
        Client(front.here[GRPC], timeout=120) as client,
        client.stream("the last ducks", sampling=LONG) as stream,
    ):
        for chunk in stream:
            if tokens == 0:
                stopped = time.monotonic()
                for pod in pods:
                    pod.process.send_signal(signal.SIGTERM)
            tokens += len(chunk.token_ids)
    assert tokens == LONG.max_tokens
    for pod in pods:
        before = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        left = pod.spec["terminationGracePeriodSeconds"] - before - (time.monotonic() - stopped)
        assert pod.process.wait(left) == 0


def blockdraft(*arguments: str, timeout: float = 60.0) -> bool:
    """Return whether a command ends well; what takes too long does not."""
    command = [sys.executable, "-m", "blockdraft", *arguments]
    try:
        done = subprocess.run(command, check=False, timeout=timeout, capture_output=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def translated(arguments: list[str], here: Mapping[str, str]) -> list[str]:
    """Return arguments with paths and addresses of this machine."""
    text = "\0".join(arguments)
    for there, found in here.items():
        text = text.replace(there, found)
    return text.split("\0")


def write_peer_files(authority: Authority, folder: Path, name: str) -> None:
    """Write what a secret of a peer holds, for a name of this machine."""
    folder.mkdir()
    issued = authority.issue(name)
    (folder / "tls.crt").write_bytes(issued.certificate)
    (folder / "tls.key").write_bytes(issued.key)
    (folder / "ca.crt").write_bytes(authority.certificate)


def write_target(folder: Path) -> Path:
    """Write a target of a few kilobytes."""
    target = folder / "target"
    write_hf_checkpoint(tiny_decoder(), target)
    return target


@contextlib.contextmanager
def running(
    subject: str, workload: str, folder: Path, here: Mapping[str, str], **told: str
) -> Iterator[Pod]:
    """Run the pod of a Deployment or StatefulSet while the context lasts; does not wait for it.

    `subject` is as for `rendered`. All paths and addresses in `here` must be among its arguments or
    probes. `told` is what its variables are instead, empty for none.
    """
    kinds = ("Deployment", "StatefulSet")
    [found] = [
        one
        for one in made_of(subject)
        if one["kind"] in kinds and one["metadata"]["name"] == workload
    ]
    spec = found["spec"]["template"]["spec"]
    arguments = spec["containers"][0]["args"]
    assert all(there in str(spec["containers"]) for there in here), arguments
    store = ROOT / ".cache" / "serve-tests"
    environment = {
        **{name: value for name, value in os.environ.items() if "BLOCKDRAFT_SERVE" not in name},
        **variables(spec, made_of(subject)),
        "BLOCKDRAFT_CACHE": str(store),
        "JAX_PLATFORMS": "cpu",
        **told,
    }
    environment = {name: value for name, value in environment.items() if value}
    command = [sys.executable, "-m", "blockdraft", *translated(arguments, here)]
    log = folder / f"{workload}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink, env=environment)
        try:
            yield Pod(spec, process, here, log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
            print(log.read_text()[-5000:])


def small(target: Path) -> dict[str, str]:
    """Return what `serve` is told for a small target on CPU, as variables."""
    cache = ROOT / ".cache" / "serve-tests" / "xla"
    sizes: dict[str, Any] = {**SMALL, "TARGET": target, "COMPILATION_CACHE": cache}
    told = {f"BLOCKDRAFT_SERVE_{name}": str(value) for name, value in sizes.items()}
    return {**told, **dict.fromkeys(UNSET, "")}
