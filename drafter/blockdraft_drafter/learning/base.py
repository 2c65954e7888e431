"""The drafter that learning begins from, as a version: what there is to go back to."""

import shutil
from pathlib import Path
from typing import Any

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.files.checkpoint import save_drafter
from blockdraft_drafter.learning.versions import Kind, Version, VersionStore


def settle_base(store: VersionStore, drafter: Drafter[Any], source: Path | None) -> Version:
    """Return the version to serve with, given the drafter that the settings name.

    It is the promoted one if that was learned from this drafter; otherwise the drafter itself, as a
    version that is added if it is not there.

    Args:
        store: The versions.
        drafter: What the settings name.
        source: Its files; None if it has none.

    Raises:
        OSError: If the store cannot be written.
    """
    current, base = store.current(), store.base()
    if current is not None and base is not None and base.fingerprint == drafter.fingerprint:
        return current
    for version in store.list():
        if version.kind != "learned" and version.fingerprint == drafter.fingerprint:
            return store.promote(version.number, "named by --drafter")

    def write(folder: Path) -> None:
        if source is None:
            save_drafter(drafter.definition, drafter.model, folder, drafter.draft_ids)
            return
        for file in [*source.glob("*.safetensors"), *source.glob("*.json")]:
            shutil.copyfile(file, folder / file.name)

    kind: Kind = "shipped" if drafter.model.config.trained else "initialized"
    added = store.add(
        write, kind=kind, fingerprint=drafter.fingerprint, reason="named by --drafter"
    )
    return store.promote(added.number, "named by --drafter")
