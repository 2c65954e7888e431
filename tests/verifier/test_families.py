"""Windows, sinks and experts in the engine: the steps of serving, drafted and plain."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.verifier.device.test_decoder_paged import BUCKET, MAX_PAGES, NUM_PAGES, Paged
from tests.verifier.support import TINY_ENGINE, decode, link_to, make_engine, random_requests

from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.weights.loading import load_decoder
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

TARGETS = Path(__file__).parents[1] / "golden" / "targets"
NAMES = ["mistral-window", "qwen3-moe", "gemma3", "gpt-oss", "smollm3", "olmo3"]
NAMES += ["gemma4", "gemma4-moe", "gemma4-shared", "qwen3-next", "qwen3-5", "qwen3-5-moe"]
NAMES += ["deepseek-v3", "glm4-moe-lite", "glm4-moe", "minimax-m2"]


@pytest.mark.parametrize(("name", "scanned"), list(product(NAMES, (False, True))))
def test_paged_steps_say_what_transformers_says(name: str, *, scanned: bool) -> None:
    golden = np.load(TARGETS / f"{name}.npz")
    decoder, _ = load_decoder(TARGETS / name, dtype=jnp.float32)
    paged = Paged(ScannedDecoder(decoder) if scanned else decoder)
    rng = np.random.default_rng(0)
    pages = rng.permutation(NUM_PAGES).tolist()
    sequences = [
        TokenSequence(index, GenerationRequest("s", tuple(tokens)), 0.0)
        for index, tokens in enumerate(golden["token_ids"].tolist())
    ]
    for index, sequence in enumerate(sequences):
        sequence.pages = pages[index * MAX_PAGES : (index + 1) * MAX_PAGES]
        sequence.state_slot = index
    scale = np.abs(golden["logits"]).max()
    while left := [each for each in sequences if each.committed < len(each.tokens)]:
        rows = []
        for sequence in left:
            start = sequence.committed
            size = int(rng.integers(1, BUCKET.tokens // 2 + 1))
            rows.append(Row(sequence, start, tuple(sequence.tokens[start : start + size]), 0))
        for row, (logits, _) in zip(rows, paged.run(rows), strict=True):
            stop = row.start + len(row.token_ids)
            expected = golden["logits"][row.sequence.sequence_id, row.start : stop]
            np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * scale)
            row.sequence.committed = stop


# Other tests of the engine and of serving have the dense ones of Llama and Qwen3.
@pytest.mark.parametrize("name", [*NAMES, "qwen2", "phi3", "granite"])
def test_drafting_never_changes_the_output(name: str) -> None:
    decoder, _ = load_decoder(TARGETS / name, dtype=jnp.float32)
    vocab_size = decoder.config.vocab_size
    requests = [
        replace(request, prompt=tuple(token % vocab_size for token in request.prompt))
        for request in random_requests(3, count=5)
    ]
    # Few shapes to compile.
    scheduler = replace(TINY_ENGINE.scheduler, max_sequences=1, max_step_tokens=4)
    few = replace(TINY_ENGINE, scheduler=scheduler)
    plain = [outcome.tokens for outcome in decode(make_engine(decoder, config=few), requests)]
    rng = np.random.default_rng(0)

    def often_right(position: int, anchor: int, length: int) -> list[int]:
        said = [tokens for tokens in plain if anchor in tokens[:-1]]
        if not said or rng.random() < 0.3:
            return [int(token) for token in rng.integers(0, vocab_size, length)]
        after = said[0].index(anchor) + 1
        return [*said[0][after : after + length], *[0] * length][:length]

    drafting = make_engine(decoder, link_to(often_right), few)
    outcomes = decode(drafting, requests)
    assert [outcome.tokens for outcome in outcomes] == plain
    assert sum(len(outcome.events) for outcome in outcomes) < sum(map(len, plain))
