"""The environments are written out: what libtpu reads is the interface."""

import dataclasses
import itertools

import pytest

from blockdraft_runtime.tpu import (
    ChipSplit,
    ChipSplitError,
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
NAMES = ("w-0.tpu", "w-1.tpu", "w-2.tpu", "w-3.tpu")


def own_slice(chips: str, shape: str, port: int) -> dict[str, str]:
    """Return the environment of a process that is a slice of its own."""
    return {
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
        (V5P_8, "2+2", ("0,1", "1,2,1"), ("2,3", "1,2,1")),
        (V5P_8, "1+2", ("0", "1,1,1"), ("2,3", "1,2,1")),
        (V5E_8, "4+4", ("0,1,2,3", "2,2,1"), ("4,5,6,7", "2,2,1")),
        (V5E_8, "4+1", ("0,1,2,3", "2,2,1"), ("4", "1,1,1")),
        (V6E_8, "4+2", ("0,1,2,3", "2,2,1"), ("4,5", "1,2,1")),
        (V6E_8, "2+4", ("0,1", "1,2,1"), ("4,5,6,7", "2,2,1")),
    ],
)
def test_two_processes_of_one_host(
    host: TpuHost, split: str, verifier: tuple[str, str], drafter: tuple[str, str]
) -> None:
    parsed = ChipSplit.parse(split)
    assert verifier_environment(host, parsed) == own_slice(*verifier, 8476)
    assert drafter_environment(host, parsed) == own_slice(*drafter, 8477)


@pytest.mark.parametrize(
    ("split", "verifier", "drafter"),
    [("2+2", "8431,8432", "8433,8434"), ("1+2", "8431", "8433,8434"), ("2+1", "8431,8432", "8433")],
)
def test_each_process_has_the_metrics_ports_of_its_chips(
    split: str, verifier: str, drafter: str
) -> None:
    host = dataclasses.replace(V5P_8, metrics_ports=("8431", "8432", "8433", "8434"))
    parsed = ChipSplit.parse(split)
    assert verifier_environment(host, parsed)["TPU_RUNTIME_METRICS_PORTS"] == verifier
    assert drafter_environment(host, parsed)["TPU_RUNTIME_METRICS_PORTS"] == drafter


@pytest.mark.parametrize("ports", [(), ("8431",)])
def test_ports_that_are_not_one_for_each_chip_are_left_alone(ports: tuple[str, ...]) -> None:
    host = dataclasses.replace(V5P_8, metrics_ports=ports)
    assert "TPU_RUNTIME_METRICS_PORTS" not in verifier_environment(host, ChipSplit(2, 2))


@pytest.mark.parametrize(
    ("host", "chips", "shape"),
    [
        (V5E_1, "0", "1,1,1"),
        (V5E_4, "0,1,2,3", "2,2,1"),
        (V5P_8, "0,1,2,3", "2,2,1"),
        (V5E_8, "0,1,2,3,4,5,6,7", "2,4,1"),
        (V6E_8, "0,1,2,3,4,5,6,7", "2,4,1"),
    ],
)
def test_the_verifier_alone_takes_the_host(host: TpuHost, chips: str, shape: str) -> None:
    split = default_split(host, drafting=False)
    assert split.drafter == 0
    assert verifier_environment(host, split) == own_slice(chips, shape, 8476)


@pytest.mark.parametrize("worker_id", range(4))
def test_every_host_of_a_slice_belongs_to_the_verifier(worker_id: int) -> None:
    host = TpuHost("v5litepod-16", (2, 2, 1), (2, 2, 1), worker_id, NAMES)
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


@pytest.mark.parametrize(("host", "half"), [(V5E_4, "2+2"), (V5P_8, "2+2"), (V6E_8, "4+4")])
def test_by_default_each_has_half(host: TpuHost, half: str) -> None:
    assert str(default_split(host, drafting=True)) == half


@pytest.mark.parametrize("host", [V5E_1, V5E_4, V5P_8, V5E_8, V6E_8])
def test_exactly_the_named_splits_fit(host: TpuHost) -> None:
    named = set(fitting_splits(host))
    for verifier, drafter in itertools.product(range(1, 10), range(10)):
        split = ChipSplit(verifier, drafter)
        if split not in named:
            with pytest.raises(ChipSplitError, match=f"cannot be split {verifier}\\+{drafter}"):
                verifier_environment(host, split)
            continue
        chips = verifier_environment(host, split)["TPU_VISIBLE_CHIPS"].split(",")
        if drafter:
            chips += drafter_environment(host, split)["TPU_VISIBLE_CHIPS"].split(",")
        assert len(set(chips)) == verifier + drafter
        assert {int(chip) for chip in chips} <= set(range(host.num_chips))


@pytest.mark.parametrize("host", [V5E_4, V5P_8, V5E_8, V6E_8])
def test_the_chips_of_a_process_are_a_rectangle(host: TpuHost) -> None:
    for split in fitting_splits(host):
        environments = [verifier_environment(host, split)]
        if split.drafter:
            environments.append(drafter_environment(host, split))
        for environment in environments:
            chips = [int(chip) for chip in environment["TPU_VISIBLE_CHIPS"].split(",")]
            # libtpu counts x fastest.
            columns = {chip % host.chips[0] for chip in chips}
            lines = {chip // host.chips[0] for chip in chips}
            assert len(columns) * len(lines) == len(chips)
            assert max(lines) - min(lines) + 1 == len(lines)


def test_a_refusal_names_what_fits() -> None:
    with pytest.raises(ChipSplitError) as caught:
        verifier_environment(V5P_8, ChipSplit(3, 1))
    assert str(caught.value) == (
        "v5p-8 cannot be split 3+1: each process needs 1, 2, 4 or 8 neighbouring chips of its own. "
        "Fits: 4+0, 2+2, 2+1, 2+0, 1+2, 1+1, 1+0"
    )


def test_one_chip_cannot_be_shared() -> None:
    reason = r"v5litepod-1 cannot be split 1\+1: .* only chip; decode plainly .* Fits: 1\+0"
    with pytest.raises(ChipSplitError, match=reason):
        default_split(V5E_1, drafting=True)
    with pytest.raises(ChipSplitError, match=reason):
        drafter_environment(V5E_1, ChipSplit(1, 1))


@pytest.mark.parametrize("split", ["8+8", "4+0", "2+2"])
def test_hosts_of_a_slice_are_not_split(split: str) -> None:
    host = TpuHost("v5litepod-16", (2, 2, 1), (2, 2, 1), 0, NAMES)
    reason = r"slice of 4 hosts; .* another node. Fits: 16\+0"
    with pytest.raises(ChipSplitError, match=reason):
        verifier_environment(host, ChipSplit.parse(split))
    with pytest.raises(ChipSplitError, match=reason):
        default_split(host, drafting=True)


def test_a_drafter_without_chips_has_no_environment() -> None:
    with pytest.raises(ChipSplitError, match=r"4\+0 leaves the drafter no chips"):
        drafter_environment(V5P_8, ChipSplit(4, 0))


@pytest.mark.parametrize("text", ["", "2", "2+", "+2", "2+2+2", "0+4", "-1+2", "2 + 2", "a+b"])
def test_what_is_no_split_is_refused(text: str) -> None:
    with pytest.raises(ChipSplitError, match=r"written V\+D"):
        ChipSplit.parse(text)
