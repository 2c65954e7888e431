"""The overlay `gke-split` run for real: servers and verifiers as pods apart, with certificates.

A pod of verifier and drafter, and one of a server, as two groups of processes on this machine. A
name for which this machine has one address stands for the service's, `blockdraft-verifiers`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.certificates import Authority
from tests.deploy.pod import (
    GRPC,
    Pod,
    blockdraft,
    check_draining,
    check_serving,
    running,
    small,
    write_peer_files,
    write_target,
)
from tests.patience import until
from tests.ports import free_ports

pytestmark = pytest.mark.deploy
PEER = "0.0.0.0:50052"


@dataclass
class Split:
    """Both pods, that of verifier and drafter listening on a port."""

    tpu: Pod
    server: Pod
    port: int


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    folder = tmp_path_factory.mktemp("split")
    authority = Authority("blockdraft-peer-authority")
    # What the secrets hold, but for the verifiers' name.
    for role, name in (("verifier", "localhost"), ("server", "blockdraft-server")):
        write_peer_files(authority, folder / role, name)
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
        running("gke-split", "blockdraft-server", folder, server, **front) as serving,
    ):
        serving.until_started()
        back.until_started()
        yield Split(back, serving, port)


def test_the_pods_become_ready_and_serve(split: Split) -> None:
    check_serving(split.server, split.tpu)
    # One is a group without server, the other is a server alone.
    with pytest.raises(StopIteration):
        split.tpu.child("server")
    until(lambda: "blockdraft verifies" in split.tpu.log.read_text())


def test_who_shows_no_certificate_reaches_no_verifier(split: Split) -> None:
    assert not blockdraft("health", f"--address=localhost:{split.port}", timeout=20)


def test_the_pods_drain_within_their_grace_periods(split: Split) -> None:
    check_draining(split.server, split.tpu)
