"""The store of versions, also when whoever writes it dies at any step."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from blockdraft_drafter.learning import versions
from blockdraft_drafter.learning.versions import VersionError, VersionStore


def add(store: VersionStore, **facts: Any) -> int:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("weights")

    return store.add(write, **{"kind": "learned", "fingerprint": "f", **facts}).number


def current(store: VersionStore) -> int | None:
    found = store.current()
    return None if found is None else found.number


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path / "learn")


@pytest.fixture
def two(store: VersionStore) -> VersionStore:
    """A store of two versions, both promoted."""
    for _ in range(2):
        store.promote(add(store))
    return store


def test_an_empty_store_has_no_current_version(store: VersionStore) -> None:
    assert store.list() == []
    assert store.current() is None
    with pytest.raises(VersionError, match="no version"):
        store.roll_back("why")


def test_versions_are_numbered_and_keep_what_is_known(store: VersionStore) -> None:
    first = add(store, kind="shipped")
    second = add(store, parent=1, held_out_tau=2.2, parent_held_out_tau=2.0, confidence=0.99)
    assert (first, second) == (1, 2)
    assert (store.path(2) / "model.safetensors").read_text() == "weights"
    found = store.read(2)
    assert (found.parent, found.held_out_tau, found.confidence) == (1, 2.2, 0.99)
    assert found.state == "candidate"
    assert store.current() is None


def test_promoting_and_going_back(two: VersionStore) -> None:
    two.promote(add(two))
    assert [each.state for each in two.list()] == ["promoted"] * 3
    assert two.roll_back("τ fell").number == 2
    assert (two.read(3).state, two.read(3).reason) == ("rolled_back", "τ fell")
    assert two.roll_back("again").number == 1
    with pytest.raises(VersionError, match="none to return to"):
        two.roll_back("too far")
    assert current(two) == 1
    # By hand, somebody may think better of a version.
    two.promote(3)
    assert two.roll_back("no").number == 1


def test_a_version_that_is_rejected_does_not_serve(two: VersionStore) -> None:
    two.reject(2, "not finite")
    assert current(two) == 1


def test_a_version_folder_that_is_gone_is_passed_over(two: VersionStore) -> None:
    shutil.rmtree(two.path(2))
    assert current(two) == 1
    with pytest.raises(VersionError):
        two.promote(2)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"number": 2}', "[]", "[" * 9999])
def test_a_damaged_version_is_not_listed(two: VersionStore, text: str) -> None:
    (two.path(2) / "version.json").write_text(text)
    assert [each.number for each in two.list()] == [1]
    assert current(two) == 1
    assert add(two) == 3


def test_a_drafter_of_the_settings_begins_anew_unless_the_current_one_descends_from_it(
    store: VersionStore,
) -> None:
    def settled(fingerprint: str) -> int:
        return store.settle(fingerprint, lambda folder: None).number

    assert settled("a") == settled("a") == 1
    store.promote(add(store, parent=1))
    store.promote(add(store, parent=2))
    assert store.read(3).base == 1
    assert settled("a") == 3
    assert settled("b") == settled("b") == 4
    assert settled("a") == 1
    assert current(store) == 1


def test_a_failure_to_write_leaves_nothing(store: VersionStore) -> None:
    add(store)

    def write(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.add(write, kind="learned", fingerprint="f")
    assert [path.name for path in store.path(1).parent.iterdir()] == ["000001"]


def test_prune_keeps_what_may_be_needed(store: VersionStore) -> None:
    add(store, kind="shipped")
    for _ in range(6):
        add(store)
    store.promote(3)
    assert store.prune(keep=2) == [2, 4, 5]
    assert [each.number for each in store.list()] == [1, 3, 6, 7]
    assert add(store) == 8


# Runs in a process of its own, which is small and can be forked: each child is killed at one of
# the steps by which an operation changes files, and its parent looks at what it left.
KILLED = """
    import os, shutil, sys, tempfile
    from pathlib import Path
    from blockdraft_drafter.learning.versions import VersionStore

    STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}

    def write(folder):
        (folder / "model.safetensors").write_text("weights")
        (folder / "config.json").write_text("{}")

    def add(store):
        return store.add(write, kind="learned", fingerprint="f", parent=1).number

    def killed_at(step, operation):
        child = os.fork()
        if child == 0:
            seen = 0
            def hook(event, args):
                nonlocal seen
                seen += event in STEPS
                if seen == step:
                    os._exit(9)
            sys.addaudithook(hook)
            operation()
            os._exit(0)
        return os.waitpid(child, 0)[1] != 0

    def numbers(store):
        return [each.number for each in store.list()]

    # Where it can be had, a disk that need not be waited for.
    MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
    OPERATIONS = {
        "add": (add, {2}, {3: [1, 2, 3]}),
        "promote": (lambda store: store.promote(3), {2, 3}, {}),
        "roll_back": (lambda store: store.roll_back("why"), {1, 2}, {}),
        "reject": (lambda store: store.reject(2, "why"), {1, 2}, {}),
        "prune": (lambda store: store.prune(1), {2}, {}),
    }
    for name, (operation, allowed, _) in OPERATIONS.items():
        step, seen = 0, set()
        alive = False
        while not alive:
            step += 1
            with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                store = VersionStore(Path(folder) / "learn")
                for _ in range(2):
                    store.promote(add(store))
                if name == "promote":
                    add(store)
                if name == "prune":
                    add(store), add(store)
                alive = not killed_at(step, lambda: operation(store))
                current = store.current()
                assert current is not None and current.number in allowed, (name, step, current)
                seen.add(current.number)
                assert (store.path(current.number) / "model.safetensors").read_text() == "weights"
                for number in numbers(store):
                    files = {path.name for path in store.path(number).iterdir()}
                    assert {"model.safetensors", "config.json", "version.json"} <= files
                # Whoever comes next can go on.
                more = add(store)
                store.promote(more)
                assert store.current().number == more
                assert store.roll_back("back").number == current.number, (name, step)
                store.prune(1)
                left = os.listdir(store.path(1).parent)
                assert not [each for each in left if each.startswith(".")], (name, step, left)
        assert step > 3 and seen == allowed, (name, step, seen)
        print(name, step)
"""


def test_dying_at_any_step_leaves_a_store_that_can_be_read() -> None:
    root = Path(versions.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED)],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
