"""The pool of pods and the configuration of its endpoint picker name what there is."""

import re
from typing import Any

import pytest
import yaml
from tests.deploy.pod_manifests import one_of, pods
from tests.deploy.tools import DEPLOY, OVERLAYS, Manifest, made_of, registered, rendered

from blockdraft_runtime.settings.verifier import EngineSettings

pytestmark = pytest.mark.deploy
FOLDER = DEPLOY / "k8s" / "components" / "inference-pool"
VALUES = yaml.safe_load((FOLDER / "picker.yaml").read_text())["router"]
CONFIGURATION = yaml.safe_load(
    VALUES["epp"]["pluginsCustomConfig"][VALUES["epp"]["pluginsConfigFile"]]
)
PLUGINS: dict[str, dict[str, Any]] = {
    one["type"]: one.get("parameters", {}) for one in CONFIGURATION["plugins"]
}


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return made_of("cpu-dev inference-pool")


def test_pool_and_picker_mean_the_port_of_the_pods(manifests: list[Manifest]) -> None:
    pool = one_of(manifests, "InferencePool", "blockdraft")["spec"]
    servers = VALUES["modelServers"]
    assert servers["matchLabels"] == pool["selector"]["matchLabels"]
    assert servers["targetPorts"] == pool["targetPorts"]
    [pod] = pods(manifests)
    assert pool["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    named = {one["name"]: one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
    assert pool["targetPorts"] == [{"number": named["grpc"]}]
    # What the pool says of the port, the service says too.
    [port] = [
        one
        for one in one_of(manifests, "Service", "blockdraft")["spec"]["ports"]
        if one["name"] == "grpc"
    ]
    assert pool["appProtocol"] == port["appProtocol"]
    assert PLUGINS["metrics-data-source"]["port"] == named["metrics-verify"]


def test_the_policy_lets_the_picker_read(manifests: list[Manifest]) -> None:
    pool = one_of(manifests, "InferencePool", "blockdraft")["spec"]
    policy = one_of(manifests, "NetworkPolicy", "blockdraft-picker")["spec"]
    assert policy["podSelector"] == pool["selector"]
    [rule] = policy["ingress"]
    assert rule["ports"] == [{"port": PLUGINS["metrics-data-source"]["port"]}]
    # The chart's label, for a release that makes no pool, has its service as value.
    [source] = rule["from"]
    assert source["podSelector"]["matchLabels"] == {
        "llm-d-router-standalone": pool["endpointPickerRef"]["name"]
    }
    assert VALUES["inferencePool"] == {"create": False}


def test_the_picker_reads_metrics_that_the_verifier_has() -> None:
    extractor = PLUGINS["core-metrics-extractor"]
    [engine] = extractor["engineConfigs"]
    assert engine["name"] == extractor["defaultEngine"]
    names = {value for key, value in engine.items() if re.fullmatch(r"\w+Spec", key)}
    assert len(names) == 3
    assert names <= {one for one in registered() if one.startswith("blockdraft_verifier_")}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_its_blocks_are_whole_pages(overlay: str) -> None:
    block = PLUGINS["approx-prefix-cache-producer"]["blockSizeTokens"]
    sizes = re.findall(r"_PAGE_SIZE: \"?(\d+)", rendered(overlay)) or [EngineSettings().page_size]
    assert all(block % int(size) == 0 for size in sizes)


def test_the_configuration_refers_to_its_plugins() -> None:
    [profile] = CONFIGURATION["schedulingProfiles"]
    parsers = CONFIGURATION["requestHandler"]["parsers"]
    assert {one["pluginRef"] for one in (*profile["plugins"], *parsers)} <= set(PLUGINS)
