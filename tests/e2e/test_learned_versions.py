"""Weights that were learned, at starts and through deaths of the drafter."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest
from tests.drafter.learning.test_rehearsal import deadly
from tests.e2e.learning_drafter import Learning, begin, copied

from blockdraft_drafter.learning.start import load_current
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_drafter.sources import load_any

pytestmark = pytest.mark.usefixtures("cold")


def test_a_drafter_that_starts_again_goes_on_with_what_was_promoted(learning: Learning) -> None:
    number = learning.promoted(1)
    # It dies here: it was told of the version and has not taken it over.
    again = begin(learning.target, learning.directory)
    # What no process has loaded yet holds up no start.
    assert again.learner.serving.number == 1
    again.poll()
    assert again.learner.serving.number == number
    again.learner.close()
    other = begin(learning.target, learning.directory)
    assert other.learner.serving.number == number
    assert other.method.spec.fingerprint == again.method.spec.fingerprint
    other.learner.close()
    # What cannot be loaded at the start is passed over.
    (learning.store.path(number) / "config.json").write_text("{")
    third = begin(learning.target, learning.directory)
    assert third.learner.serving.number == 1
    assert learning.store.read(number).state == "rejected"
    third.learner.close()


def test_a_version_that_kills_what_loads_it_never_reaches_the_drafter(
    learning: Learning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = learning.promoted(1)
    with monkeypatch.context() as patched:
        deadly(tmp_path, "SIGKILL", patched)
        learning.poll()
    version = learning.store.read(number)
    assert (version.state, version.reason) == ("rejected", "its loading ended with status -9")
    assert learning.learner.serving.number == learning.current == 1
    assert learning.count("version_changes_total", kind="refused") == 1
    # By hand, somebody may think better of it; then it is tried again.
    learning.store.promote(number)
    learning.poll()
    assert learning.learner.serving.number == number


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
    assert nothing.learner.serving.number == whole
    assert store.read(broken).state == "rejected"
    # It serves to be recorded for; whether it pays is not known yet.
    assert store.current() is None
    nothing.poll()
    assert nothing.learner.serving.number == whole
    # Its projection has everything to learn, too; that of a drafter that was named went on.
    assert nothing.method.spec.projection is None
    assert learning.method.spec.projection is not None
    nothing.learner.close()


def test_another_drafter_of_the_settings_begins_anew(learning: Learning, tmp_path: Path) -> None:
    learning.promoted(1)
    shutil.copytree(learning.store.path(1), tmp_path / "named")
    config = json.loads((tmp_path / "named" / "config.json").read_text())
    config["blockdraft"]["trained"] = True
    (tmp_path / "named" / "config.json").write_text(json.dumps(config))
    named = load_any(
        tmp_path / "named", learning.target.checkpoint, block_size=4, dtype=jnp.float32
    )
    start = load_current(
        learning.store, named, tmp_path / "named", learning.target.checkpoint, jnp.float32
    )
    version = start.version
    assert (version.number, version.kind, version.state) == (3, "shipped", "promoted")
    assert start.drafter is named
    assert learning.store.base(version) == version
