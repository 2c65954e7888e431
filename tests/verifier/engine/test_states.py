"""Targets whose layers have a state: drafts, preemptions and company never change a token."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.drafting import DraftRule, SessionLink
from tests.models.builders import random_decoder
from tests.models.tiny import LIKE_QWEN3_5, tiny_config
from tests.verifier.support import TINY_ENGINE, decode, make_engine, scripted

from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest

BLOCK = 8
SETTINGS = replace(
    TINY_ENGINE,
    page_size=8,
    num_pages=96,
    scheduler=SchedulerSettings(max_sequences=4, max_step_tokens=32, max_context_tokens=160),
)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    shape = {**LIKE_QWEN3_5, "recurrent": (True, True, False), "num_layers": 3}
    return random_decoder(tiny_config(**shape))


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> Engine:
    return make_engine(decoder, config=SETTINGS)


def requests(temperature: float) -> list[GenerationRequest]:
    """Return completions over two ends of chunks, of prompts that end before, at and after one."""
    rng = np.random.default_rng(0)
    lengths = [1, 5, CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 40, 70]
    return [
        GenerationRequest(
            f"r{index}",
            tuple(int(token) for token in rng.integers(0, 256, length)),
            sampling=Sampling(temperature=temperature, seed=index),
            max_output_tokens=72,
        )
        for index, length in enumerate(lengths)
    ]


def link_to(rule: DraftRule) -> SessionLink:
    return SessionLink(scripted(rule, block_size=BLOCK))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_alone_in_company_and_preempted(
    decoder: Decoder, plain: Engine, temperature: float
) -> None:
    asked = requests(temperature)
    together = [outcome.tokens for outcome in decode(plain, asked)]
    assert [decode(plain, [request])[0].tokens for request in asked] == together
    # Four sequences of 100 tokens and more do not all stay.
    scarce = make_engine(decoder, config=SETTINGS, pages=40)
    assert [outcome.tokens for outcome in decode(scarce, asked)] == together
    assert scarce.metrics.preemptions._value.get() > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_drafts_never_change_the_output(
    decoder: Decoder, plain: Engine, temperature: float, right: float
) -> None:
    asked, rng = requests(temperature), np.random.default_rng(1)
    expected = [outcome.tokens for outcome in decode(plain, asked)]
    known = [[*request.prompt, *said] for request, said in zip(asked, expected, strict=True)]

    def draft(position: int, anchor: int, length: int) -> list[int]:
        fits = [tokens for tokens in known if tokens[position : position + 1] == [anchor]]
        following = fits[0][position + 1 :][:length] if fits else [0] * length
        return [token if rng.random() < right else (token + 1) % 256 for token in following]

    drafting = make_engine(decoder, link_to(draft), SETTINGS, pages=40)
    outcomes = decode(drafting, asked)
    assert [outcome.tokens for outcome in outcomes] == expected
    accepted = sum(sum(outcome.usage.accepted_per_position) for outcome in outcomes)
    assert (accepted > 0) == (right > 0)
    if right == 1.0:
        assert sum(len(outcome.events) for outcome in outcomes) < sum(map(len, expected)) / 3


def test_output_goes_on_after_an_interruption(plain: Engine) -> None:
    request = requests(1.0)[5]
    [whole] = decode(plain, [request])
    for cut in (1, 23, 24, 25, 60):
        [rest] = decode(plain, [replace(request, emitted=tuple(whole.tokens[:cut]))])
        assert whole.tokens[:cut] + rest.tokens == whole.tokens


def test_blocks_are_no_longer_than_can_be_taken_back(decoder: Decoder) -> None:
    engine = make_engine(decoder, SessionLink(scripted(block_size=64)), SETTINGS)
    assert engine.scheduler.max_block == engine.settings.rollback_tokens == 30


def test_a_known_beginning_is_computed_once(decoder: Decoder, plain: Engine) -> None:
    """From the last end of a page and a chunk at which a step ended."""
    [request, other] = requests(0.0)[5:7]
    engine = make_engine(decoder, config=SETTINGS)
    [expected] = decode(plain, [request])
    [first] = decode(engine, [request])
    said = tuple(first.tokens)
    assert said == tuple(expected.tokens)
    assert first.usage.cached_prompt_tokens == 0
    # The same again, with company that takes over the slot, and a conversation that goes on.
    [again, _] = decode(engine, [request, other])
    assert again.tokens == first.tokens
    assert again.usage.cached_prompt_tokens == CHUNK_TOKENS
    longer = replace(request, prompt=(*request.prompt, *said, 5, 6, 7), max_output_tokens=20)
    [fresh] = decode(plain, [replace(longer, cache_salt=b"other")])
    [continued] = decode(engine, [longer])
    assert continued.tokens == fresh.tokens
    assert continued.usage.cached_prompt_tokens == 3 * CHUNK_TOKENS


def test_a_known_beginning_waits_for_the_steps_under_way(decoder: Decoder) -> None:
    asked = requests(0.0)
    engine = make_engine(decoder, config=SETTINGS)
    [expected] = decode(engine, [asked[4]])
    assert len(asked[4].prompt) == CHUNK_TOKENS + 1
    others = [engine.submit(request, lambda event: None) for request in asked[:3]]
    while not all(sequence.output_count > 1 for sequence in others):
        engine.step()
    [again] = decode(engine, [asked[4]])
    assert again.tokens == expected.tokens
    assert again.usage.cached_prompt_tokens == CHUNK_TOKENS


def test_saved_states_give_way_to_newer_ones(decoder: Decoder, plain: Engine) -> None:
    few = replace(SETTINGS, state_snapshots=2)
    engine, asked = make_engine(decoder, config=few), requests(0.0)
    expected = [outcome.tokens for outcome in decode(plain, asked)]
    for _ in range(3):
        assert [outcome.tokens for outcome in decode(engine, asked)] == expected
    for request, tokens in zip(asked, expected, strict=True):
        for _ in range(2):
            [alone] = decode(engine, [request])
            assert alone.tokens == tokens
        # The state at the end of a completion takes only one of two places.
        whole = (len(request.prompt) - 1) // CHUNK_TOKENS * CHUNK_TOKENS
        assert alone.usage.cached_prompt_tokens == whole
    none = make_engine(decoder, config=replace(SETTINGS, state_snapshots=0))
    for _ in range(2):
        [outcome] = decode(none, asked[-1:])
        assert outcome.tokens == expected[-1]
        assert outcome.usage.cached_prompt_tokens == 0


def test_states_between_long_steps_are_those_of_their_places(decoder: Decoder) -> None:
    """A prompt's step after one that is still under way may overwrite what it went out from."""
    limits = replace(SETTINGS.scheduler, max_step_tokens=96)
    engine = make_engine(decoder, config=replace(SETTINGS, scheduler=limits))
    rng = np.random.default_rng(2)
    prompt = tuple(int(token) for token in rng.integers(0, 256, 150))
    request = GenerationRequest("long", prompt, max_output_tokens=8)
    cached: list[int] = []
    [expected] = decode(engine, [replace(request, cache_salt=b"other")])
    for length in (150, 150, 149, 100, 150):
        asked = replace(request, prompt=prompt[:length])
        [fresh] = decode(engine, [replace(asked, cache_salt=str(len(cached)).encode())])
        [outcome] = decode(engine, [asked])
        assert outcome.tokens == fresh.tokens
        cached.append(outcome.usage.cached_prompt_tokens)
    assert outcome.tokens == expected.tokens
    assert cached[0] == 0
    assert cached[1] == cached[2] == cached[4] == 128
