"""Who owns which pod, who finds whom, and who reaches whom, by the manifests."""

import pytest
from tests.deploy.pod_manifests import SPLIT, one_of, pods, selects, told
from tests.deploy.tools import WITH_CHIPS, Manifest, made_of

from blockdraft_server.supervise.plan import ServeSettings

pytestmark = pytest.mark.deploy


@pytest.fixture(params=["gke-split", SPLIT])
def split(request: pytest.FixtureRequest) -> list[Manifest]:
    return made_of(request.param)


def test_every_pod_has_one_owner_one_budget_and_one_scaler(split: list[Manifest]) -> None:
    for pod in pods(split):
        labels = pod["metadata"]["labels"].items()
        for kinds in (("Deployment", "StatefulSet"), ("PodDisruptionBudget",)):
            selectors = [m["spec"]["selector"] for m in split if m["kind"] in kinds]
            assert sum(one["matchLabels"].items() <= labels for one in selectors) == 1
    scaled = [one["spec"]["scaleTargetRef"] for one in split if "Autoscaler" in one["kind"]]
    assert {(one["kind"], one["name"]) for one in scaled} >= {("Deployment", "blockdraft-server")}


def test_servers_find_verifiers_and_nobody_else_reaches_them(split: list[Manifest]) -> None:
    workload = one_of(split, "StatefulSet", "blockdraft")
    [verifier] = [pod for pod in pods([workload])]
    [server] = pods([one_of(split, "Deployment", "blockdraft-server")])
    service = one_of(split, "Service", workload["spec"]["serviceName"])
    front, back = told(server, split), told(verifier, split)
    port = int(back.verifier.peer_address.rpartition(":")[2])
    assert front.verifiers == (f"dns:///{service['metadata']['name']}:{port}",)
    assert (front.target, front.served_name) == (back.server.target, back.server.served_name)
    assert service["spec"]["clusterIP"] == "None"
    labels = verifier["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels
    assert not one_of(split, "Service", "blockdraft")["spec"]["selector"].items() <= labels
    policies = [one["spec"] for one in split if one["kind"] == "NetworkPolicy"]
    [mine] = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels]
    [[caller]] = [rule["from"] for rule in mine["ingress"] if {"port": port} in rule["ports"]]
    assert caller["podSelector"]["matchLabels"].items() <= server["metadata"]["labels"].items()
    assert caller["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "front"
    # By mutual TLS only.
    assert front.peer_tls is not None
    assert back.verifier.peer_tls is not None


@pytest.mark.parametrize("name", WITH_CHIPS)
def test_pods_with_chips_may_ask_the_device_plugin(name: str) -> None:
    made = made_of(name)
    policies = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    with_chips = [
        pod["metadata"]["labels"].items()
        for pod in pods(made)
        if "google.com/tpu" in pod["spec"]["containers"][0]["resources"]["limits"]
    ]
    assert with_chips
    for labels in with_chips:
        mine = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels]
        assert any({"ports": [{"port": 8353}]} in one["egress"] for one in mine)


@pytest.mark.parametrize("subject", ["cpu-dev openai", SPLIT, "gke-multihost openai"])
def test_who_may_call_by_grpc_may_call_by_openais_api(subject: str) -> None:
    made = made_of(subject)
    service = one_of(made, "Service", "blockdraft-openai")["spec"]
    [port], chosen = service["ports"], service["selector"].items()
    [pod] = [one for one in pods(made) if chosen <= one["metadata"]["labels"].items()]
    settings = told(pod, made)
    server = settings.server if isinstance(settings, ServeSettings) else settings
    [container] = pod["spec"]["containers"]
    [named] = [one for one in container["ports"] if one["name"] == port["targetPort"]]
    assert server.openai == f"0.0.0.0:{named['containerPort']}"
    for policy in (one["spec"] for one in made if one["kind"] == "NetworkPolicy"):
        for rule in policy["ingress"]:
            ports = rule.get("ports", [])
            assert ({"port": 50051} in ports) == ({"port": named["containerPort"]} in ports)


