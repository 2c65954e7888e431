"""Names of topologies that lead to no chips."""

import sys
from pathlib import Path

import pytest

from blockdraft_aot.errors import AotError
from blockdraft_aot.topology import describe_topology


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
    [("v5p:2x2x1", 4, 95), ("v5p:1x1x1", 1, 95), ("v5e:1x1", 1, 16), ("v6e:2x4", 8, 32)],
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
