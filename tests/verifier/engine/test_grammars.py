"""Constrained outputs: what an independent reference says, and the same with every drafter."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from llguidance import LLMatcher, LLParserLimits
from tests.fakes.drafting import DraftRule
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.verifier.engine.test_loop import oracle
from tests.verifier.grammars import (
    END,
    choice_of,
    constrained_requests,
    matcher,
    text_grammar,
    tiny_tokenizer,
)
from tests.verifier.logits_reference import VOCAB, noise_at
from tests.verifier.support import (
    CONFIG,
    TINY_ENGINE,
    Outcome,
    decode,
    finish,
    link_to,
    make_engine,
    wrong,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import LogitsRules, Sampling
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.grammar import Grammar, GrammarError, Guided, followed
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest
from blockdraft_verifier.scheduling.token_masks import TokenMasks

TEXTS = ["alpha", "alphabet", "beta", "", "été", "al", "{}"]


def allowed_after(output: Sequence[int]) -> list[int]:
    """Return the tokens of bytes that one of the texts goes on with, and the end where one ends."""
    texts = [list(text.encode()) for text in TEXTS]
    so_far = list(output)
    following = [text[len(so_far) :] for text in texts if text[: len(so_far)] == so_far]
    return [rest[0] if rest else END for rest in following]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_choice_is_the_best_of_what_the_language_allows(
    decoder: Decoder, plain: Engine, temperature: float
) -> None:
    target = ReferenceDecoder(CONFIG, params_from_decoder(decoder))
    compiled = matcher(tiny_tokenizer(), choice_of(TEXTS))
    rng, said = random.Random(1), set()
    for seed in range(8):
        prompt = tuple(rng.choices(range(256), k=rng.randint(1, 20)))
        request = GenerationRequest(
            "r",
            prompt,
            sampling=Sampling(temperature=temperature, seed=seed),
            grammar=compiled,
            stop_token_ids=frozenset((END,)),
        )
        [outcome] = decode(plain, [request])
        output: list[int] = []
        # Where nothing can follow, the output ends without an end token.
        while END not in output and allowed_after(output) != [END]:
            tokens = [*prompt, *output]
            scores = target.logits(tokens)[-1] / (temperature or 1.0)
            scores = scores + noise_at(request.sampling, len(tokens))
            output.append(max(allowed_after(output), key=lambda token: scores[token]))
        assert outcome.tokens == output
        assert outcome.events[-1].finish_reason is FinishReason.STOP
        said.add(tuple(output))
    assert len(said) > 1


@pytest.fixture(scope="module")
def scripts() -> dict[str, DraftRule]:
    """What the drafter drafts, for a test to say."""
    return {}


@pytest.fixture(scope="module")
def drafting(decoder: Decoder, scripts: dict[str, DraftRule]) -> Engine:
    return make_engine(decoder, link_to(lambda *place: scripts["drafts"](*place)), pages=48)


@pytest.mark.parametrize("right", [0.0, 0.5])
def test_drafting_never_changes_a_constrained_output(
    plain: Engine, drafting: Engine, scripts: dict[str, DraftRule], right: float
) -> None:
    requests = constrained_requests(int(10 * right), count=72)
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    scripts["drafts"] = oracle(requests, expected, right) if right else wrong
    before = _counted(drafting)
    outcomes = decode(drafting, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert sum(outcome.usage.forced for outcome in outcomes) > 100
    accepted, discarded = (after - b for after, b in zip(_counted(drafting), before, strict=True))
    assert (accepted > 100) == (right > 0)
    assert discarded > 50
    # A replay is followed through its grammar first; it may be that only its end was not heard of.
    over = [each.events[-1].finish_reason is FinishReason.STOP for each in outcomes]
    whole = [
        replace(replayed(request, tokens), max_output_tokens=len(tokens) + 9)
        for request, tokens, stopped in zip(requests, expected, over, strict=True)
        if stopped and END not in tokens
    ]
    assert len(whole) > 5
    for outcome in decode(drafting, whole):
        [event] = outcome.events
        assert (event.token_ids, event.finish_reason) == ((), FinishReason.STOP)
    halves = [(each, tokens) for each, tokens in zip(requests, expected, strict=True) if tokens[1:]]
    again = [replayed(each, out[: len(out) // 2]) for each, out in halves]
    for request, outcome, (_, tokens) in zip(again, decode(drafting, again), halves, strict=True):
        assert [*request.emitted, *outcome.tokens] == tokens


def replayed(request: GenerationRequest, emitted: Sequence[int]) -> GenerationRequest:
    assert request.grammar is not None
    grammar = followed(request.grammar, emitted)
    return replace(request, emitted=tuple(emitted), grammar=grammar)


def test_the_drafter_is_not_asked_where_all_is_forced(
    drafting: Engine, scripts: dict[str, DraftRule]
) -> None:
    asked: list[int] = []

    def note(position: int, anchor: int, length: int) -> list[int]:
        if length:  # and not features alone
            asked.append(length)
        return []

    scripts["drafts"] = note
    compiled = matcher(tiny_tokenizer(), choice_of(["forced" * 8]))
    request = GenerationRequest("r", (1, 2, 3), grammar=compiled, max_output_tokens=60)
    [outcome] = decode(drafting, [request])
    assert bytes(outcome.tokens) == b"forced" * 8
    assert outcome.usage.forced > 30
    # Only for the end, which is shorter than a draft.
    assert len(asked) <= 1
    [free] = decode(drafting, [replace(request, grammar=None)])
    assert len(asked) > len(free.tokens) // 2


def test_drafts_are_left_out_where_as_many_tokens_are_forced() -> None:
    compiled = matcher(tiny_tokenizer(), choice_of(["alpha", "albino"]))
    assert [Grammar(compiled).forces(count) for count in (1, 2, 3)] == [True, True, False]


def test_a_parser_of_its_own_is_given_no_drafts() -> None:
    alone = Grammar(matcher(tiny_tokenizer(), choice_of(["alpha", "albino"])), alone=True)
    assert not alone.forces(1)
    assert alone.guide(b"albino", 4) == Guided((), cut=6)


def _counted(engine: Engine) -> list[float]:
    """Return how many of the drafter's tokens were accepted, and how many the grammar cut."""
    counters = (engine.metrics.accepted, engine.metrics.discarded)
    return [counter.labels("drafter")._value.get() for counter in counters]


