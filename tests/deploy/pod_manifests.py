"""The pods that manifests make, and the settings that their commands get."""

from typing import Any

from tests.deploy.tools import Manifest, variables

from blockdraft_drafter.command import CONFIGURATION as DRAFTER
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_server.command import CONFIGURATION as SERVER
from blockdraft_server.supervise.command import CONFIGURATION as SERVE

ROLES = ("leader", "worker")
LIBRARY_VARIABLES = {"JAX_PLATFORMS"}
COMMANDS: dict[str, Configuration[Any]] = {
    "serve": SERVE,
    "server": SERVER,
    "drafter": DRAFTER,
}
# Servers in pods of their own, with what is for servers, verifiers and all.
SPLIT = "cpu-dev spot gateway-tls autoscaling-gke autoscaling-keda split openai openai-gateway"


def pods(manifests: list[Manifest]) -> list[Manifest]:
    """Return every pod that the manifests make, as a manifest of its own."""
    found = []
    for manifest in manifests:
        spec = manifest.get("spec", {})
        group = spec.get("leaderWorkerTemplate", {})
        for template in (spec.get("template"), *(group.get(f"{x}Template") for x in ROLES)):
            if template is not None:
                name = {**template["metadata"], "name": "pod", "namespace": "blockdraft"}
                found.append({"apiVersion": "v1", "kind": "Pod", **template, "metadata": name})
    return found


def told(pod: Manifest, manifests: list[Manifest]) -> Any:
    """Return the settings that a pod's command has."""
    command, *flags = pod["spec"]["containers"][0]["args"]
    configuration, values = COMMANDS[command], variables(pod["spec"], manifests)
    ours = {name for name in values if name.startswith("BLOCKDRAFT_")}
    assert ours <= configuration.variables
    assert set(values) - ours <= LIBRARY_VARIABLES
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        assert name in configuration.settings
        # The values, too, are what the command takes.
        variable = f"BLOCKDRAFT_{command}_{name}".upper().replace("-", "_")
        assert variable not in values
        values[variable] = value or "true"
    return configuration.resolve({}, values)


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    """Return whether a selector, of either form, takes a pod with these labels."""
    rules = selector.get("matchExpressions", [])
    plain = {} if rules else selector.get("matchLabels", selector)
    return plain.items() <= labels.items() and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"] for rule in rules
    )


def one_of(manifests: list[Manifest], wanted: str, name: str) -> Manifest:
    [found] = [one for one in manifests if (one["kind"], one["metadata"]["name"]) == (wanted, name)]
    return found
