"""Targets that denoise: the engine against the published programs on a float64 decoder."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array
from tests.compiled_once import own_programs
from tests.models.builders import random_decoder
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.models.tiny import LIKE_GEMMA4, tiny_config
from tests.verifier.denoising_reference import completion
from tests.verifier.support import TINY_ENGINE, UnhurriedRunner, decode, make_engine, value_of

from blockdraft_models.decoder.attention import Reach
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.self_conditioning import CanvasInputs
from blockdraft_models.diffusion import Diffusion, MaskDiffusion, NoiseDiffusion
from blockdraft_models.sampling_options import LogitsRules, Sampling
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_verifier.device import denoising, runner, step
from blockdraft_verifier.device.cache import CacheLayout, PagedCache, allocate_cache
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest
from blockdraft_verifier.self_test import self_test

TARGETS = Path(__file__).parents[1] / "golden" / "targets"
MASK = 255
# Shares at which random weights take some tokens together, and others alone.
SDAR = MaskDiffusion(4, 4, MASK, 0.12)
FAST_DLLM = MaskDiffusion(8, 4, MASK, 0.12, shifted=True)
# Few steps, since what conditions the next one multiplies every error of rounding.
GEMMA = NoiseDiffusion(
    *(8, 260, 6),
    entropy_bound=7.0,
    last_temperature=0.2,
    first_temperature=0.25,
    least_entropy=1.6,
)
FORMS = pytest.mark.parametrize(
    "diffusion", [SDAR, FAST_DLLM, GEMMA], ids=["sdar", "fast-dllm", "gemma"]
)
ENGINE = replace(
    TINY_ENGINE,
    page_size=8,
    num_pages=48,
    scheduler=replace(TINY_ENGINE.scheduler, max_step_tokens=32),
)


def new_decoder(diffusion: Diffusion, dtype: str = "float32") -> Decoder:
    if isinstance(diffusion, NoiseDiffusion):
        config = tiny_config(**LIKE_GEMMA4, num_layers=2, diffusion=diffusion)
        return random_decoder(config, 3, dtype)
    config = tiny_config("qwen3", num_layers=2, diffusion=diffusion)
    decoder = Decoder(config, dtype=dtype, rngs=nnx.Rngs(3))
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
    steps = sum(outcome.usage.denoising_steps for outcome in outcomes)
    if isinstance(diffusion, MaskDiffusion):
        assert 0.4 * tokens < steps < 0.9 * tokens


@dataclass(frozen=True, slots=True)
class CanvasAttend:
    """Attention to a text and a canvas that begins at a position, without a cache."""

    start: int

    def __call__(
        self, q: Array, k: Array, v: Array, cache: Any, reach: Reach, /
    ) -> tuple[Array, Any]:
        place = jnp.arange(len(q), dtype=jnp.int32)
        last = jnp.where(place < self.start, place, len(q) - 1)
        first = jnp.minimum(place, self.start)
        visible = reach.sees(place[None], last[:, None], first[:, None])
        group = q.shape[1] // k.shape[1]
        keys, values = (jnp.repeat(heads, group, axis=1) for heads in (k, v))
        scores = jnp.einsum("qhd,khd->hqk", q, keys) * q.shape[2] ** -0.5
        weights = jax.nn.softmax(jnp.where(visible[None], scores, -jnp.inf))
        return jnp.einsum("hqk,khd->qhd", weights, values), cache


def test_scores_of_a_canvas_are_those_of_transformers() -> None:
    golden = np.load(TARGETS.parent / "diffusion-gemma.npz")
    decoder, _ = load_decoder(TARGETS / "diffusion-gemma", dtype=jnp.float32)
    text = golden["prompt"]
    signal = jnp.zeros((golden["canvases"].shape[1], decoder.config.hidden_size))
    scale = np.abs(golden["logits"]).max()
    for canvas, expected in zip(golden["canvases"], golden["logits"], strict=True):
        tokens = jnp.asarray(np.concatenate([text, canvas]), jnp.int32)
        joint = jnp.arange(len(tokens), dtype=jnp.int32) >= len(text)
        signals = jnp.pad(signal, ((len(text), 0), (0, 0)))
        output = decoder(
            tokens,
            jnp.arange(len(tokens), dtype=jnp.int32),
            [None] * decoder.cache_count,
            CanvasAttend(len(text)),
            canvas=CanvasInputs(joint, signals),
        )
        logits = decoder.logits(output.hidden)[len(text) :]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * scale)
        means = jax.nn.softmax(logits) @ decoder.embedding.table[...]
        signal = means * decoder.config.embedding_scale


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        *(("sdar", "float"), ("sdar", "int8"), ("sdar-moe", "float"), ("fast-dllm", "float")),
        ("diffusion-gemma", "float"),
    ],
)
def test_checkpoints_complete_as_with_transformers(name: str, weights: WeightFormat) -> None:
    decoder, _ = load_decoder(TARGETS / name, dtype=jnp.float32, weights=weights)
    folder = TARGETS if name != "diffusion-gemma" else TARGETS.parent
    continued = np.load(folder / f"{name}.npz")["continued"].reshape(-1).tolist()
    scheduler = replace(ENGINE.scheduler, max_step_tokens=64, max_context_tokens=144)
    settings = replace(ENGINE, page_size=16, num_pages=18, scheduler=scheduler)
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


def test_what_an_ended_canvas_leaves_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    [request] = requests_of(5, 1)
    [clean] = decode(make_engine(decoder_of(GEMMA), config=ENGINE), [request])

    def spoiled(layout: CacheLayout) -> PagedCache:
        cache = allocate_cache(layout)
        assert cache.signals is not None
        return cache._replace(signals=jnp.full_like(cache.signals, jnp.nan))

    monkeypatch.setattr(runner, "allocate_cache", spoiled)
    [outcome] = decode(make_engine(decoder_of(GEMMA), config=ENGINE), [request])
    assert outcome.tokens == clean.tokens


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
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_steps_give_the_same_bits(diffusion: Diffusion, dtype: str) -> None:
    steps = UnhurriedRunner(new_decoder(diffusion, dtype), ENGINE)
    steps.warm_up(NO_FEATURES, diffusion.canvas_tokens)
    assert self_test(steps, 16).exact


@pytest.mark.parametrize("pages", [12, 16])
def test_small_caches_are_tested_too(pages: int) -> None:
    limits = replace(ENGINE.scheduler, max_sequences=1, max_step_tokens=16)
    steps = UnhurriedRunner(new_decoder(GEMMA), replace(ENGINE, num_pages=pages, scheduler=limits))
    steps.warm_up(NO_FEATURES, GEMMA.canvas_tokens)
    assert self_test(steps, 16).exact


def test_canvases_that_round_differently_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = denoising.denoise

    def coarse(decoder: Decoder, logits: Array, inputs: Any) -> Any:
        """Depend on how many canvases there are."""
        choices, denoised = exact(decoder, logits, inputs)
        return choices, denoised._replace(scores=denoised.scores * (1 + len(logits) * 1e-6))

    monkeypatch.setattr(step, "denoise", coarse)
    with own_programs():
        steps = UnhurriedRunner(new_decoder(GEMMA), ENGINE)
        steps.warm_up(NO_FEATURES, GEMMA.canvas_tokens)
        assert not self_test(steps, 16).exact
