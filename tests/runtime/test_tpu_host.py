from collections.abc import Mapping

import pytest

from blockdraft_runtime.tpu import Bounds, TpuHost, TpuHostError


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "hostnames", "chips", "hosts"),
    [
        ("v5litepod-1", "1x1", 1, (1, 1, 1), (1, 1, 1)),
        ("v5e-4", "2x2", 1, (2, 2, 1), (1, 1, 1)),
        ("v5litepod-8", "2x4", 1, (2, 4, 1), (1, 1, 1)),
        ("v5litepod-8", "2x4", 2, (2, 2, 1), (1, 2, 1)),
        ("v5litepod-16", "4x4", 4, (2, 2, 1), (2, 2, 1)),
        ("v5litepod-32", None, 8, (2, 2, 1), (2, 4, 1)),
        ("v6e-1", None, 1, (1, 1, 1), (1, 1, 1)),
        ("v6e-4", None, 1, (2, 2, 1), (1, 1, 1)),
        ("v6e-8", None, 1, (2, 4, 1), (1, 1, 1)),
        ("v5p-8", "2x2x1", 1, (2, 2, 1), (1, 1, 1)),
        ("v5p-16", None, 2, (2, 2, 1), (1, 1, 2)),
        ("v5p-32", "2x4x2", 4, (2, 2, 1), (1, 2, 2)),
        ("v4-8", None, 1, (2, 2, 1), (1, 1, 1)),
        ("tpu7x-8", "2x2x1", 1, (2, 2, 1), (1, 1, 1)),
        ("tpu7x-16", "2x2x2", 2, (2, 2, 1), (1, 1, 2)),
    ],
)
def test_the_environment_tells_chips_and_hosts(
    accelerator_type: str, topology: str | None, hostnames: int, chips: Bounds, hosts: Bounds
) -> None:
    names = tuple(f"h{index}" for index in range(hostnames))
    environ = {
        "TPU_ACCELERATOR_TYPE": accelerator_type,
        "TPU_WORKER_HOSTNAMES": ",".join(names),
        "TPU_WORKER_ID": str(hostnames - 1),
    }
    if topology is not None:
        environ["TPU_TOPOLOGY"] = topology
    host = TpuHost.from_environment(environ)
    assert host == TpuHost(accelerator_type, chips, hosts, hostnames - 1, names)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TPU_ACCELERATOR_TYPE": ""},
        {"TPU_ACCELERATOR_TYPE": "v5p-8", "JAX_PLATFORMS": "cpu"},
        {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"},
    ],
)
def test_without_a_tpu_there_is_no_host(environ: Mapping[str, str]) -> None:
    assert TpuHost.from_environment(environ) is None


def test_the_ports_of_the_chips_metrics_are_those_of_the_environment() -> None:
    environ = {"TPU_ACCELERATOR_TYPE": "v5p-8", "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434"}
    host = TpuHost.from_environment(environ)
    assert host is not None
    assert host.metrics_ports == ("8431", "8432", "8433", "8434")


def test_tpu_among_several_platforms_counts() -> None:
    environ = {"TPU_ACCELERATOR_TYPE": "v5p-8", "JAX_PLATFORMS": "tpu,cpu"}
    assert TpuHost.from_environment(environ) == TpuHost("v5p-8", (2, 2, 1))


def test_what_the_caller_says_wins() -> None:
    environ = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_TOPOLOGY": "4x4",
        "JAX_PLATFORMS": "cpu",
    }
    assert TpuHost.from_environment(environ, "v6e-8") == TpuHost("v6e-8", (2, 4, 1))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TPU_ACCELERATOR_TYPE": "v9-8"}, "unknown TPU 'v9-8'"),
        ({"TPU_ACCELERATOR_TYPE": "v5p"}, "unknown TPU 'v5p'"),
        ({"TPU_ACCELERATOR_TYPE": "v5p-0"}, "unknown TPU 'v5p-0'"),
        ({"TPU_ACCELERATOR_TYPE": "v5p-7"}, "must be even"),
        ({"TPU_ACCELERATOR_TYPE": "v5e-3"}, "TPU_TOPOLOGY must say it"),
        ({"TPU_ACCELERATOR_TYPE": "v5e-8", "TPU_TOPOLOGY": "2x2"}, "8 chips, but .* 2x2 has 4"),
        ({"TPU_ACCELERATOR_TYPE": "v5e-8", "TPU_TOPOLOGY": "eight"}, "like 2x4 or 2x2x1"),
        ({"TPU_ACCELERATOR_TYPE": "v5e-9", "TPU_TOPOLOGY": "3x3"}, "not made of hosts of 2x2x1"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-16"}, "has 4 hosts, but TPU_WORKER_HOSTNAMES names 1"),
        (
            {"TPU_ACCELERATOR_TYPE": "v5p-8", "TPU_WORKER_HOSTNAMES": "a,b"},
            "has 1 hosts, but TPU_WORKER_HOSTNAMES names 2",
        ),
        ({"TPU_ACCELERATOR_TYPE": "v5p-8", "TPU_WORKER_ID": "1"}, "TPU_WORKER_ID must be 0 to 0"),
        ({"TPU_ACCELERATOR_TYPE": "v5p-8", "TPU_WORKER_ID": "x"}, "TPU_WORKER_ID is no number"),
    ],
)
def test_what_makes_no_sense_is_refused(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(TpuHostError, match=message):
        TpuHost.from_environment(environ)
