"""What starts took: kept for the next start of its kind, and nothing breaks without it."""

from pathlib import Path

import pytest

from blockdraft_models import kept_programs
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.start_times import StartTimes

COLD, WARM = {"compiling steps": 60.0, "measuring steps": 9.5}, {"compiling steps": 4.0}


@pytest.fixture
def kept(tmp_path: Path) -> KeptPrograms:
    return KeptPrograms(tmp_path / "programs", "blockdraft_runtime")


def test_a_start_that_compiles_and_one_that_finds_programs(
    kept: KeptPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StartTimes(kept, ("target", 16))
    assert first.last == {}
    first.write(COLD)
    second = StartTimes(kept, ("target", 16))
    assert second.last == {}, "no start has found its programs yet"
    second.write(WARM)
    assert StartTimes(kept, ("target", 16)).last == WARM
    assert StartTimes(kept, ("target", 32)).last == {}, "another configuration"
    monkeypatch.setattr(kept_programs, "_versions", lambda: ("jax 99",))
    assert StartTimes(kept, ("target", 16)).last == COLD, "all is compiled anew"


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b'{"cold": {"compiling', b"[]", b"\xff", b'{"cold": 3}', b'{"cold": {"a": "b"}}'),
        *(b'{"cold": {"a": -1.0}}', b'{"cold": {"a": Infinity}}', b'{"cold": {"a": null}}'),
    ],
)
def test_what_cannot_be_read_is_replaced(kept: KeptPrograms, content: bytes) -> None:
    StartTimes(kept, "target").write(COLD)
    [path] = (kept.folder / "starts").iterdir()
    path.write_bytes(content)
    times = StartTimes(kept, "target")
    assert times.last == {}
    times.write(COLD)
    StartTimes(kept, "target").write(WARM)
    assert StartTimes(kept, "target").last == WARM


def test_a_start_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = KeptPrograms(tmp_path / "file", "blockdraft_runtime")
    StartTimes(nowhere, "target").write(COLD)
    assert StartTimes(nowhere, "target").last == {}
