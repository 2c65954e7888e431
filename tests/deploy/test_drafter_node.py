"""The overlay `gke-v6e-drafter` run for real: the drafter as a pod apart, with certificates.

A name for which this machine has one address stands for the service's, `blockdraft-drafter`.
"""

import signal
from collections.abc import Iterator

import pytest
from tests.certificates import Authority
from tests.deploy.pod import (
    GRPC,
    LONG,
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

from blockdraft_client import Client

pytestmark = pytest.mark.deploy
DRAFT = "0.0.0.0:50053"
SHARED = ("TARGET", "DRAFTER", "DTYPE", "MAX_SEQUENCES", "MAX_MODEL_LEN", "COMPILATION_CACHE")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pod, Pod]]:
    """Yield the pods of server and verifier, and of the drafter."""
    folder, authority = tmp_path_factory.mktemp("nodes"), Authority("blockdraft-peer-authority")
    for role, name in (("verifier", "blockdraft-verifiers"), ("drafter", "localhost")):
        write_peer_files(authority, folder / role, name)
    target, port = write_target(folder), free_ports(6)
    serving = {
        GRPC: f"127.0.0.1:{port}",
        "=9100": f"={port + 1}",
        "/etc/blockdraft-peer": str(folder / "verifier"),
        "/run/blockdraft": str(folder),
    }
    drafting = {
        DRAFT: f"127.0.0.1:{port + 4}",
        "localhost:50053": f"localhost:{port + 4}",
        "=blockdraft-drafter": "=localhost",
        "=9102": f"={port + 5}",
        "/etc/blockdraft-peer": str(folder / "drafter"),
    }
    serve = small(target)
    drafter = {f"BLOCKDRAFT_DRAFTER_{name}": serve[f"BLOCKDRAFT_SERVE_{name}"] for name in SHARED}
    # The manifest's own value of it is `auto`.
    del serve["BLOCKDRAFT_SERVE_DRAFTER"]
    serve["BLOCKDRAFT_SERVE_DRAFTER_PLACEMENT"] = f"localhost:{port + 4}"
    overlay = "gke-v6e-drafter"
    with (
        running(overlay, "blockdraft-drafter", folder, drafting, **drafter) as apart,
        running(overlay, "blockdraft", folder, serving, **serve) as front,
    ):
        apart.until_started()
        front.until_started()
        yield front, apart


def test_the_pods_become_ready_and_serve(nodes: tuple[Pod, Pod]) -> None:
    check_serving(*nodes)
    with pytest.raises(StopIteration):
        nodes[0].child("drafter")


def test_who_shows_no_certificate_reaches_no_drafter(nodes: tuple[Pod, Pod]) -> None:
    address = nodes[1].here["localhost:50053"]
    assert not blockdraft("health", f"--address={address}", timeout=20)


def test_a_node_that_goes_away_takes_its_drafts_only(nodes: tuple[Pod, Pod]) -> None:
    front, apart = nodes
    grace = apart.spec["terminationGracePeriodSeconds"]
    with Client(front.here[GRPC], timeout=300) as client:
        undisturbed = client.generate("many ducks", sampling=LONG).token_ids
        with client.stream("many ducks", sampling=LONG) as stream:
            token_ids = list(next(stream).token_ids)
            apart.process.send_signal(signal.SIGTERM)
            for chunk in stream:
                token_ids += chunk.token_ids
        assert apart.process.wait(grace) == 0
        assert tuple(token_ids) == undisturbed
        until(lambda: client.model().drafter is None)
        assert client.generate("many ducks", sampling=LONG).token_ids == undisturbed
    assert front.probe("readinessProbe")


def test_the_pod_of_the_verifier_drains_without_it(nodes: tuple[Pod, Pod]) -> None:
    check_draining(nodes[0])
