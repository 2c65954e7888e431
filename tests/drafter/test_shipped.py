"""The drafters that ship: their target is the default one, and they are good as served."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.drafter.builders import measure_nothing
from tests.models.builders import run_dense

from blockdraft_drafter.app import load_method
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.eagle3.model import EAGLE3
from blockdraft_drafter.learning.start import begin_learning
from blockdraft_drafter.method import DraftRow
from blockdraft_drafter.sources import SHIPPED, published_method
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings, LearningSettings

TARGET = "smollm2-135m"
# A greedy completion of the target that was held out of training; token ids.
COMPLETION = Path(__file__).parent / "held_out_completion.json"


@pytest.mark.parametrize(("name", "most_bytes"), [("dflash", 30e6), ("eagle3", 15e6)])
def test_they_fit_into_the_package(name: str, most_bytes: float) -> None:
    checkpoint = SHIPPED / f"smollm2-135m-{name}"
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) < most_bytes
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["blockdraft"]["trained"]
    assert published_method(config).name == name
    card = (checkpoint / "README.md").read_text(encoding="utf-8")
    for heading in ("## Data", "## Recipe", "## Acceptance", "## Limits"):
        assert heading in card


@pytest.fixture(scope="module")
def target() -> tuple[Decoder, Checkpoint]:
    return load_decoder(resolve_target(TARGET), dtype=jnp.float32)


@pytest.fixture(scope="module")
def outputs(target: tuple[Decoder, Checkpoint]) -> np.ndarray:
    """The outputs of every layer at every token of the completion: [tokens, layers, hidden]."""
    decoder, _ = target
    held_out = json.loads(COMPLETION.read_text())
    tokens = np.array(held_out["prompt"] + held_out["response"])
    _, output = run_dense(decoder, tokens[None], tuple(range(decoder.config.num_layers)))
    return np.asarray(output.captured).reshape(len(tokens), decoder.config.num_layers, -1)


@pytest.mark.smollm2
@pytest.mark.parametrize(("spec_name", "method"), [("auto", "eagle3"), ("dflash", "dflash")])
def test_they_draft_what_their_target_says(
    target: tuple[Decoder, Checkpoint],
    outputs: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    spec_name: str,
    method: str,
) -> None:
    _, checkpoint = target
    monkeypatch.setattr(CompiledMethod, "warm_up", measure_nothing)
    config = DrafterSettings(
        target=TARGET,
        drafter=spec_name,
        max_sequences=1,
        max_model_len=256,
        max_feature_rows=128,
        dtype="float32",
    )
    loaded = load_method(config)
    assert loaded.target_fingerprint == checkpoint.fingerprint
    spec = loaded.method.spec
    assert (spec.name, spec.trained) == (method, True)
    held_out = json.loads(COMPLETION.read_text())
    tokens = np.array(held_out["prompt"] + held_out["response"])
    taken = outputs[:, list(spec.target_layer_ids)].reshape(len(tokens), -1)
    captured = jnp.asarray(taken).astype(jnp.bfloat16)
    assert spec.projection is not None
    captured = jax.device_put(spec.projection)(captured)
    features = np.asarray(captured).astype(ml_dtypes.bfloat16)
    known, anchor, gained = 0, len(held_out["prompt"]), []
    drafted = spec.block_size - 1
    while anchor + drafted < len(tokens):
        new = features[known:anchor]
        ids = tuple(tokens[known:anchor].tolist())
        [draft] = loaded.method.step([DraftRow(0, known, new, int(tokens[anchor]), drafted, ids)])
        right = np.array(draft) == tokens[anchor + 1 : anchor + 1 + drafted]
        known, anchor = anchor, anchor + 1 + int(np.cumprod(right).sum())
        gained.append(anchor - known)
    # An untrained drafter gains 1.0; one read wrongly, hardly more.
    assert np.mean(gained) > 1.5, gained


@pytest.mark.smollm2
def test_a_service_that_learns_begins_with_the_default_drafter(
    target: tuple[Decoder, Checkpoint], tmp_path: Path
) -> None:
    learning = LearningSettings(enabled=True, directory=tmp_path)
    settings = DrafterSettings(target=TARGET, learning=learning)
    assert begin_learning(settings, target[1], jnp.float32).drafter.definition is EAGLE3
