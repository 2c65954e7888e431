"""Targets that denoise: the engine against the published programs on a float64 decoder."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.models.tiny import tiny_config
from tests.verifier.denoising_reference import completion
from tests.verifier.support import TINY_ENGINE, UnhurriedRunner, decode, make_engine, value_of

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.diffusion import Diffusion
from blockdraft_models.sampling_options import LogitsRules, Sampling
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest
from blockdraft_verifier.self_test import self_test

TARGETS = Path(__file__).parents[1] / "golden" / "targets"
MASK = 255
# Shares at which random weights take some tokens together, and others alone.
SDAR = Diffusion(4, 4, MASK, 0.12)
FAST_DLLM = Diffusion(8, 4, MASK, 0.12, shifted=True)
FORMS = pytest.mark.parametrize("diffusion", [SDAR, FAST_DLLM], ids=["sdar", "fast-dllm"])
ENGINE = replace(
    TINY_ENGINE,
    page_size=8,
    num_pages=48,
    scheduler=replace(TINY_ENGINE.scheduler, max_step_tokens=32),
)


def new_decoder(diffusion: Diffusion) -> Decoder:
    config = tiny_config("qwen3", num_layers=2, diffusion=diffusion)
    decoder = Decoder(config, rngs=nnx.Rngs(3))
    # Without sharper scores no token is ever likely.
    assert decoder.head is not None
    decoder.head.weight[...] *= 3
    return decoder


decoder_of = cache(new_decoder)


@cache
def reference_of(diffusion: Diffusion) -> ReferenceDecoder:
    decoder = decoder_of(diffusion)
    return ReferenceDecoder(decoder.config, params_from_decoder(decoder))


def requests_of(seed: int, count: int = 6) -> list[GenerationRequest]:
    """Return greedy and sampled requests, some of whole canvases."""
    rng = np.random.default_rng(seed)
    return [
        GenerationRequest(
            f"r{index}",
            tuple(map(int, rng.integers(0, 255, [1, 3, 8, 16, 21, 39][rng.integers(6)]))),
            sampling=Sampling() if index % 2 else Sampling(0.8, seed=int(rng.integers(-9, 9))),
            max_output_tokens=int(rng.integers(1, 24)),
        )
        for index in range(count)
    ]


@FORMS
@pytest.mark.parametrize("scanned", [False, True])
def test_completions_are_those_of_the_published_program(
    diffusion: Diffusion, *, scanned: bool
) -> None:
    decoder = new_decoder(diffusion)
    engine = make_engine(ScannedDecoder(decoder) if scanned else decoder, config=ENGINE)
    requests = requests_of(0, 4 if scanned else 8)
    outcomes = decode(engine, requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        expected = completion(
            reference_of(diffusion), request.prompt, request.max_output_tokens, request.sampling
        )
        assert outcome.tokens == expected
        assert outcome.events[-1].finish_reason is FinishReason.LENGTH
    # Some steps take several tokens, and others one of several.
    tokens = sum(len(outcome.tokens) for outcome in outcomes)
    steps = sum(outcome.usage.verification_steps for outcome in outcomes)
    assert 0.5 * tokens < steps < 0.9 * tokens


@pytest.mark.parametrize("name", ["sdar", "sdar-moe", "fast-dllm"])
@pytest.mark.parametrize("weights", ["float", "int8"])
def test_checkpoints_complete_as_with_transformers(name: str, weights: WeightFormat) -> None:
    decoder, _ = load_decoder(TARGETS / name, dtype=jnp.float32, weights=weights)
    continued = np.load(TARGETS / f"{name}.npz")["continued"][0].tolist()
    scheduler = replace(ENGINE.scheduler, max_step_tokens=64, max_context_tokens=128)
    settings = replace(ENGINE, page_size=16, num_pages=16, scheduler=scheduler)
    engine = make_engine(decoder, config=settings)
    prompt = tuple(continued[:7])
    request = GenerationRequest("r", prompt, max_output_tokens=100)
    [outcome] = decode(engine, [request])
    if weights == "float":
        assert outcome.tokens == continued[7:]
    # The rounding of weights is the target's own, and changes with nothing else.
    beside = decode(engine, [request, replace(request, prompt=prompt[:5]), request])
    assert beside[0].tokens == beside[2].tokens == outcome.tokens


@FORMS
def test_a_completion_does_not_depend_on_what_runs_beside_it(diffusion: Diffusion) -> None:
    decoder = decoder_of(diffusion)
    requests = [replace(request, max_output_tokens=40) for request in requests_of(1)]
    alone = [decode(make_engine(decoder, config=ENGINE), [request])[0] for request in requests]
    together = make_engine(decoder, config=ENGINE)
    scarce = make_engine(decoder, config=ENGINE, pages=13)
    for engine in (together, scarce):
        outcomes = decode(engine, requests)
        assert [outcome.tokens for outcome in outcomes] == [outcome.tokens for outcome in alone]
    assert value_of(scarce.metrics.preemptions) > 0
    # Again, from pages that are there.
    again = decode(together, requests)
    assert [outcome.tokens for outcome in again] == [outcome.tokens for outcome in alone]
    assert sum(outcome.usage.cached_prompt_tokens for outcome in again) > 0


@FORMS
def test_a_replay_goes_on_with_the_same_tokens(diffusion: Diffusion) -> None:
    """As a server sends a request again with the tokens of whole messages."""
    engine = make_engine(decoder_of(diffusion), config=ENGINE)
    for request in requests_of(2, 4):
        request = replace(request, max_output_tokens=24)
        whole = decode(engine, [request])[0]
        received: list[int] = []
        for event in whole.events[:-1]:
            received += event.token_ids
            replayed = replace(request, emitted=tuple(received), replay=True)
            assert received + decode(engine, [replayed])[0].tokens == whole.tokens


@FORMS
def test_a_stop_token_ends_a_completion_inside_of_a_canvas(diffusion: Diffusion) -> None:
    engine = make_engine(decoder_of(diffusion), config=ENGINE)
    for request in requests_of(3, 4):
        whole = decode(engine, [replace(request, max_output_tokens=20)])[0].tokens
        stop = frozenset(whole[5:6])
        outcome = decode(engine, [replace(request, max_output_tokens=20, stop_token_ids=stop)])[0]
        expected = completion(reference_of(diffusion), request.prompt, 20, request.sampling, stop)
        assert outcome.tokens == expected
        assert outcome.events[-1].finish_reason is FinishReason.STOP


@FORMS
def test_biases_hold_at_every_position(diffusion: Diffusion) -> None:
    rules = LogitsRules(logit_bias={7: 100.0})
    request = replace(requests_of(4)[1], rules=rules, max_output_tokens=9)
    [outcome] = decode(make_engine(decoder_of(diffusion), config=ENGINE), [request])
    assert outcome.tokens == [7] * 9


@FORMS
def test_all_steps_give_the_same_bits(diffusion: Diffusion) -> None:
    runner = UnhurriedRunner(decoder_of(diffusion), ENGINE)
    runner.warm_up(NO_FEATURES, diffusion.canvas_tokens)
    assert self_test(runner, 16).exact


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (replace(ENGINE, page_size=6, num_pages=60), "whole canvases"),
        (
            replace(ENGINE, scheduler=replace(ENGINE.scheduler, max_step_tokens=23)),
            "three canvases",
        ),
    ],
)
def test_sizes_that_hold_no_canvases_are_refused(settings: EngineSettings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine(decoder_of(FAST_DLLM), config=settings)
