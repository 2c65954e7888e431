"""Names of topologies that lead to no chips, and which chips each process gets."""

import sys
from pathlib import Path

import pytest

from blockdraft_aot.settings import AotError
from blockdraft_aot.topology import describe_topology, role_topologies


@pytest.mark.parametrize("name", ["v5p", "v5p:", "v5p:2x0", "2x2x1", "v5p:2x2x1x1"])
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(AotError, match="a topology is written like"):
        describe_topology(name)


def test_says_that_libtpu_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Looks where nothing is installed.
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "libtpu", raising=False)
    with pytest.raises(AotError, match=r"needs libtpu: pip install 'blockdraft\[tpu\]'"):
        describe_topology("v5p:2x2x1")


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("name", "chips", "memory_gb"),
    [
        *(("v5p:2x2x1", 4, 95), ("v5p:1x1x1", 1, 95), ("v5e:1x1", 1, 16), ("v6e:2x4", 8, 32)),
        # Two devices for each chip.
        ("tpu7x:2x2x1", 8, 96),
    ],
)
def test_chips_of_a_host(name: str, chips: int, memory_gb: int) -> None:
    topology = describe_topology(name)
    assert topology.mesh.size == chips
    assert topology.memory_bytes == memory_gb * 1e9
    assert topology.roofline.source == "published"
    # All on one host, whatever part of it they are.
    assert {chip.process_index for chip in topology.mesh.devices.flat} == {0}


@pytest.mark.tpu
def test_says_which_topology_is_unknown() -> None:
    with pytest.raises(AotError, match="libtpu has no topology 'v9z:2x2'"):
        describe_topology("v9z:2x2")


@pytest.mark.parametrize(
    ("topology", "split", "verifier", "drafter"),
    [
        ("v5p:2x2x1", None, "v5p:2x2x1", "v5p:2x2x1"),
        ("v5e:1x1", None, "v5e:1x1", "v5e:1x1"),
        ("v5p:2x2x1", "2+2", "v5p:1x2x1", "v5p:1x2x1"),
        ("v5p:2x2x1", "2+1", "v5p:1x2x1", "v5p:1x1x1"),
        ("v5e:2x4", "4+4", "v5e:1x4", "v5e:1x4"),
        ("v6e:2x4", "4+2", "v6e:1x4", "v6e:1x2"),
    ],
)
def test_each_role_gets_a_rectangle(
    topology: str, split: str | None, verifier: str, drafter: str
) -> None:
    assert role_topologies(topology, split, drafting=True) == (verifier, drafter)


def test_a_verifier_alone_has_all_chips() -> None:
    assert role_topologies("v5e:4x4", None, drafting=False) == ("v5e:4x4", None)
    assert role_topologies("v5p:2x2x1", "2+0", drafting=False) == ("v5p:1x2x1", None)
    assert role_topologies("v5p:2x2x2", "8+0", drafting=False) == ("v5p:2x2x2", None)


@pytest.mark.parametrize(
    ("topology", "split", "message"),
    [
        ("v5p:2x2x1", "3+1", "v5p-8 cannot be split 3\\+1: each process needs 1, 2, 4 or 8"),
        ("v5p:2x2x1", "4+1", "v5p-8 cannot be split 4\\+1: .* Fits: 4\\+0, 2\\+2"),
        ("v5e:1x1", "1+1", "cannot both own its only chip"),
        ("v5e:4x4", None, "the verifier takes all of a slice of 4 hosts"),
        ("v5p:1x2x1", None, "is not made of hosts of 2x2x1"),
        ("v5p:2x2x1", "2", "a split of chips is written V\\+D"),
        ("v5p:2x2x1", "4+0", "contradict each other"),
        ("v5p", None, "no slice is called v5p:"),
        ("v5p:axb", None, "no slice is called v5p:axb"),
    ],
)
def test_other_splits_are_refused(topology: str, split: str | None, message: str) -> None:
    with pytest.raises(AotError, match=message):
        role_topologies(topology, split, drafting=True)
