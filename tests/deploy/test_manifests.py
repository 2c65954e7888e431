"""The manifests render, fit the schemas of their kinds, and name nothing that is not there."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.deploy.pod_manifests import SPLIT, pods, selects, told
from tests.deploy.tools import COMPONENTS, DEPLOY, OVERLAYS, Manifest, made_of, registered, run
from tests.docs.pages import blocks

from blockdraft_server.supervise.plan import ServeSettings

pytestmark = pytest.mark.deploy
# The oldest that is still offered and the newest that there are schemas of.
KUBERNETES = ("1.33", "1.37")
SCHEMAS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "schemas.yaml").read_text())
SIDECAR_CACHE = "gke-gcsfuse-cache"
# Each component on its own, on an overlay that has none of them; and several.
SUBJECTS = (
    *OVERLAYS,
    *(f"cpu-dev {name}" for name in COMPONENTS),
    *(SPLIT, "gke-v6e-drafter split", "gke-multihost openai", "gke-split weights-hub"),
    "gke-v6e dra weights-hub compute-class",
)
# Kinds that the oldest version does not have yet.
LATER = {"resource.k8s.io/v1 ResourceClaimTemplate"}


@pytest.fixture(params=SUBJECTS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return made_of(request.param)


def kind(manifest: Manifest) -> str:
    return f"{manifest['apiVersion']} {manifest['kind']}"


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no fields but those it lists."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if schema.get("type") == "object" else inner


@pytest.mark.parametrize("version", KUBERNETES)
def test_built_in_kinds_are_valid(version: str, tmp_path: Path) -> None:
    count = 0
    for number, subject in enumerate(SUBJECTS):
        manifests = made_of(subject)
        later = LATER if version == KUBERNETES[0] else set()
        known = [one for one in manifests if kind(one) not in {*SCHEMAS, *later}]
        known += pods(manifests)
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump_all(known))
        count += len(known)
    files = tmp_path.glob("*.yaml")
    said = run("kubernetes-validate", "--strict", "-k", version, *files)
    assert "WARN" not in said, said
    assert said.count("INFO") == count


def test_custom_kinds_fit_their_schemas(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if schema := SCHEMAS.get(kind(manifest)):
            Draft202012Validator(closed(schema)).validate(manifest["spec"])


def test_everything_is_in_the_namespace(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["kind"] not in ("Namespace", "PersistentVolume"):
            assert manifest["metadata"]["namespace"] == "blockdraft", kind(manifest)


def test_flags_and_variables_are_settings_that_the_command_takes(
    manifests: list[Manifest],
) -> None:
    for pod in pods(manifests):
        settings = told(pod, manifests)
        if not isinstance(settings, ServeSettings):
            role = pod["spec"]["containers"][0]["args"][0]
            ports = {"server": 50051, "drafter": 50053}
            assert settings.process.address == f"0.0.0.0:{ports[role]}"
        elif settings.no_server:
            assert settings.verifier.peer_address == "0.0.0.0:50052"
        else:
            assert settings.server.process.address == "0.0.0.0:50051"


def test_references_are_to_what_is_there(manifests: list[Manifest]) -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in manifests}
    labels = [pod["metadata"]["labels"] for pod in pods(manifests)]
    for pod in pods(manifests):
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in names
        for source in container["envFrom"]:
            assert ("ConfigMap", source["configMapRef"]["name"]) in names
        for volume in spec["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in names
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        # That of the sidecar which mounts buckets.
        assert mounted == {volume["name"] for volume in spec["volumes"]} - {SIDECAR_CACHE}
        for claim in spec.get("resourceClaims", []):
            assert ("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) in names
        ports = {port["containerPort"] for port in container["ports"]}
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            for how in ("grpc", "tcpSocket"):
                if found := container.get(name, {}).get(how):
                    assert found["port"] in ports
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if target := spec.get("scaleTargetRef"):
            assert (target.get("kind", "Deployment"), target["name"]) in names
        if name := spec.get("serviceName"):
            assert ("Service", name) in names
        if manifest["kind"] in ("Service", "PodMonitoring"):
            assert any(selects(spec["selector"], one) for one in labels)


def test_pods_are_restricted(manifests: list[Manifest]) -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards, which the namespace asks.
    for pod in pods(manifests):
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        kinds = {key for volume in spec["volumes"] for key in volume} - {"name"}
        assert kinds <= {"emptyDir", "csi", "persistentVolumeClaim", "secret"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_a_verifier_that_is_away_restarts_no_pod(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        [container] = pod["spec"]["containers"]
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        ports = {"front": 50051, "verifier": 50052, "drafter": 50053}
        alive = {"port": ports[component]} if component in ports else None
        assert container.get("livenessProbe", {}).get("tcpSocket") == alive
        assert "startupProbe" in container


def test_pods_stop_within_their_grace_period(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        settings = told(pod, manifests)
        # Server, verifier and drafter end one after the other.
        one_alone = not isinstance(settings, ServeSettings)
        process = settings.process if one_alone else settings.verifier.process
        drain, stages = process.drain_seconds, 1 if one_alone else 3
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        wait = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if "cloud.google.com/gke-spot" in spec.get("nodeSelector", {}):
            # What the node leaves a pod; the processes that drain are killed at the end.
            assert wait + drain < spec["terminationGracePeriodSeconds"] <= 15
        else:
            assert wait + stages * (drain + 10) + 15 <= spec["terminationGracePeriodSeconds"]


def test_pods_use_all_chips_of_the_nodes_they_select(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        selector = pod["spec"].get("nodeSelector", {})
        topology = selector.get("cloud.google.com/gke-tpu-topology")
        resources = pod["spec"]["containers"][0]["resources"]
        if topology is None or "claims" in resources:
            assert "google.com/tpu" not in resources["limits"]
            continue
        chips = 1
        for size in re.findall(r"\d+", topology):
            chips *= int(size)
        hosts = next(
            (m["spec"]["leaderWorkerTemplate"]["size"] for m in manifests if "Leader" in m["kind"]),
            1,
        )
        assert resources["limits"]["google.com/tpu"] == str(chips // hosts)
        assert resources["requests"]["google.com/tpu"] == str(chips // hosts)


def test_a_claim_is_for_all_chips_of_a_node() -> None:
    [template] = [m for m in made_of("gke-v6e dra") if m["kind"] == "ResourceClaimTemplate"]
    [request] = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "tpu.google.com", "allocationMode": "All"}
    [pod] = pods(made_of("gke-v6e dra"))
    [claim] = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]


def test_a_class_of_nodes_has_the_nodes_that_its_overlay_selects() -> None:
    folder = DEPLOY / "k8s" / "components" / "compute-class"
    made = yaml.safe_load((folder / "computeclass.yaml").read_text())
    Draft202012Validator(closed(SCHEMAS[kind(made)])).validate(made["spec"])
    [pod] = pods(made_of("gke-v6e compute-class"))
    selector = pod["spec"]["nodeSelector"]
    assert selector["cloud.google.com/compute-class"] == made["metadata"]["name"]
    for rule in made["spec"]["priorities"]:
        assert rule["tpu"] == {
            "type": selector["cloud.google.com/gke-tpu-accelerator"],
            "topology": selector["cloud.google.com/gke-tpu-topology"],
            "count": int(selector["cloud.google.com/gke-accelerator-count"]),
        }


def test_parallel_downloads_have_a_cache_in_memory(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        options = [
            one["csi"]["volumeAttributes"]["mountOptions"]
            for one in volumes.values()
            if one.get("csi", {}).get("driver") == "gcsfuse.csi.storage.gke.io"
        ]
        # Without a file cache, gcsfuse downloads nothing in parallel.
        parallel = [one for one in options if "file-cache:enable-parallel-downloads:true" in one]
        assert all("file-cache:max-size-mb:-1" in one for one in parallel)
        cache = volumes.get(SIDECAR_CACHE)
        assert (cache is not None) == bool(parallel)
        assert cache is None or cache["emptyDir"] == {"medium": "Memory"}


@pytest.mark.parametrize("subject", ["gke-v6e-drafter weights-hub", "gke-split weights-hub"])
def test_a_hub_takes_the_place_of_the_bucket_of_weights(subject: str) -> None:
    for pod in pods(made_of(subject)):
        [container] = pod["spec"]["containers"]
        assert "weights" not in {volume["name"] for volume in pod["spec"]["volumes"]}
        [token] = [one for one in container["env"] if one["name"] == "HF_TOKEN"]
        assert token["valueFrom"]["secretKeyRef"]["name"] == "blockdraft-hub"


def test_the_leader_worker_set_keeps_what_kustomize_would_drop() -> None:
    folder = DEPLOY / "k8s" / "overlays" / "gke-multihost"
    written = yaml.safe_load((folder / "leaderworkerset.yaml").read_text())
    [made] = [one for one in made_of("gke-multihost") if one["kind"] == "LeaderWorkerSet"]
    assert made["spec"]["replicas"] == written["spec"]["replicas"]
    assert made["spec"]["leaderWorkerTemplate"]["size"] == 2
    before, after = pods([written]), pods([made])
    assert len(before) == len(after) == 2
    for old, new in zip(before, after, strict=True):
        [wanted], [container] = old["spec"]["containers"], new["spec"]["containers"]
        assert container["image"] == "blockdraft:tpu"
        assert container["args"] == wanted["args"]
        assert container["volumeMounts"] == wanted["volumeMounts"]


def test_the_overlay_that_the_documentation_shows(tmp_path: Path) -> None:
    [shown] = [one.text for one in blocks("yaml") if one.page == "docs/deploy-gke.md"]
    overlays = os.path.relpath(DEPLOY / "k8s" / "overlays", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(shown.replace("OVERLAYS", overlays))
    made = list(yaml.safe_load_all(run("kubectl", "kustomize", tmp_path)))
    [settings] = [one["data"] for one in made if one["kind"] == "ConfigMap"]
    assert settings["BLOCKDRAFT_SERVE_MAX_SEQUENCES"] == "32"
    [pod] = pods(made)
    assert pod["spec"]["containers"][0]["image"].endswith("/blockdraft/tpu@sha256:" + 64 * "0")
    buckets = {
        one["name"]: one["csi"]["volumeAttributes"]
        for one in pod["spec"]["volumes"]
        if "csi" in one
    }
    assert {name: one["bucketName"] for name, one in buckets.items()} == {
        "weights": "WEIGHTS",
        "compiled": "CACHE",
    }
    assert all("mountOptions" in one for one in buckets.values())


def test_autoscalers_know_no_number_of_slots() -> None:
    def only(component: str, wanted: str) -> Manifest:
        [found] = [one for one in made_of(f"cpu-dev {component}") if one["kind"] == wanted]
        return dict(found["spec"])

    wanted = {
        "blockdraft_verifier_saturation_ratio": 0.8,
        "blockdraft_verifier_waiting_sequences": 1.0,
    }
    assert set(wanted) <= registered()
    triggers = [one["metadata"] for one in only("autoscaling-keda", "ScaledObject")["triggers"]]
    queries = {name: f'sum({name}{{namespace="blockdraft"}})' for name in wanted}
    assert {one["query"]: float(one["threshold"]) for one in triggers} == {
        queries[name]: value for name, value in wanted.items()
    }
    [pod] = [one["pod"] for one in only("autoscaling-gke", "AutoscalingMetric")["metrics"]]
    [container] = pod["containers"]
    gauges = [one["gauge"] for one in container["metrics"]]
    exported = {one["prometheusMetricName"]: one["name"] for one in gauges}
    for component, names in (
        ("autoscaling-gke", [f"autoscaling.gke.io|blockdraft|{exported[one]}" for one in wanted]),
        ("autoscaling-adapter", [f"prometheus.googleapis.com|{one}|gauge" for one in wanted]),
    ):
        targets = [one["pods"] for one in only(component, "HorizontalPodAutoscaler")["metrics"]]
        assert [one["metric"]["name"] for one in targets] == names
        assert [one["target"]["averageValue"] for one in targets] == ["800m", "1"]


def test_checkov_finds_nothing(tmp_path: Path) -> None:
    for name in OVERLAYS:
        made = made_of(name)
        known = [one for one in made if kind(one) not in SCHEMAS]
        # checkov knows no LeaderWorkerSet, but pods.
        more = [] if pods(known) else pods(made)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all([*known, *more]))
    config = Path(__file__).parent / "checkov.yaml"
    said = run("checkov", "--config-file", config, "--output", "json", "--directory", tmp_path)
    [summary] = re.findall(r'"passed": (\d+)', said)
    assert int(summary) > 100


@pytest.mark.parametrize(("subject", "surge"), [("gke-v6e", 0), ("gke-v6e surge", 1)])
def test_a_new_pod_comes_first_where_there_is_a_spare_node(subject: str, surge: int) -> None:
    [deployment] = [one for one in made_of(subject) if one["kind"] == "Deployment"]
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (surge, 1 - surge)
