"""Prompt lookup in the engine: the same completions, fewer steps for texts that repeat, counts."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.drafting import DraftRule
from tests.fakes.engine import FakeRunner, virtual_engine
from tests.verifier.engine.test_loop import oracle
from tests.verifier.support import (
    TINY_ENGINE,
    decode,
    engine_over,
    link_to,
    make_engine,
    nothing,
    random_requests,
    repairs_of,
    value_of,
    wrong,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.description import drafting_message
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.repetitions import Repetitions
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

LONG = GenerationRequest("long", (1, 2, 3), max_output_tokens=90)
PROMPT_LOOKUP = replace(TINY_ENGINE, prompt_lookup=True, prompt_lookup_block=4)


def repeating(text: Sequence[int], request: GenerationRequest) -> int:
    """Say the same few tokens again and again, sampled ones with slips."""
    slips = bool(request.sampling.temperature) and len(text) % 11 == 0
    return 10 + (text[-1] + 1 + slips) % 7


def changing(text: Sequence[int], request: GenerationRequest) -> int:
    """Say a token that follows from the last one, and nothing twice."""
    return (text[-1] * 7 + 3) % 97


def made(config: EngineSettings = PROMPT_LOOKUP, draft: DraftRule | None = None) -> Engine:
    link = None if draft is None else link_to(draft)
    return engine_over(FakeRunner(config, target=repeating), config, link)


def decoded(requests: Sequence[GenerationRequest]) -> list[list[int]]:
    """Return what the target says without any drafts."""
    return [outcome.tokens for outcome in decode(made(TINY_ENGINE), requests)]


def test_a_completion_that_repeats_itself_takes_fewer_steps() -> None:
    [expected], [outcome] = decoded([LONG]), decode(made(), [LONG])
    assert outcome.tokens == expected
    usage = outcome.usage
    assert usage.prompt_lookup_accepted > 20
    assert usage.verification_steps == len(outcome.tokens) - 1 - usage.prompt_lookup_accepted
    # Nobody else has drafted.
    assert sum(usage.drafted_per_position) == usage.prompt_lookup_drafted
    assert sum(usage.accepted_per_position) == usage.prompt_lookup_accepted
    # A block of four holds three drafted tokens.
    assert len(usage.drafted_per_position) == 3


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_prompt_lookup_never_changes_the_output(
    decoder: Decoder, plain: Engine, policy: Any
) -> None:
    # Greedy and sampled ones. Their prompts repeat themselves, and so do cold completions.
    requests = [
        replace(
            request,
            prompt=request.prompt[:8] * 3,
            sampling=replace(request.sampling, temperature=request.sampling.temperature / 4),
        )
        for request in random_requests(31, count=10, max_output_tokens=40)
    ]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    engine = make_engine(decoder, config=replace(PROMPT_LOOKUP, draft_policy=policy))
    outcomes = decode(engine, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    # Now all of it is among the recent completions.
    assert [outcome.tokens for outcome in decode(engine, requests)] == expected
    if policy == "fixed":
        sampled = [o for o, r in zip(outcomes, requests, strict=True) if r.sampling.temperature]
        assert sum(outcome.usage.prompt_lookup_drafted for outcome in sampled) > 0
        assert sum(outcome.usage.prompt_lookup_accepted for outcome in outcomes) > 0


@pytest.mark.parametrize("draft", [wrong, nothing])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_drafter_and_prompt_lookup_take_turns(draft: DraftRule, groups: Any) -> None:
    requests = [LONG, *random_requests(32, count=6, max_output_tokens=30)]
    engine = made(replace(PROMPT_LOOKUP, draft_groups=groups), draft)
    outcomes = decode(engine, requests)
    assert [outcome.tokens for outcome in outcomes] == decoded(requests)
    # The draft KV caches were kept up beside it.
    assert repairs_of(engine) == 0
    usages = [outcome.usage for outcome in outcomes]
    assert sum(usage.prompt_lookup_accepted for usage in usages) > 20
    if draft is wrong:
        drafted = sum(sum(usage.drafted_per_position) for usage in usages)
        assert drafted > sum(usage.prompt_lookup_drafted for usage in usages)


def test_what_a_tenant_was_told_before_takes_fewer_steps() -> None:
    def steps(config: EngineSettings, *requests: GenerationRequest) -> list[int]:
        engine, taken = engine_over(FakeRunner(config, target=changing), config), []
        for request in requests:
            [outcome] = decode(engine, [request])
            assert [outcome.tokens] == [expected.tokens for expected in decode(plain, [request])]
            taken.append(outcome.usage.verification_steps)
        return taken

    plain = engine_over(FakeRunner(target=changing))
    first = GenerationRequest("first", tuple(range(40, 60)), max_output_tokens=60)
    again = replace(first, prompt=(*first.prompt[5:],))
    other = replace(again, cache_salt=b"another tenant")
    whole, fewer, alone, without = steps(
        PROMPT_LOOKUP, first, again, other, replace(again, prompt_lookup=False)
    )
    assert whole == alone == without == 59
    # The first tokens must agree, and a block of four gains four tokens.
    assert fewer <= 59 / 3
    assert steps(replace(PROMPT_LOOKUP, recent_completions=0), first, again) == [59, 59]
    # What is decoded plainly is not remembered.
    assert steps(PROMPT_LOOKUP, replace(first, max_draft_tokens=0), again) == [59, 59]


def test_the_drafter_takes_over_where_prompt_lookup_finds_nothing() -> None:
    request = GenerationRequest("a", tuple(range(100, 130)), max_output_tokens=24)
    [expected] = decoded([request])
    [outcome] = decode(made(draft=oracle([request], [expected], 1.0)), [request])
    assert outcome.tokens == expected
    usage = outcome.usage
    by_drafter = sum(usage.accepted_per_position) - usage.prompt_lookup_accepted
    assert by_drafter > 0
    assert usage.verification_steps < 12


def test_prompt_lookup_goes_on_while_the_drafter_is_away() -> None:
    link = link_to(nothing)
    engine = engine_over(FakeRunner(PROMPT_LOOKUP, target=repeating), PROMPT_LOOKUP, link)
    link.down = True
    [outcome] = decode(engine, [LONG])
    assert [outcome.tokens] == decoded([LONG])
    assert outcome.usage.prompt_lookup_accepted > 20


def test_a_request_may_do_without() -> None:
    looking, [expected] = made(), decoded([LONG])
    for request in (replace(LONG, prompt_lookup=False), replace(LONG, max_draft_tokens=0)):
        [outcome] = decode(looking, [request])
        assert outcome.tokens == expected
        assert outcome.usage.prompt_lookup_drafted == 0
    [outcome] = decode(looking, [replace(LONG, max_draft_tokens=1)])
    usage = outcome.usage
    assert len(usage.drafted_per_position) == 1
    assert usage.prompt_lookup_accepted > 0


def test_preempted_and_resumed_completions_are_the_same() -> None:
    requests = [
        GenerationRequest(f"p{i}", tuple(range(i, i + 20)), max_output_tokens=24) for i in range(4)
    ]
    expected = decoded(requests)
    scarce = made(replace(PROMPT_LOOKUP, num_pages=26))
    assert [outcome.tokens for outcome in decode(scarce, requests)] == expected
    assert value_of(scarce.metrics.preemptions) > 0
    resumed = [
        replace(request, emitted=tuple(tokens[:9]))
        for request, tokens in zip(requests, expected, strict=True)
    ]
    rest = [outcome.tokens for outcome in decode(scarce, resumed)]
    assert rest == [tokens[9:] for tokens in expected]


def test_metrics_tell_the_sources_apart() -> None:
    registry = CollectorRegistry()
    runner = FakeRunner(PROMPT_LOOKUP, target=repeating)
    engine = engine_over(runner, PROMPT_LOOKUP, link_to(wrong), registry=registry)
    usages = [outcome.usage for outcome in decode(engine, [LONG])]

    def counted(name: str, source: str) -> float | None:
        return registry.get_sample_value(f"blockdraft_verifier_{name}_total", {"source": source})

    found = sum(usage.prompt_lookup_drafted for usage in usages)
    assert counted("drafted_tokens", "prompt_lookup") == found > 0
    assert counted("accepted_tokens", "prompt_lookup") == sum(
        usage.prompt_lookup_accepted for usage in usages
    )
    drafted = sum(sum(usage.drafted_per_position) for usage in usages)
    assert counted("drafted_tokens", "drafter") == drafted - found > 0
    assert counted("accepted_tokens", "drafter") == 0
    described = {counts.source: counts for counts in drafting_message(engine).sources}
    assert len(described) == 2
    for source, name in (
        (inference_pb2.TOKEN_SOURCE_DRAFTER, "drafter"),
        (inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP, "prompt_lookup"),
    ):
        counts = described[source]
        assert counts.drafts == counted("drafts", name)
        assert counts.drafted_tokens == counted("drafted_tokens", name)
        assert counts.accepted_tokens == counted("accepted_tokens", name)
        assert sum(counts.accepted_per_position) == counts.accepted_tokens


def test_an_engine_is_only_compiled_for_blocks_it_verifies() -> None:
    for config, block in ((TINY_ENGINE, 1), (PROMPT_LOOKUP, 4)):
        runner = FakeRunner(config)
        engine_over(runner, config)
        assert runner.max_block == block


def test_where_tokens_cost_their_time_prompt_lookup_verifies_next_to_nothing() -> None:
    config = replace(PROMPT_LOOKUP, draft_policy="adaptive")
    by_tokens = {size: float(size) for size in (1, 2, 4, 8, 16)}
    [outcome] = decode(engine_over(FakeRunner(config, by_tokens, target=repeating), config), [LONG])
    assert [outcome.tokens] == decoded([LONG])
    # Only probes, every 64th step.
    assert outcome.usage.prompt_lookup_drafted <= 2 * 3


# As measured on CPU: 16 tokens cost 1.9 times as much as one.
RISING = {1: 1.0, 2: 1.26, 4: 1.31, 8: 1.54, 16: 1.9, 32: 2.84, 4096: 99.0}


def telling(*texts: tuple[list[int], list[int]]) -> list[float]:
    """Complete prompts as stated, one after another; return the seconds that each decodes."""
    settings = EngineSettings(num_pages=512, scheduler=SchedulerSettings(1, 4096, 4096))
    whole = [[*prompt, *completion] for prompt, completion in texts]
    runner = FakeRunner(
        settings, RISING, target=lambda text, r: whole[int(r.request_id)][len(text)]
    )
    engine, seconds = virtual_engine(runner), []
    for number, (prompt, completion) in enumerate(texts):
        request = GenerationRequest(
            str(number), tuple(prompt), max_output_tokens=len(completion), cache_salt=b"one"
        )
        [outcome] = decode(engine, [request])
        assert outcome.tokens == completion
        usage = outcome.usage
        assert usage.first_token_time is not None
        assert usage.last_token_time is not None
        seconds.append(usage.last_token_time - usage.first_token_time)
    return seconds


@pytest.mark.parametrize("alphabet", [3, 30, 1000])
def test_a_text_without_repetitions_is_not_slowed(alphabet: int) -> None:
    rng = random.Random(alphabet)

    def text(length: int) -> list[int]:
        return [rng.randrange(alphabet) for _ in range(length)]

    # Chance repeats pairs of few different tokens; what that gains pays at least for the rest.
    assert sum(telling(*((text(200), text(300)) for _ in range(3)))) <= 1.005 * 3 * 299


def test_a_copy_is_many_times_as_fast() -> None:
    rng = random.Random(0)
    prompt = [rng.randrange(1000) for _ in range(400)]
    first, second = telling(*[(prompt, prompt[10:310])] * 2)
    assert first < 300 / 3
    # What was learned of the first helps the second from its first tokens on.
    assert second < first
    assert second < 300 / 5


def test_texts_are_indexed_piece_by_piece_so_much_of_all_in_a_step() -> None:
    repetitions, sequences = Repetitions(0), []
    for length in (500, 600, 2000):
        fresh = range(10_000 * length, 10_000 * length + length - 10)
        request = GenerationRequest("r", (*fresh, *fresh[-20:-10]))
        sequences.append(TokenSequence(length, request, 0.0))
        repetitions.add(sequences[-1])
    found = []
    for _ in range(4):
        repetitions.index(sequences)
        found.append([bool(repetitions.search(sequence, 1)) for sequence in sequences])
    # About a thousand tokens at a time; the shortest text first.
    assert found == [[True, False, False], [True, True, False], [True, True, False], [True] * 3]
