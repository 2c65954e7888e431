"""The figures of docs/deploy-gke.md are those of the manifests."""

import re

import pytest
import yaml
from tests.deploy.tools import DEPLOY, WITH_CHIPS, Manifest, made_of
from tests.docs.pages import code, read, rows, section

from blockdraft_runtime.settings.process import parse_size

pytestmark = pytest.mark.deploy
PAGE = " ".join(read("docs/deploy-gke.md").split())
TABLE = {
    code(row[0])[0]: row
    for row in rows(section(read("docs/deploy-gke.md"), "A cluster and a node pool"), 4)
}
NODE = "cloud.google.com/gke-tpu-topology"


def templates(made: list[Manifest]) -> list[Manifest]:
    """Return the specs of pods of Deployments, StatefulSets and groups of hosts."""
    found = [one["spec"].get("template") for one in made if "template" in one.get("spec", {})]
    groups = [one["spec"]["leaderWorkerTemplate"] for one in made if "Leader" in one["kind"]]
    return [one["spec"] for one in (*found, *(group["leaderTemplate"] for group in groups))]


@pytest.mark.parametrize("name", WITH_CHIPS)
def test_machines_of_an_overlay(name: str) -> None:
    _, machines, topologies, _ = TABLE[name]
    with_chips = [one for one in templates(made_of(name)) if NODE in one.get("nodeSelector", {})]
    chips = [one["containers"][0]["resources"]["limits"]["google.com/tpu"] for one in with_chips]
    assert sorted(re.findall(r"-(\d)t`", machines)) == sorted(chips)
    selected = {one["nodeSelector"][NODE] for one in with_chips}
    assert set(re.findall(r"\d(?:x\d)+", topologies)) == selected


@pytest.mark.parametrize("name", ["gke-v5e", "gke-v5p", "gke-v6e", "gke-v6e-1", "gke-tpu7x"])
def test_the_kv_cache_of_an_overlay_fits(name: str) -> None:
    [spec] = templates(made_of(name))
    [settings] = [one["data"] for one in made_of(name) if one["kind"] == "ConfigMap"]
    generation, topology = name.split("-")[1], spec["nodeSelector"][NODE]
    table = rows(section(read("docs/deploy-gke.md"), "What fits"), 8)
    [free] = [
        row[4] for row in table if row[0] == f"{generation} {topology}" and "DFlash" in row[2]
    ]
    assert parse_size(settings["BLOCKDRAFT_SERVE_KV_CACHE_MEMORY"]) <= parse_size(free)
    assert settings["BLOCKDRAFT_SERVE_MAX_MODEL_LEN"] == "8192"


def test_times_and_sizes() -> None:
    [pod] = templates(made_of("gke-v6e"))
    [spot] = templates(made_of("gke-v6e spot"))
    probe = pod["containers"][0]["startupProbe"]
    minutes = probe["periodSeconds"] * probe["failureThreshold"] // 60
    [drain] = [
        one["data"]["BLOCKDRAFT_SERVE_DRAIN_TIMEOUT"]
        for one in made_of("gke-v6e spot")
        if one["kind"] == "ConfigMap"
    ]
    scaler, disk = (
        next(one["spec"] for one in made_of(subject) if one["kind"] == kind)
        for subject, kind in (
            ("cpu-dev split", "HorizontalPodAutoscaler"),
            ("cpu-dev learning", "PersistentVolumeClaim"),
        )
    )
    issued = [one["spec"] for one in made_of("gke-split") if one["kind"] == "Certificate"]
    days = {int(one["renewBefore"][:-1]) // 24 for one in issued if "renewBefore" in one}
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    published = str([one.get("ports") for one in compose["services"].values()])
    for words in (
        f"start-up probe fails after {minutes} minutes",
        f"a pod has {pod['terminationGracePeriodSeconds']} s to stop; "
        f"on spot nodes {spot['terminationGracePeriodSeconds']} s, and it drains for {drain}.",
        f"{scaler['minReplicas']} to {scaler['maxReplicas']} pods",
        f"a disk of {disk['resources']['requests']['storage'].removesuffix('Gi')} GiB",
        f"renew them {days.pop()} days before they end",
        f"runs as user {pod['securityContext']['runAsUser']}",
    ):
        assert words in PAGE, words
    assert not days
    for port in re.findall(r"at port (8000|3000)", PAGE):
        assert f"{port}:" in published