def test_forced_tokens_are_drafted_without_a_drafter(decoder: Decoder, plain: Engine) -> None:
    alone = make_engine(decoder, config=replace(TINY_ENGINE, prompt_lookup=True))
    requests = [replace(r, prompt_lookup=False) for r in constrained_requests(2, count=24)]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    outcomes = decode(alone, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    for outcome in outcomes:
        # All of them were right.
        assert sum(outcome.usage.drafted_per_position) == outcome.usage.forced
    assert sum(outcome.usage.forced for outcome in outcomes) > 40
    plainly = decode(alone, [replace(request, max_draft_tokens=0) for request in requests])
    assert [outcome.tokens for outcome in plainly] == expected
    assert not any(outcome.usage.forced for outcome in plainly)


def test_requests_without_a_grammar_are_undisturbed_by_those_beside_them(plain: Engine) -> None:
    constrained = constrained_requests(3, count=6)
    without = [replace(request, grammar=None) for request in constrained]
    expected = [decode(plain, [request])[0].tokens for request in without]
    mixed = [one for pair in zip(without, constrained, strict=True) for one in pair]
    assert [outcome.tokens for outcome in decode(plain, mixed)][::2] == expected


def test_the_grammar_comes_before_other_masks(plain: Engine) -> None:
    compiled = matcher(tiny_tokenizer(), choice_of(["abba", "xyzzy"]))
    for allowed, said in ((b"xyz", "xyzzy"), (b"ab", "abba"), (b"xa", None), (b"q", None)):
        masks = TokenMasks(VOCAB, allowed=tuple(allowed), min_tokens=1, stop_token_ids=(END,))
        request = GenerationRequest("r", (1, 2), grammar=compiled, masks=masks)
        output = bytes(decode(plain, [request])[0].tokens).decode()
        assert output == said or (said is None and output in ("abba", "xyzzy"))


def test_an_output_that_the_parser_gives_up_on_waits_alone(plain: Engine) -> None:
    ambiguous = LLMatcher(
        tiny_tokenizer(),
        text_grammar(lark='start: e "!"\ne: e e e | e e | "a"'),
        log_level=0,
        limits=LLParserLimits(step_max_items=200),
    )
    [other] = constrained_requests(5, count=1)
    [expected] = decode(plain, [other])
    biased = LogitsRules(logit_bias={ord("!"): -100.0})
    failing = GenerationRequest("r", (1, 2), grammar=ambiguous, rules=biased, max_output_tokens=60)
    failed, undisturbed = Outcome(), Outcome()
    sequence = plain.submit(failing, failed)
    plain.submit(other, undisturbed)
    finish(plain)
    assert failed.events[-1].awaiting_parser
    assert 10 < len(failed.tokens) < 60
    assert set(failed.tokens) == {ord("a")}
    assert undisturbed.tokens == expected.tokens
    # It goes on with another parser, and ends where that one gives up too.
    with pytest.raises(GrammarError):
        followed(ambiguous, b"b")
    for _ in range(2):
        plain.resume(sequence, Grammar(followed(ambiguous, failed.tokens), alone=True))
        finish(plain)
    assert failed.events[-1].finish_reason is FinishReason.GRAMMAR_FAILED
    assert not plain.load().running
