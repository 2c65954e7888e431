"""An exported drafter is one that anybody can load, with a card that says what it is."""

import json
import os
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from tests.drafter.builders import TARGET, drafter_config, random_drafter, read_dflash

from blockdraft_drafter.checkpoint import load_drafter, published_arrays
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_models.weights.files import read_json
from blockdraft_training.errors import TrainingError
from blockdraft_training.export import add_acceptance, export_drafter
from blockdraft_training.loop.held_out import Acceptance
from blockdraft_training.loop.run import TrainedDrafter
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.settings import DFlashSettings

COMMAND = "blockdraft train dflash --corpus corpus.jsonl"
SETTINGS = DFlashSettings(corpus=(Path("corpus.jsonl"),), output=Path("run"), block_size=4, steps=9)


def trained(draft_ids: np.ndarray | None = None) -> TrainedDrafter:
    config = drafter_config(
        target_fingerprint=TARGET.fingerprint,
        trained=True,
        sample_from_anchor=True,
        draft_vocab_size=None if draft_ids is None else len(draft_ids),
    )
    return TrainedDrafter(
        model=random_drafter(config).model,
        draft_ids=draft_ids,
        target=TARGET,
        history=({"step": 9, "loss": 1.2345},),
        rows=12,
        response_tokens=345,
        sources={"math": 8, "code": 4},
        acceptance=Acceptance(2.5, {"math": 3.25, "code": 1.75}, (0.9, 0.5, 0.1)),
    )


@pytest.mark.parametrize("draft_ids", [None, np.array([1, 5, 9, 60], np.int32)], ids=str)
def test_what_is_exported_can_be_loaded(tmp_path: Path, draft_ids: np.ndarray | None) -> None:
    made = trained(draft_ids)
    export_drafter(made, DFlashRecipe(SETTINGS), tmp_path / "new" / "drafter", COMMAND)
    loaded = load_drafter(DFLASH, tmp_path / "new" / "drafter", TARGET, dtype=jnp.float32)
    # DecoderConfig's name is no part of the format.
    config = loaded.model.config
    assert replace(config, decoder=made.model.config.decoder) == made.model.config
    if draft_ids is None:
        assert loaded.draft_ids is None
    else:
        assert loaded.draft_ids is not None
        assert loaded.draft_ids.tolist() == draft_ids.tolist()
    assert isinstance(made.model, DFlash)
    ours, theirs = published_arrays(made.model), published_arrays(loaded.model)
    for name, array in ours.items():
        rounded = array.astype(jnp.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(theirs[name], rounded, err_msg=name)


def test_files_are_as_published(tmp_path: Path) -> None:
    made = trained()
    export_drafter(made, DFlashRecipe(SETTINGS), tmp_path, COMMAND)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        names = set(file.keys())
        dtypes = {file.get_slice(name).get_dtype() for name in names}
    assert isinstance(made.model, DFlash)
    assert names == {tensor.name for tensor in made.model.config.tensors()}
    assert {"fc.weight", "hidden_norm.weight", "norm.weight"} < names
    assert "layers.1.self_attn.k_norm.weight" in names
    assert dtypes == {"BF16"}
    config = read_json(tmp_path / "config.json", required=True)
    assert config["architectures"] == ["DFlashDraftModel"]
    # The published format counts the slots.
    assert (config["block_size"], config["sample_from_anchor"]) == (3, True)
    assert config["dflash_config"]["target_layer_ids"] == list(made.model.config.target_layer_ids)
    assert config["blockdraft"] == {"trained": True, "target_fingerprint": TARGET.fingerprint}
    assert read_dflash(config).block_size == 4


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    export_drafter(trained(), DFlashRecipe(SETTINGS), tmp_path, COMMAND)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for words in (
        f"fingerprint `{TARGET.fingerprint}`",
        "3 tokens",
        "## Data",
        "12 completions of the target, 345 tokens",
        "code 4, math 8",
        "## Recipe",
        COMMAND,
        "- learning_rate: 0.0006",
        "9 steps, last loss 1.234",
        "math 3.25",
        "## Limits",
        "Made for this target alone",
    ):
        assert words in card, words


def test_the_card_takes_what_one_drafter_was_measured_at(tmp_path: Path) -> None:
    export_drafter(trained(), DFlashRecipe(SETTINGS), tmp_path, COMMAND)
    row = {"dataset": "math", "temperature": 0.0, "samples": 9, "acceptance_length": 2.5}
    rows = [
        {**row, "method": method, "acceptance_length_ci95": interval}
        for method, interval in (("plain", None), ("mine", [2.25, 2.75]))
    ]
    report = tmp_path / "decode.json"
    for _ in range(2):  # a table put there earlier is replaced
        report.write_text(json.dumps({"results": rows}), encoding="utf-8")
        card = add_acceptance(tmp_path, report).read_text(encoding="utf-8")
    assert card.count("| math | ") == card.count("| math | 0 | 2.50 | 2.25–2.75 | 9 |") == 1
    assert "## Limits" in card
    report.write_text(json.dumps({"results": [*rows, {**rows[1], "method": "other"}]}))
    with pytest.raises(TrainingError, match="is no acceptance report: it is of 2 drafters"):
        add_acceptance(tmp_path, report)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_a_full_disk_is_a_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(TrainingError, match=rf"cannot be written to {tmp_path}.*No space left"):
        export_drafter(trained(), DFlashRecipe(SETTINGS), tmp_path, COMMAND)
