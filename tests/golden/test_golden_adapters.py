"""LoRA adapters in the files of PEFT, in one step with each other, against PEFT's own logits."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.builders import run_dense

from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.weights.adapters import load_adapters
from blockdraft_models.weights.loading import load_decoder

GOLDEN = Path(__file__).parent
NAMES = sorted(path.stem for path in (GOLDEN / "adapters").glob("*.npz"))


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("name", NAMES)
def test_each_row_gets_the_logits_of_its_own_adapter(name: str, scanned: bool) -> None:
    decoder, _ = load_decoder(GOLDEN / "targets" / name, dtype=jnp.float32)
    load_adapters(decoder, GOLDEN / "adapters" / name)
    golden = np.load(GOLDEN / "adapters" / f"{name}.npz")
    base = np.load(GOLDEN / "targets" / f"{name}.npz")["logits"][:1]
    decoder = ScannedDecoder(decoder) if scanned else decoder
    numbers = np.array([2, 0, 1])
    tokens = np.repeat(golden["token_ids"], 3, axis=0)
    logits, _ = run_dense(decoder, tokens, adapters=numbers.repeat(tokens.shape[1]))
    for row, expected, error in (
        (0, golden["logits-1"], golden["error-1"]),
        (1, base, 0.0),
        (2, golden["logits-0"], golden["error-0"]),
    ):
        # A recurrence enlarges the rounding of float32, PEFT's too.
        bound = max(1e-5, 3 * error) * np.abs(expected).max()
        np.testing.assert_allclose(logits[row], expected[0], atol=bound, rtol=0)
    assert np.abs(golden["logits-0"] - base).max() > 0.1 * np.abs(base).max()
