"""The drafter's side in a process of its own, reached over real sockets."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from blockdraft_bench.errors import BenchError
from blockdraft_bench.link.drafter import drafter_process
from blockdraft_bench.link.exchange import Exchange
from blockdraft_bench.link.measure import over_grpc


@pytest.mark.parametrize("name", ["shared-memory", "unix", "tcp"])
def test_serves_until_the_end_of_the_block(name: str, tmp_path: Path) -> None:
    shared = name == "shared-memory"
    listen = "127.0.0.1:0" if name == "tcp" else f"unix:{tmp_path / 'drafter.sock'}"
    with drafter_process(listen, 8, 2) as address:
        [child] = multiprocessing.active_children()
        assert not address.endswith(":0")
        with over_grpc(address, 8, shared=shared) as transport:
            description = transport.description
            assert (description.method, description.feature_width) == ("instant", 8)
            times = Exchange(transport, 2).step()
        assert 0 < times.verifier_host < times.round_trip
        assert 0 < times.drafter_host < times.round_trip
        refused = pytest.raises(ValueError, match="wants features of 8 elements")
        with refused, over_grpc(address, 9, shared=shared):
            pass
        assert child.is_alive()
    assert not multiprocessing.active_children()
    with pytest.raises(grpc.RpcError), over_grpc(address, 8, shared=shared):
        pass


def test_a_process_that_cannot_listen_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    listen = f"unix:{tmp_path / 'nowhere' / 'drafter.sock'}"
    with (
        pytest.raises(BenchError, match="ended before it served"),
        drafter_process(listen, 8, 2),
    ):
        pass
    assert not multiprocessing.active_children()
    assert "Failed to bind" in capfd.readouterr().err


def test_it_needs_no_jax() -> None:
    code = (
        "import sys, blockdraft_bench.link.drafter;"
        "sys.exit(any(name in sys.modules for name in ('jax', 'flax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
