"""Where completions part, and margins against a float64 decoder that shares no code."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.bench.support import (
    ALONE,
    CONFIG,
    PROMPTS,
    ScriptedPair,
    decoded_answer,
    scripted_pair,
    tiny_decoder,
)
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.engine.divergence import ChoiceMargin, find_divergences
from blockdraft_bench.engine.samples import Answered
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.scheduling.sequence import GenerationRequest

SEED = 5_000_000_011  # more than 32 bits


@pytest.fixture(scope="module")
def reference() -> ReferenceDecoder:
    return ReferenceDecoder(CONFIG, params_from_decoder(tiny_decoder()))


def test_a_divergence_has_the_margin_of_the_greedy_choice(reference: ReferenceDecoder) -> None:
    prompt = PROMPTS.prompts[0].token_ids
    plain, other = (9, 8, 7, 6, 5), (9, 8, 3, 6, 5)
    completions = {
        "plain": [decoded_answer(0.0, 1.0, plain, ())] * 2,
        "dflash": [decoded_answer(0.0, 1.0, tokens, ()) for tokens in (plain, other)],
    }
    requests = tuple(GenerationRequest(name, prompt) for name in ("same", "other"))
    decoded = Answered("tiny", 0.0, requests, completions)
    [found] = find_divergences(decoded, "dflash", ChoiceMargin(tiny_decoder()))
    second, first = sorted(reference.logits([*prompt, 9, 8])[-1])[-2:]
    assert found == {
        "sample": "other",
        "position": 2,
        "logit_margin": pytest.approx(first - second, abs=1e-4),
        "temperature": 0.0,
    }
    assert first - second > 1e-3
    assert find_divergences(decoded, "plain", ChoiceMargin(tiny_decoder())) == []


def test_a_divergence_at_the_first_token(reference: ReferenceDecoder) -> None:
    request = GenerationRequest("one", (17,))
    second, first = sorted(reference.logits([17])[-1])[-2:]
    margin = ChoiceMargin(tiny_decoder())
    assert margin(request, ()) == pytest.approx(first - second, abs=1e-4)


@pytest.fixture(scope="module")
def pair() -> ScriptedPair:
    return scripted_pair(ALONE)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_margins_of_sampled_choices(
    reference: ReferenceDecoder, pair: ScriptedPair, temperature: float
) -> None:
    request = GenerationRequest(
        "one",
        PROMPTS.prompts[0].token_ids,
        sampling=Sampling(temperature=temperature, seed=SEED),
        max_output_tokens=4,
        max_draft_tokens=0,
    )
    completions: dict[int, CompletionRecord] = {}
    pair.decoder.decode([request], completions.__setitem__)
    tokens = completions[0].token_ids
    margin = ChoiceMargin(tiny_decoder())
    key = jax.random.wrap_key_data(
        jnp.asarray(np.array([SEED % 2**32, SEED // 2**32], np.uint32)), impl="threefry2x32"
    )
    for count in range(4):
        before = [*request.prompt, *tokens[:count]]
        noise = jax.random.gumbel(
            jax.random.fold_in(key, len(before)), (CONFIG.vocab_size,), np.float32
        )
        scores = reference.logits(before)[-1] + temperature * np.asarray(noise, np.float64)
        # Only with the right noise is the engine's choice the highest score.
        assert int(np.argmax(scores)) == tokens[count]
        second, first = sorted(scores)[-2:]
        assert margin(request, tokens[:count]) == pytest.approx(first - second, abs=1e-3)
        # Without the noise, or with that of another seed, the margin is another one.
        for other in (Sampling(), Sampling(temperature=temperature, seed=SEED + 2**32)):
            changed = dataclasses.replace(request, sampling=other)
            assert margin(changed, tokens[:count]) != pytest.approx(first - second, abs=1e-3)