def test_the_load_balancer_passes_openais_paths_on() -> None:
    made = made_of(SPLIT)
    gateway = one_of(made, "HTTPRoute", "blockdraft")["spec"]["parentRefs"]
    route = one_of(made, "HTTPRoute", "blockdraft-openai")["spec"]
    assert route["parentRefs"] == gateway
    [rule] = route["rules"]
    # All else is gRPC.
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    [port] = one_of(made, "Service", "blockdraft-openai")["spec"]["ports"]
    assert rule["backendRefs"] == [{"name": "blockdraft-openai", "port": port["port"]}]
    check = one_of(made, "HealthCheckPolicy", "blockdraft-openai")["spec"]["default"]["config"]
    assert check["httpHealthCheck"] == {"port": port["port"], "requestPath": "/health"}


@pytest.mark.parametrize(
    ("name", "roles"),
    [("gke-split", {"verifier", "server"}), ("gke-v6e-drafter", {"verifier", "drafter"})],
)
def test_certificates_are_for_the_names_that_peers_look_up(name: str, roles: set[str]) -> None:
    made = made_of(name)
    issued = {
        one["spec"]["secretName"]: one["spec"] for one in made if one["kind"] == "Certificate"
    }
    mounted = {
        volume["secret"]["secretName"]
        for pod in pods(made)
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "peer-certificates"
    }
    assert mounted == {f"blockdraft-peer-{role}" for role in roles} <= set(issued)
    assert len({issued[secret]["issuerRef"]["name"] for secret in mounted}) == 1
    for role, service in (("verifier", "blockdraft-verifiers"), ("drafter", "blockdraft-drafter")):
        assert issued[f"blockdraft-peer-{role}"]["dnsNames"] == [service]
        assert "server auth" in issued[f"blockdraft-peer-{role}"]["usages"]
    for role in ("server", "verifier", "drafter"):
        assert "client auth" in issued[f"blockdraft-peer-{role}"]["usages"]


@pytest.mark.parametrize("subject", ["gke-v6e-drafter", "gke-v6e-drafter split"])
def test_verifiers_find_the_drafter_and_nobody_else_reaches_it(subject: str) -> None:
    made = made_of(subject)
    [drafter] = pods([one_of(made, "Deployment", "blockdraft-drafter")])
    kind = "StatefulSet" if "split" in subject else "Deployment"
    [verifier] = pods([one_of(made, kind, "blockdraft")])
    settings, drafting = told(verifier, made), told(drafter, made)
    service = one_of(made, "Service", "blockdraft-drafter")
    [port, _] = service["spec"]["ports"]
    assert settings.drafter_address == f"{service['metadata']['name']}:{port['port']}"
    # What is set for all holds for both, and the drafter's name only where it runs.
    assert drafting.target == settings.verifier.target
    assert drafting.drafter.endswith("-dflash")
    assert drafting.max_model_len == settings.verifier.cache.max_model_len
    assert drafting.compilation_cache == settings.verifier.compilation_cache
    assert drafting.peer_tls is not None
    assert settings.verifier.peer_tls is not None
    # One chip, beside all of a host.
    chips = [
        pod["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"]
        for pod in (verifier, drafter)
    ]
    assert chips == ["8", "1"]
    labels = drafter["metadata"]["labels"]
    owners = [
        one["metadata"]["name"]
        for one in made
        if one["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget", "Service")
        if selects(one["spec"]["selector"], labels)
    ]
    assert owners == ["blockdraft-drafter", "blockdraft-drafter"]
    policies = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    [mine] = [one for one in policies if selects(one["podSelector"], labels)]
    [[caller]] = [rule["from"] for rule in mine["ingress"] if {"port": 50053} in rule["ports"]]
    assert selects(caller["podSelector"], verifier["metadata"]["labels"])
    assert not selects(caller["podSelector"], labels)
    [way] = [
        rule
        for one in policies
        if selects(one["podSelector"], verifier["metadata"]["labels"])
        for rule in one.get("egress", [])
        if {"port": 50053} in rule["ports"]
    ]
    assert selects(way["to"][0]["podSelector"], labels)
