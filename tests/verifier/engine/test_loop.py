"""The engine against the target alone, with every kind of drafter."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.drafter.requests import context_lengths
from tests.fakes.drafting import DraftRule, ScriptedMethod, SessionLink
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.verifier.support import (
    CONFIG,
    LAYER_IDS,
    Outcome,
    decode,
    dense_features,
    finish,
    link_to,
    make_engine,
    random_requests,
    repairs_of,
    scripted,
)

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.drafting.draft_caches import MAX_REFUSALS
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest


@pytest.fixture(scope="module")
def method() -> ScriptedMethod:
    return scripted()


@pytest.fixture(scope="module")
def link(method: ScriptedMethod) -> SessionLink:
    return SessionLink(method)


@pytest.fixture(scope="module")
def drafting(decoder: Decoder, link: SessionLink) -> Engine:
    return make_engine(decoder, link)


@pytest.fixture(autouse=True)
def _reset(link: SessionLink, method: ScriptedMethod) -> Iterator[None]:
    yield
    link.fault_rate, link.down, link.always = 0.0, False, None
    link.faults.clear()
    method.drafted_from.clear()


def oracle(requests: list[GenerationRequest], outputs: list[list[int]], rate: float) -> DraftRule:
    """Return a script that drafts what some known output says, each token right at `rate`."""
    rng = random.Random(0)
    known = [[*request.prompt, *output] for request, output in zip(requests, outputs, strict=True)]

    def draft(position: int, anchor: int, length: int) -> list[int]:
        fits = [tokens for tokens in known if tokens[position : position + 1] == [anchor]]
        following = fits[0][position + 1 : position + 1 + length] if fits else []
        return [token if rng.random() < rate else (token + 1) % 256 for token in following]

    return draft


def test_greedy_output_is_that_of_the_reference(decoder: Decoder, plain: Engine) -> None:
    reference = ReferenceDecoder(CONFIG, params_from_decoder(decoder))
    requests = [replace(r, sampling=Sampling()) for r in random_requests(1, count=6)]
    for request, outcome in zip(requests, decode(plain, requests), strict=True):
        tokens = list(request.prompt)
        for _ in range(request.max_output_tokens):
            tokens.append(int(np.argmax(reference.logits(tokens)[-1])))
        assert outcome.tokens == tokens[len(request.prompt) :]


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_drafting_never_changes_the_output(
    plain: Engine, drafting: Engine, method: ScriptedMethod, right: float
) -> None:
    requests = random_requests(2)
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    method.draft = oracle(requests, expected, right)
    outcomes = decode(drafting, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    accepted = sum(sum(outcome.usage.accepted_per_position) for outcome in outcomes)
    assert (accepted > 0) == (right > 0)


def test_a_perfect_drafter_gains_a_whole_block_per_step(
    plain: Engine, drafting: Engine, method: ScriptedMethod
) -> None:
    request = GenerationRequest("one", (5, 6, 7), max_output_tokens=13)
    [expected] = decode(plain, [request])
    method.draft = oracle([request], [expected.tokens], 1.0)
    [outcome] = decode(drafting, [request])
    assert outcome.tokens == expected.tokens
    # 1 token from the prompt, then 4 per step: 3 drafted and the bonus.
    assert [len(event.token_ids) for event in outcome.events] == [1, 4, 4, 4]
    steps = [(event.drafted, event.accepted) for event in outcome.events]
    assert steps == [(0, 0), (3, 3), (3, 3), (3, 3)]
    usage = outcome.usage
    assert usage.verification_steps == 3
    # The last draft may not overshoot, so its third token was still needed.
    assert usage.accepted_per_position == [3, 3, 3]


def test_a_request_decodes_alone_as_in_a_crowd(plain: Engine) -> None:
    requests = random_requests(3)
    together = [outcome.tokens for outcome in decode(plain, requests)]
    alone = [decode(plain, [request])[0].tokens for request in requests]
    assert alone == together


def test_output_goes_on_after_an_interruption(plain: Engine, drafting: Engine) -> None:
    for request in random_requests(4, count=4, max_output_tokens=12):
        [whole] = decode(plain, [request])
        for cut in range(1, len(whole.tokens)):
            resumed = replace(request, emitted=tuple(whole.tokens[:cut]))
            [rest] = decode(drafting, [resumed])
            assert whole.tokens[:cut] + rest.tokens == whole.tokens


def test_preempted_sequences_say_the_same(decoder: Decoder, plain: Engine) -> None:
    requests = [
        GenerationRequest(f"p{i}", tuple(range(i, i + 20)), max_output_tokens=24) for i in range(4)
    ]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    # 26 pages of 4 tokens: four sequences of 44 tokens cannot all stay.
    scarce = make_engine(decoder, link_to(oracle(requests, expected, 0.5)), pages=26)
    outcomes = [Outcome() for _ in requests]
    for request, outcome in zip(requests, outcomes, strict=True):
        scarce.submit(request, outcome)
    while scarce.step():
        assert scarce.drafts is not None
        cached = {cache.sequence for cache in scarce.drafts.caches}
        for waiting in scarce.scheduler.waiting:
            assert waiting not in cached
            assert waiting.draft is None
    assert [outcome.tokens for outcome in outcomes] == expected
    assert scarce.metrics.preemptions._value.get() > 0
    assert scarce.load().used_pages == 0


def test_the_published_share_of_pages_is_that_of_live_sequences(plain: Engine) -> None:
    def share() -> float:
        return float(plain.metrics.kv_cache_usage._value.get())

    plain.submit(GenerationRequest("one", tuple(range(20)), max_output_tokens=4), Outcome())
    assert plain.step()
    load = plain.load()
    assert 0 < share() == load.used_pages / load.total_pages < 1
    finish(plain)
    assert share() == 0


def test_the_published_saturation_counts_who_waits_of_the_slots(plain: Engine) -> None:
    slots = plain.scheduler.settings.max_sequences
    for number in range(2 * slots):
        request = GenerationRequest(f"s{number}", (number, 1), max_output_tokens=4)
        plain.submit(request, Outcome())
    assert plain.step()
    assert plain.metrics.slots._value.get() == slots
    assert plain.metrics.saturation._value.get() == 2
    finish(plain)
    assert plain.metrics.saturation._value.get() == 0


def test_a_known_prefix_is_not_computed_again_and_still_drafted_from(
    plain: Engine, drafting: Engine, method: ScriptedMethod, decoder: Decoder
) -> None:
    request = GenerationRequest("a", tuple(range(100, 130)), max_output_tokens=8)
    [first] = decode(drafting, [request])
    method.draft = oracle([request], [first.tokens], 1.0)
    [second] = decode(drafting, [request])
    assert second.tokens == first.tokens
    usage = second.usage
    assert usage.cached_prompt_tokens == 28
    assert sum(usage.accepted_per_position) > 0
    truth = dense_features(decoder, [*request.prompt, *first.tokens])
    for held in method.drafted_from:
        context = held.features.astype(np.float32)
        np.testing.assert_allclose(context, truth[: len(context)], rtol=0.02, atol=0.02)


def test_a_prefix_is_shared_only_under_the_same_salt(plain: Engine) -> None:
    prompt = tuple(range(130, 160))
    cached = []
    completions = set()
    for salt in (b"a", b"b", b"", b"b", b"a", b""):
        request = GenerationRequest("s", prompt, max_output_tokens=4, cache_salt=salt)
        [outcome] = decode(plain, [request])
        usage = outcome.usage
        cached.append(usage.cached_prompt_tokens)
        completions.add(tuple(outcome.tokens))
    assert cached == [0, 0, 0, 28, 28, 28]
    assert len(completions) == 1


def test_a_drafter_with_another_projection_gets_its_own_features(
    plain: Engine, decoder: Decoder
) -> None:
    request = GenerationRequest("a", tuple(range(100, 130)), max_output_tokens=24)
    [expected] = decode(plain, [request])
    truth = dense_features(decoder, [*request.prompt, *expected.tokens])
    rng = np.random.default_rng(0)
    weights = 0.3 * rng.standard_normal((2, 12, len(LAYER_IDS) * CONFIG.hidden_size))
    projections = [FeatureProjection(weight.astype(np.float32)) for weight in weights]
    methods = [
        scripted(oracle([request], [expected.tokens], 0.7), projection=projection)
        for projection in projections
    ]
    link = SessionLink(methods[0])
    engine = make_engine(decoder, link)
    outcome = Outcome()
    engine.submit(request, outcome)
    for _ in range(7):
        engine.step()
    # It comes back as another one, in the middle of a completion.
    link.method = methods[1]
    link.close()
    link.transport = None
    finish(engine)
    assert outcome.tokens == expected.tokens
    for method, projection in zip(methods, projections, strict=True):
        assert method.drafted_from
        projected = truth @ np.asarray(projection.weight).T
        for held in method.drafted_from:
            context = held.features.astype(np.float32)
            np.testing.assert_allclose(context, projected[: len(context)], rtol=0.05, atol=0.05)


def test_forgotten_prefixes_are_computed_again(plain: Engine) -> None:
    request = GenerationRequest("a", tuple(range(50, 80)), max_output_tokens=4)
    cached = []
    for forget in (False, False, True):
        if forget:
            plain.forget_prefixes()
        [outcome] = decode(plain, [request])
        usage = outcome.usage
        cached.append(usage.cached_prompt_tokens)
    assert cached == [0, 28, 0]


@pytest.mark.parametrize("seed", range(6))
def test_faults_on_the_wire_are_found_repaired_and_harmless(
    plain: Engine,
    drafting: Engine,
    method: ScriptedMethod,
    link: SessionLink,
    decoder: Decoder,
    seed: int,
) -> None:
    requests = random_requests(10 + seed, count=6)
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    method.draft = oracle(requests, expected, 0.8)
    repairs = repairs_of(drafting)
    link._random.seed(seed)
    link.fault_rate = 0.3
    outcomes = [Outcome() for _ in requests]
    for request, outcome in zip(requests, outcomes, strict=True):
        drafting.submit(request, outcome)
    while drafting.step():
        assert_in_sync(drafting, link)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert link.faults
    assert repairs_of(drafting) > repairs
    # Whatever was drafted from was exactly the committed context of the sequence.
    truths = [
        [*request.prompt, *tokens] for request, tokens in zip(requests, expected, strict=True)
    ]
    features = [dense_features(decoder, tokens) for tokens in truths]
    for held in method.drafted_from:
        length = len(held.features)
        context = held.features.astype(np.float32)
        assert any(
            tokens[length : length + 1] == [held.anchor]
            and np.allclose(context, known[:length], rtol=0.02, atol=0.02)
            for tokens, known in zip(truths, features, strict=True)
        )


def assert_in_sync(engine: Engine, link: SessionLink) -> None:
    """Wherever a response has come, the draft KV cache is as long as the committed tokens."""
    sync = engine.drafts
    assert sync is not None
    assert link.transport is not None or not list(sync.caches)
    for cache in sync.caches:
        sequence = cache.sequence
        if sequence.draft is not None:
            assert link.transport is not None
            held = context_lengths(link.transport.session)[cache.cache_id]
            assert held == cache.length == sequence.committed


def test_decoding_goes_on_without_the_drafter_and_drafts_again_when_it_returns(
    plain: Engine, drafting: Engine, method: ScriptedMethod, link: SessionLink
) -> None:
    request = GenerationRequest("long", (1, 2, 3), max_output_tokens=40)
    [expected] = decode(plain, [request])
    method.draft = oracle([request], [expected.tokens], 1.0)
    outcome = Outcome()
    drafting.submit(request, outcome)
    for _ in range(3):
        drafting.step()
    drafting.conclude()
    gained = [len(event.token_ids) for event in outcome.events]
    assert max(gained) > 1
    link.down = True
    assert link.transport is not None
    link.transport._broken = "killed"
    for _ in range(3):
        drafting.step()
    drafting.conclude()
    assert [len(event.token_ids) for event in outcome.events[-2:]] == [1, 1]
    link.down = False
    finish(drafting)
    assert outcome.tokens == expected.tokens
    assert max(len(event.token_ids) for event in outcome.events[-4:]) > 1


def test_a_wire_that_cuts_everything_is_given_up(
    plain: Engine, drafting: Engine, method: ScriptedMethod, link: SessionLink
) -> None:
    request = GenerationRequest("cut", (1, 2, 3), max_output_tokens=40)
    [expected] = decode(plain, [request])
    link.always = "truncate"
    [outcome] = decode(drafting, [request])
    assert outcome.tokens == expected.tokens
    # The last request only says that the draft KV cache is released.
    assert len(link.faults) == MAX_REFUSALS + 2
    assert not method.drafted_from


def test_a_drafter_that_comes_late_is_taken_up(
    decoder: Decoder, plain: Engine, method: ScriptedMethod
) -> None:
    request = GenerationRequest("late", (1, 2, 3), max_output_tokens=30)
    [expected] = decode(plain, [request])
    method.draft = oracle([request], [expected.tokens], 1.0)
    link = SessionLink(method, down=True)
    engine = make_engine(decoder, link)
    assert engine.drafter is None
    outcome = Outcome()
    engine.submit(request, outcome)
    for _ in range(5):
        engine.step()
    engine.conclude()
    assert [len(event.token_ids) for event in outcome.events] == [1] * 5
    link.down = False
    finish(engine)
    assert outcome.tokens == expected.tokens
    assert len(outcome.events[-2].token_ids) == 4
    # What it had committed was computed again, with features this time.
    truth = dense_features(decoder, [*request.prompt, *expected.tokens])
    for held in method.drafted_from:
        context = held.features.astype(np.float32)
        np.testing.assert_allclose(context, truth[: len(context)], rtol=0.02, atol=0.02)


def test_stop_tokens_and_limits(plain: Engine, drafting: Engine, method: ScriptedMethod) -> None:
    request = GenerationRequest("stop", (9, 8, 7), max_output_tokens=30)
    [whole] = decode(plain, [request])
    assert whole.events[-1].finish_reason is FinishReason.LENGTH
    method.draft = oracle([request], [whole.tokens], 1.0)
    for stop in sorted(set(whole.tokens)):
        stopped = replace(request, stop_token_ids=frozenset({stop}))
        [outcome] = decode(drafting, [stopped])
        assert outcome.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
        assert outcome.events[-1].finish_reason is FinishReason.STOP
        usage = outcome.usage
        # What was right but came after the stop token was not gained.
        assert sum(usage.accepted_per_position) <= len(outcome.tokens) - 1
    to_the_end = replace(request, max_output_tokens=1000)
    [outcome] = decode(drafting, [to_the_end])
    assert len(outcome.tokens) == 96 - 3
    assert outcome.events[-1].finish_reason is FinishReason.LENGTH


def test_speculation_can_be_turned_off_and_bounded(
    plain: Engine, drafting: Engine, method: ScriptedMethod
) -> None:
    request = GenerationRequest("b", (4, 4, 4), max_output_tokens=9)
    [expected] = decode(plain, [request])
    method.draft = oracle([request], [expected.tokens], 1.0)
    for most, gains in ((0, {1}), (1, {1, 2}), (2, {1, 3, 2})):
        [outcome] = decode(drafting, [replace(request, max_draft_tokens=most)])
        assert outcome.tokens == expected.tokens
        assert {len(event.token_ids) for event in outcome.events} == gains
