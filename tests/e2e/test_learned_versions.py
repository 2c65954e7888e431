"""Weights that were learned, at starts and through deaths of the drafter."""

import json
import shutil
from pathlib import Path

import pytest
from tests.drafter.learning.test_rehearsal import deadly
from tests.e2e.learning_drafter import Learning, begin, copied

from blockdraft_drafter.learning.versions import VersionStore

pytestmark = pytest.mark.usefixtures("cold")


def test_a_drafter_that_starts_again_goes_on_with_what_was_promoted(learning: Learning) -> None:
    number = learning.promoted(1)
    # It dies here: it was told of the version and has not taken it over.
    again = begin(learning.target, learning.directory)
    # What no process has loaded yet holds up no start.
    assert again.serving.message.number == 1
    again.poll()
    assert again.serving.message.number == number
    again.serving.close()
    other = begin(learning.target, learning.directory)
    assert other.serving.message.number == number
    assert other.method.spec.fingerprint == again.method.spec.fingerprint
    other.serving.close()
    # What cannot be loaded at the start is passed over.
    (learning.store.path(number) / "config.json").write_text("{")
    third = begin(learning.target, learning.directory)
    assert third.serving.message.number == 1
    assert learning.store.read(number).state == "rejected"
    third.serving.close()


def test_a_version_that_kills_what_loads_it_never_reaches_the_drafter(
    learning: Learning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = learning.promoted(1)
    with monkeypatch.context() as patched:
        deadly(tmp_path, "SIGKILL", patched)
        learning.poll()
    version = learning.store.read(number)
    assert (version.state, version.reason) == ("rejected", "its loading ended with status -9")
    assert learning.serving.message.number == learning.current == 1
    assert learning.count("version_changes_total", kind="refused") == 1
    # By hand, somebody may think better of it; then it is tried again.
    learning.store.promote(number)
    learning.poll()
    assert learning.serving.message.number == number


def test_without_a_drafter_it_records_for_one_made_of_nothing(
    learning: Learning, tmp_path: Path
) -> None:
    store = VersionStore(tmp_path / "nothing")
    made = learning.store.path(1)
    whole, broken = (
        store.add(
            lambda folder: copied(made, folder),
            kind="initialized",
            fingerprint="0" * 16,
        ).number
        for _ in range(2)
    )
    (store.path(broken) / "model.safetensors").write_bytes(b"")
    nothing = begin(learning.target, tmp_path / "nothing", drafter="auto")
    assert nothing.serving.message.number == whole
    assert store.read(broken).state == "rejected"
    # It serves to be recorded for; whether it pays is not known yet.
    assert store.current() is None
    nothing.poll()
    assert nothing.serving.message.number == whole
    # Its projection has everything to learn, too; that of a drafter that was named went on.
    assert nothing.method.spec.projection is None
    assert learning.method.spec.projection is not None
    nothing.serving.close()


def test_another_drafter_of_the_settings_begins_anew(learning: Learning, tmp_path: Path) -> None:
    learning.promoted(1)
    shutil.copytree(learning.store.path(1), tmp_path / "named")
    config = json.loads((tmp_path / "named" / "config.json").read_text())
    config["blockdraft"]["trained"] = True
    (tmp_path / "named" / "config.json").write_text(json.dumps(config))
    named = begin(learning.target, learning.directory, drafter=str(tmp_path / "named"))
    version = learning.store.read(named.serving.message.number)
    assert (version.number, version.kind, version.state) == (3, "shipped", "promoted")
    assert learning.store.base(version) == version
    named.serving.close()
