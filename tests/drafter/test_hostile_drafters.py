"""Whatever is wrong with a drafter is said at once, by name, before anything is allocated."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.drafter.builders import TARGET, drafter_config, random_drafter
from tests.drafter.eagle3.test_method import eagle3_drafter
from tests.models.hostile import change_json, entry, refused, write_raw

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.sources import obtain_drafter
from blockdraft_models.weights.loading import Checkpoint

WEIGHTS = "model.safetensors"
KINDS = ("dflash", "eagle3")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound")
    drafter = random_drafter(drafter_config(draft_vocab_size=24))
    ids = np.arange(0, 48, 2)
    save_drafter(drafter.model, path / "dflash", ids)
    eagle3 = eagle3_drafter(draft_vocab=24)
    save_drafter(eagle3.model, path / "eagle3", eagle3.draft_ids)
    return path


@pytest.fixture
def drafters(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "drafters")


def load(path: Path, target: Checkpoint = TARGET) -> None:
    obtain_drafter(str(path), target, block_size=4, num_layers=1, dtype=jnp.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_sound_ones_load(drafters: Path, kind: str) -> None:
    load(drafters / kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "hidden_size is 32, the target has 64"),
        ({"vocab_size": 65}, "vocab_size is 64, the target has 65"),
    ],
)
def test_those_of_another_shape_of_target(
    drafters: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    other = replace(TARGET, config=replace(TARGET.config, **changes))
    with refused(message, drafters / kind):
        load(drafters / kind, other)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("dflash", {"num_target_layers": 4}, "num_target_layers|target layer 5 is not in"),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}}, "layer 8"),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 8]}}, "layer 8"),
        ("eagle3", {"eagle_config": [1]}, "eagle_config must be an object"),
        ("eagle3", {"eagle_config": {"norm_before_fc": True}}, "norm_before_fc"),
        ("dflash", {"dflash_config": "x"}, "dflash_config must be an object"),
        ("dflash", {"block_size": 10**9}, "block_size must be at most"),
        ("eagle3", {"blockdraft": {"block_size": 10**9}}, "block_size must be at most"),
        ("dflash", {"num_hidden_layers": 10**12}, "num_layers must be at most"),
        ("dflash", {"intermediate_size": 10**9}, "shape: .*gate_proj"),
        ("eagle3", {"intermediate_size": 10**9}, "shape: .*gate_proj"),
        ("dflash", {"use_swa": True}, "use_swa"),
        *(
            (kind, {"blockdraft": {"target_fingerprint": "f" * 16}}, "made for target ffff")
            for kind in KINDS
        ),
        *((kind, {"vocab_size": "64"}, "must be a whole number") for kind in KINDS),
        *((kind, {"blockdraft": 7}, "blockdraft must be an object") for kind in KINDS),
    ],
)
def test_impossible_configurations(
    drafters: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    change_json(drafters / kind / "config.json", **changes)
    with refused(message, drafters / kind):
        load(drafters / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_tensors(drafters: Path, kind: str) -> None:
    file = drafters / kind / WEIGHTS
    tensors = load_file(file)
    fc, d2t = tensors["fc.weight"], tensors["d2t"]
    for changed, message in (
        ({"fc.weight": fc.astype(np.int8)}, "fc.weight is stored as I8"),
        ({"model.fc.weight": fc}, "holds tensors twice, also as model.*: fc.weight"),
        ({"extra": fc}, "unexpected: extra"),
        ({"fc.weight": fc[:, :-1].copy()}, "shape: fc.weight"),
        ({"d2t": d2t[:-1]}, "shape: d2t"),
        ({"d2t": d2t.astype(np.float32)}, "d2t holds float32, not whole numbers"),
        ({"d2t": d2t + 10**6}, "does not name distinct tokens"),
        ({"d2t": np.full_like(d2t, 2**63 - 1)}, "does not name distinct tokens"),
        ({"d2t": -np.arange(24)}, "does not name distinct tokens"),
    ):
        save_file({**tensors, **changed}, file)
        with refused(message, drafters / kind):
            load(drafters / kind)
    del tensors["norm.weight"]
    save_file(tensors, file)
    with refused(r"missing: norm\.weight", drafters / kind):
        load(drafters / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_lie(drafters: Path, tmp_path: Path, kind: str) -> None:
    file = drafters / kind / WEIGHTS
    write_raw(file, {"fc.weight": entry([10**6, 10**6], 0, 4 * 10**12)})
    with refused("not fully covered", file):
        load(drafters / kind)
    file.rename(tmp_path / "elsewhere.safetensors")
    file.symlink_to(tmp_path / "elsewhere.safetensors")
    with refused("leads out of its directory", file):
        load(drafters / kind)
    file.unlink()
    (drafters / kind / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with refused("pickled weights", drafters / kind):
        load(drafters / kind)
