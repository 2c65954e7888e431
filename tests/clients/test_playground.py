"""The playground of `serve --openai` in a browser, used as a person would."""

import json
import os
import re
import subprocess
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx
from tests.e2e.openai_service import READY_SECONDS, running_service
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.model import Decoder

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# `make test-slow` installs them apart from the project.
INSTALLED = HERE.parents[1] / ".venv" / "clients"
KEY = "a-key-of-the-tests"


def test_a_person_at_the_playground(tmp_path: Path) -> None:
    # Modules are looked up from the folder of the script.
    script = tmp_path / "playground.mjs"
    script.write_text((HERE / "playground.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(INSTALLED / "node_modules")
    with running_service(tmp_path, KEY, _repeating_decoder()) as service:
        done = subprocess.run(
            [INSTALLED / "bin" / "node", script, service.http, KEY, *_pictures()],
            capture_output=True,
            text=True,
            timeout=READY_SECONDS,
            # Of the package that brings the browser: it has its libraries for this system only.
            env={**os.environ, "AWS_LAMBDA_JS_RUNTIME": "nodejs22.x"},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert "tiny" in found["model"]
    assert "drafter dflash" in found["model"]
    assert "all 24 tokens the same" in found["verdict"]
    assert re.search(r"prompt lookup: \d+ of \d+ drafted tokens accepted", found["counts"])
    assert found["plain"] == found["drafted"] == found["replayed"]
    assert "24 tokens" in found["figures"]
    assert {"target", "prompt_lookup"} <= set(found["sources"])
    assert found["constrained"] in ('"yes"', '"no"')
    assert found["halted"] == 4
    assert found["overflow"] <= 0


def _repeating_decoder() -> Decoder:
    """Build a target that says `abcabc…` after every prompt, on every processor."""
    decoder = Decoder(tiny_config(num_layers=2, tie_word_embeddings=False), rngs=nnx.Rngs(0))
    # The next token depends on the last one alone.
    for layer in decoder.layers:
        for product in (layer.attention.output, layer.mlp.down):
            product.weight[...] = jnp.zeros_like(product.weight[...])
    a, b, c = b"abc"
    table = jnp.zeros_like(decoder.embedding.table[...]).at[:, 0].set(1.0)
    decoder.embedding.table[...] = table.at[a].set(0.0).at[a, 1].set(1.0).at[b, 0].set(-1.0)
    assert decoder.head is not None
    head = jnp.zeros_like(decoder.head.weight[...])
    decoder.head.weight[...] = head.at[a, 0].set(1.0).at[b, 1].set(1.0).at[c, 0].set(-1.0)
    return decoder


def _pictures() -> list[str]:
    """Return the folder for pictures of it, if somebody wants to look at them."""
    folder = os.environ.get("BLOCKDRAFT_PICTURES")
    return [] if folder is None else [folder]
