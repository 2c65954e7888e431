"""Chips by host and process; the environments are written out, for libtpu reads them."""

import dataclasses
import itertools
import re
from collections.abc import Mapping

import pytest

from blockdraft_runtime.tpu import (
    Bounds,
    ChipSplit,
    TpuHost,
    default_split,
    drafter_environment,
    fitting_splits,
    verifier_environment,
)

V5E_1 = TpuHost("v5litepod-1", (1, 1, 1))
V5E_4 = TpuHost("v5litepod-4", (2, 2, 1))
V5E_8 = TpuHost("v5litepod-8", (2, 4, 1))
V5P_8 = TpuHost("v5p-8", (2, 2, 1))
V6E_8 = TpuHost("v6e-8", (2, 4, 1))
HOSTS = (V5E_1, V5E_4, V5P_8, V5E_8, V6E_8)
NAMES = ("w-0.tpu", "w-1.tpu", "w-2.tpu", "w-3.tpu")
SLICE = TpuHost("v5litepod-16", (2, 2, 1), (2, 2, 1), 0, NAMES)
SLICE_REASON = r"slice of 4 hosts; .* another node. Fits: 16\+0"
V5P = {"TPU_ACCELERATOR_TYPE": "v5p-8"}


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


PORTS = ("8431", "8432", "8433", "8434")


