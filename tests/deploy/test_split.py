"""The overlay `gke-split` run for real: servers and verifiers as pods apart, with certificates.

A pod of verifier and drafter, one of a server, as two groups of processes on this machine, and a
second verifier that comes and goes. A name for which this machine has one address stands for the
service's, `blockdraft-verifiers`, wherever the server looks it up itself.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.deploy.pod import (
    OUTAGE_SECONDS,
    Pod,
    blockdraft,
    running,
    small,
    until,
    write_target,
)
from tests.ports import free_ports
from tests.server.routing.test_places import FakeResolver
from tests.server.support import running_server, text_request, whole
from tests.server.support import until as until_async

from blockdraft_client import AsyncClient, Client, SamplingParams
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.settings.process import PeerTlsSettings
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_server.routing import places

pytestmark = pytest.mark.deploy
GRPC, PEER = "0.0.0.0:50051", "0.0.0.0:50052"
LONG = SamplingParams(max_output_tokens=150, ignore_eos=True, temperature=1.0, seed=5)


@dataclass
class Split:
    """Both pods, and what else a test wants to know of them.

    Attributes:
        tpu: Verifier and drafter.
        server: The server.
        port: Where verifiers listen.
        target: What they serve.
        certificates: Folder with one of those that the server shows.
    """

    tpu: Pod
    server: Pod
    port: int
    target: Path
    certificates: Path


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    folder = tmp_path_factory.mktemp("split")
    authority = Authority("blockdraft-peer-authority")
    # What the secrets hold, but for the verifiers' name.
    for role, name in (("verifier", "localhost"), ("server", "blockdraft-server")):
        files, issued = folder / role, authority.issue(name)
        files.mkdir()
        (files / "tls.crt").write_bytes(issued.certificate)
        (files / "tls.key").write_bytes(issued.key)
        (files / "ca.crt").write_bytes(authority.certificate)
    target, port = write_target(folder), free_ports(6)
    tpu = {
        PEER: f"0.0.0.0:{port}",
        "=9100": f"={port + 1}",
        "/etc/blockdraft-peer": str(folder / "verifier"),
        "/run/blockdraft": str(folder),
    }
    server = {
        "blockdraft-verifiers:50052": f"localhost:{port}",
        GRPC: f"127.0.0.1:{port + 4}",
        "=9100": f"={port + 5}",
        "/etc/blockdraft-peer": str(folder / "server"),
        "/run/blockdraft": str(folder),
    }
    front = {"BLOCKDRAFT_SERVER_TARGET": str(target)}
    with (
        running("gke-split", "blockdraft", folder, tpu, **small(target)) as back,
        running("gke-split", "blockdraft-server", folder, server, **front) as door,
    ):
        door.until_started()
        back.until_started()
        yield Split(back, door, port, target, folder / "server")


def test_the_pods_become_ready_and_serve(split: Split) -> None:
    for pod in (split.tpu, split.server):
        until(partial(pod.probe, "readinessProbe"))
        assert pod.probe("livenessProbe")
    # One is a group without server, the other is a server alone.
    with pytest.raises(StopIteration):
        split.tpu.child("server")
    until(lambda: "blockdraft verifies" in split.tpu.log.read_text())
    with Client(split.server.here[GRPC], timeout=120) as client:
        until(lambda: client.model().drafter is not None)
        assert client.model().name == "llama-3.1-8b-instruct"
        usage = client.generate("ducks", max_output_tokens=24, ignore_eos=True).usage
    assert usage.output_tokens == 24
    assert usage.drafted_tokens > 0


def test_who_shows_no_certificate_reaches_no_verifier(split: Split) -> None:
    assert not blockdraft("health", f"--target=localhost:{split.port}", timeout=20)


def test_a_verifier_that_is_killed_costs_no_answer_and_no_server(split: Split) -> None:
    async def ask(kill: bool) -> list[int]:
        async with AsyncClient(split.server.here[GRPC], timeout=OUTAGE_SECONDS) as client:
            token_ids: list[int] = []
            async for chunk in client.stream("many ducks", sampling=LONG):
                if kill and not token_ids:
                    split.tpu.child("verifier").kill()
                token_ids += chunk.token_ids
            return token_ids

    process = split.server.process.pid
    undisturbed = asyncio.run(ask(kill=False))
    assert asyncio.run(ask(kill=True)) == undisturbed
    assert len(undisturbed) == LONG.max_output_tokens
    assert split.tpu.process.poll() is split.server.process.poll() is None
    assert split.server.process.pid == process
    until(lambda: split.server.probe("readinessProbe"))
    until(lambda: split.tpu.probe("readinessProbe"))


@pytest.fixture
def second(split: Split, tmp_path: Path) -> Iterator[str]:
    """Run a second verifier, without a drafter, and return its address."""
    address, told = f"127.0.0.1:{free_ports(1)}", small(split.target)
    files = split.tpu.here["/etc/blockdraft-peer"]
    flags = [f"--listen={address}", "--drafter=none"]
    flags += [f"--peer-tls-{one}={files}/{two}" for one, two in PEER_FILES.items()]
    names = ["TARGET", "DTYPE", "MAX_SEQUENCES", "MAX_STEP_TOKENS", "MAX_CONTEXT_TOKENS"]
    names += ["NUM_PAGES", "PAGE_SIZE", "COMPILATION_CACHE"]
    flags += [f"--{x.lower().replace('_', '-')}={told[f'BLOCKDRAFT_SERVE_{x}']}" for x in names]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "blockdraft_verifier", *flags], stderr=log
        )
        try:
            yield address
        finally:
            process.terminate()
            process.wait(60)
            print((tmp_path / "log").read_text()[-3000:])


PEER_FILES = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}


async def test_a_verifier_that_comes_is_used_and_one_that_goes_ends_its_streams(
    split: Split, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(split.server.here[GRPC], timeout=OUTAGE_SECONDS) as client:
        # A verifier that was started again serves before it has its drafter back.
        until(lambda: client.model().drafter is not None)
    monkeypatch.setattr(places, "LOOK_UP_SECONDS", 0.6)
    tls = PeerTlsSettings(*(split.certificates / name for name in PEER_FILES.values()))
    first = f"127.0.0.1:{split.port}"
    resolver = FakeResolver(first)
    settings = ServerSettings(verifiers=(f"dns:///localhost:{split.port}",), peer_tls=tls)
    async with running_server(settings, look_up=resolver) as server:

        def known() -> dict[str, bool]:
            found = server.app.inspect()["verifiers"]
            assert isinstance(found, list)
            return {one["address"]: one["healthy"] for one in found}

        request = text_request("ducks", max_output_tokens=150, ignore_eos=True, seed=5)
        expected = await server.stub.Generate(whole(request))
        resolver.addresses = frozenset([first, second])
        await until_async(lambda: known() == {first: True, second: True}, OUTAGE_SECONDS)
        # Both are idle: it begins at the one that was there before.
        messages = aiter(server.stub.StreamGenerate(request))
        token_ids = list((await anext(messages)).token_ids)
        resolver.addresses = frozenset([second])
        last = None
        async for message in messages:
            token_ids += message.token_ids
            last = message
        assert token_ids == list(expected.token_ids)
        await until_async(lambda: known() == {second: True})
        again = await server.stub.Generate(whole(request))
        assert again.token_ids == expected.token_ids
        assert server.metric("replays_total") == 0
        assert last is not None
        # Only the first one has a drafter.
        assert [by_drafter(one.usage) > 0 for one in (expected, last, again)] == [True, True, False]


def by_drafter(usage: inference_pb2.Usage) -> int:
    return usage.drafted_tokens - usage.lookup_drafted_tokens


def test_the_pods_drain_within_their_grace_periods(split: Split) -> None:
    async def last_request() -> int:
        async with AsyncClient(split.server.here[GRPC], timeout=120) as client:
            tokens = 0
            async for chunk in client.stream("the last ducks", sampling=LONG):
                if tokens == 0:
                    for pod in (split.tpu, split.server):
                        pod.process.send_signal(signal.SIGTERM)
                tokens += len(chunk.token_ids)
            return tokens

    until(lambda: split.server.probe("readinessProbe"))
    assert asyncio.run(last_request()) == LONG.max_output_tokens
    stopped = time.monotonic()
    for pod in (split.tpu, split.server):
        grace = pod.spec["terminationGracePeriodSeconds"]
        assert pod.stops_within(grace - (time.monotonic() - stopped))
