"""The drafter that ships: its target is the default one, and it is good as it is served."""

import json
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.models.builders import run_dense

from blockdraft_drafter.app import load_engine
from blockdraft_drafter.config import DFlashConfig
from blockdraft_drafter.method import ContextRow
from blockdraft_drafter.settings import DrafterConfig
from blockdraft_drafter.sources import SHIPPED
from blockdraft_models.loading import load_decoder
from blockdraft_models.resolve import resolve_target

CHECKPOINT = SHIPPED / "smollm2-135m-dflash"
# A greedy answer of the target that was held out of training; token ids.
ANSWER = Path(__file__).parent / "held_out_answer.json"
MOST_BYTES = 30e6


def test_it_fits_into_the_package() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < MOST_BYTES
    config = DFlashConfig.from_hf(json.loads((CHECKPOINT / "config.json").read_text()))
    assert config.trained
    card = (CHECKPOINT / "README.md").read_text(encoding="utf-8")
    for heading in ("## Data", "## Recipe", "## Acceptance", "## Limits"):
        assert heading in card


@pytest.mark.smollm2
def test_it_drafts_what_its_target_says() -> None:
    target = "smollm2-135m"
    decoder, checkpoint = load_decoder(resolve_target(target), dtype=jnp.float32)
    config = DrafterConfig(
        target=target, max_sequences=1, max_context_tokens=256, max_feature_rows=128
    )
    engine = load_engine(config)
    assert engine.target_fingerprint == checkpoint.fingerprint
    spec = engine.method.spec
    assert spec.trained
    answer = json.loads(ANSWER.read_text())
    tokens = np.array(answer["prompt"] + answer["response"])
    _, output = run_dense(decoder, tokens[None], spec.target_layer_ids)
    features = np.asarray(output.captured).astype(ml_dtypes.bfloat16)
    known, anchor, gained = 0, len(answer["prompt"]), []
    drafted = spec.block_size - 1
    while anchor + drafted < len(tokens):
        new = features[known:anchor]
        [proposal] = engine.method.step([ContextRow(0, known, new, int(tokens[anchor]), drafted)])
        right = np.array(proposal.token_ids) == tokens[anchor + 1 : anchor + 1 + drafted]
        known, anchor = anchor, anchor + 1 + int(np.cumprod(right).sum())
        gained.append(anchor - known)
    # An untrained drafter gains 1.0; one read wrongly, hardly more.
    assert np.mean(gained) > 1.5, gained