@pytest.mark.parametrize(
    ("environ", "said", "host"),
    [
        ({}, None, None),
        ({"TPU_ACCELERATOR_TYPE": ""}, None, None),
        (V5P | {"JAX_PLATFORMS": "cpu"}, None, None),
        ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, None, None),
        (V5P | {"JAX_PLATFORMS": "tpu,cpu"}, None, V5P_8),
        (
            V5P | {"TPU_RUNTIME_METRICS_PORTS": ",".join(PORTS)},
            None,
            dataclasses.replace(V5P_8, metrics_ports=PORTS),
        ),
        (V5P | {"TPU_TOPOLOGY": "4x4", "JAX_PLATFORMS": "cpu"}, "v6e-8", V6E_8),
    ],
    ids=["none", "empty", "cpu", "no type", "among others", "metrics", "what the caller says wins"],
)
def test_which_host_it_is(
    environ: Mapping[str, str], said: str | None, host: TpuHost | None
) -> None:
    assert TpuHost.from_environment(environ, said) == host


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("v9-8", {}, "unknown TPU 'v9-8'"),
        ("v5p", {}, "unknown TPU 'v5p'"),
        ("v5p-0", {}, "unknown TPU 'v5p-0'"),
        ("v5p-7", {}, "must be even"),
        ("v5e-3", {}, "TPU_TOPOLOGY must say it"),
        ("v5e-8", {"TPU_TOPOLOGY": "2x2"}, "8 chips, but .* 2x2 has 4"),
        ("v5e-8", {"TPU_TOPOLOGY": "eight"}, "like 2x4 or 2x2x1"),
        ("v5e-9", {"TPU_TOPOLOGY": "3x3"}, "not made of hosts of 2x2x1"),
        ("v5litepod-16", {}, "has 4 hosts, but TPU_WORKER_HOSTNAMES names 1"),
        ("v5p-8", {"TPU_WORKER_HOSTNAMES": "a,b"}, "has 1 hosts, but TPU_WORKER_HOSTNAMES names 2"),
        ("v5p-8", {"TPU_WORKER_ID": "1"}, "TPU_WORKER_ID must be 0 to 0"),
        ("v5p-8", {"TPU_WORKER_ID": "x"}, "TPU_WORKER_ID is no number"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, more: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TpuHost.from_environment({"TPU_ACCELERATOR_TYPE": kind, **more})


def own_slice(chips: str, shape: str, port: int, *, part: bool = False) -> dict[str, str]:
    """Return the environment of a process that is a slice of its own, of a host or a part."""
    return ({"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"} if part else {}) | {
        "TPU_VISIBLE_CHIPS": chips,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": shape,
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": str(port),
        "CLOUD_TPU_TASK_ID": "0",
    }


@pytest.mark.parametrize(
    ("host", "split", "verifier", "drafter"),
    [
        (V5E_4, "2+2", ("0,1", "1,2,1"), ("2,3", "1,2,1")),
        (V5E_4, "2+1", ("0,1", "1,2,1"), ("2", "1,1,1")),
        (V5E_4, "1+1", ("0", "1,1,1"), ("1", "1,1,1")),
        (V5P_8, "1+2", ("0", "1,1,1"), ("2,3", "1,2,1")),
        (V5E_8, "4+4", ("0,1,2,3", "1,4,1"), ("4,5,6,7", "1,4,1")),
        (V5E_8, "4+1", ("0,1,2,3", "1,4,1"), ("4", "1,1,1")),
        (V6E_8, "4+2", ("0,1,2,3", "1,4,1"), ("4,5", "1,2,1")),
        (V6E_8, "2+4", ("0,1", "1,2,1"), ("4,5,6,7", "1,4,1")),
    ],
)
def test_two_processes_of_one_host(
    host: TpuHost, split: str, verifier: tuple[str, str], drafter: tuple[str, str]
) -> None:
    parsed = ChipSplit.parse(split)
    assert verifier_environment(host, parsed) == own_slice(*verifier, 8476, part=True)
    assert drafter_environment(host, parsed) == own_slice(*drafter, 8477, part=True)


@pytest.mark.parametrize(
    ("ports", "split", "verifier", "drafter"),
    [
        (PORTS, "2+2", "8431,8432", "8433,8434"),
        (PORTS, "1+2", "8431", "8433,8434"),
        (PORTS, "2+1", "8431,8432", "8433"),
        # Two for each chip, as of tpu7x.
        (tuple("abcdefgh"), "2+1", "a,b,c,d", "e,f"),
        # Not one for each chip: left alone.
        ((), "2+2", None, None),
        (("8431",), "2+2", None, None),
    ],
)
def test_each_process_has_the_metrics_ports_of_its_chips(
    ports: tuple[str, ...], split: str, verifier: str | None, drafter: str | None
) -> None:
    host, parsed = dataclasses.replace(V5P_8, metrics_ports=ports), ChipSplit.parse(split)
    name = "TPU_RUNTIME_METRICS_PORTS"
    assert verifier_environment(host, parsed).get(name) == verifier
    assert drafter_environment(host, parsed).get(name) == drafter


@pytest.mark.parametrize(
    ("host", "chips", "shape", "half"),
    [
        (V5E_1, "0", "1,1,1", None),
        (V5P_8, "0,1,2,3", "2,2,1", "2+2"),
        (V6E_8, "0,1,2,3,4,5,6,7", "2,4,1", "4+4"),
    ],
)
def test_by_default_each_has_half_and_the_verifier_alone_all(
    host: TpuHost, chips: str, shape: str, half: str | None
) -> None:
    split = default_split(host, drafting=False)
    assert split.drafter == 0
    assert verifier_environment(host, split) == own_slice(chips, shape, 8476)
    if half is not None:
        assert str(default_split(host, drafting=True)) == half


@pytest.mark.parametrize("worker_id", range(4))
def test_every_host_of_a_slice_belongs_to_the_verifier(worker_id: int) -> None:
    host = dataclasses.replace(SLICE, worker_id=worker_id)
    split = default_split(host, drafting=False)
    assert str(split) == "16+0"
    assert verifier_environment(host, split) == {
        "TPU_VISIBLE_CHIPS": "0,1,2,3",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_ADDRESSES": "w-0.tpu:8476,w-1.tpu:8476,w-2.tpu:8476,w-3.tpu:8476",
        "TPU_PROCESS_PORT": "8476",
        "CLOUD_TPU_TASK_ID": str(worker_id),
    }


@pytest.mark.parametrize("host", HOSTS)
def test_exactly_the_named_splits_fit_and_give_rectangles(host: TpuHost) -> None:
    named = set(fitting_splits(host))
    for verifier, drafter in itertools.product(range(1, 10), range(10)):
        split = ChipSplit(verifier, drafter)
        if split not in named:
            with pytest.raises(ValueError, match=f"cannot be split {verifier}\\+{drafter}"):
                verifier_environment(host, split)
            continue
        environments = [verifier_environment(host, split)]
        environments += [drafter_environment(host, split)] if drafter else []
        owned = [
            [int(chip) for chip in one["TPU_VISIBLE_CHIPS"].split(",")] for one in environments
        ]
        assert len({chip for chips in owned for chip in chips}) == verifier + drafter
        for chips in owned:
            assert set(chips) <= set(range(host.num_chips))
            # libtpu counts x fastest.
            columns = {chip % host.chips[0] for chip in chips}
            lines = {chip // host.chips[0] for chip in chips}
            assert len(columns) * len(lines) == len(chips)
            assert max(lines) - min(lines) + 1 == len(lines)


@pytest.mark.parametrize(
    ("host", "split", "reason"),
    [
        (V5E_1, "1+1", r"v5litepod-1 cannot be split 1\+1: .* only chip; decode plainly .*: 1\+0"),
        *((SLICE, split, SLICE_REASON) for split in ("8+8", "4+0", "2+2")),
    ],
)
def test_neither_one_chip_nor_the_hosts_of_a_slice_are_split(
    host: TpuHost, split: str, reason: str
) -> None:
    for environment in (verifier_environment, drafter_environment):
        with pytest.raises(ValueError, match=reason):
            environment(host, ChipSplit.parse(split))
    with pytest.raises(ValueError, match=reason):
        default_split(host, drafting=True)


def test_a_refusal_names_the_reason_and_what_fits() -> None:
    reason = (
        "v5p-8 cannot be split 3+1: each process needs 1, 2, 4 or 8 neighbouring chips of its own. "
        "Fits: 4+0, 2+2, 2+1, 2+0, 1+2, 1+1, 1+0"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        verifier_environment(V5P_8, ChipSplit(3, 1))
    with pytest.raises(ValueError, match=r"4\+0 leaves the drafter no chips"):
        drafter_environment(V5P_8, ChipSplit(4, 0))


@pytest.mark.parametrize("text", ["", "2", "2+", "+2", "2+2+2", "0+4", "-1+2", "2 + 2", "a+b"])
def test_what_is_no_split_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"written V\+D"):
        ChipSplit.parse(text)
