"""The overlay `cpu` run for real, as test_running.py runs that of a TPU."""

from collections.abc import Iterator

import pytest
from tests.deploy.pod import (
    GRPC,
    Pod,
    check_draining,
    check_serving,
    running,
    small,
    write_target,
)
from tests.deploy.pod_manifests import pods
from tests.deploy.tools import made_of
from tests.ports import free_ports

pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("cpu")
    port = free_ports(4)
    here = {
        GRPC: f"127.0.0.1:{port + 3}",
        "=9100": f"={port}",
        "/run/blockdraft": str(folder / "run"),
    }
    with running("cpu", "blockdraft", folder, here, **small(write_target(folder))) as pod:
        pod.until_started()
        yield pod


def test_the_pod_becomes_ready_and_serves(pod: Pod) -> None:
    check_serving(pod, model="target")


def test_the_pod_drains_within_its_grace_period(pod: Pod) -> None:
    check_draining(pod)


def test_it_needs_nothing_of_one_cloud() -> None:
    made = made_of("cpu monitoring-operator autoscaling-keda")
    for one in [*({"kind": each["apiVersion"]} for each in made), *pods(made)]:
        assert "google" not in str(one)
        assert "gke" not in str(one)
    [policy] = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443}
    assert not any("to" in rule for rule in policy["egress"])
