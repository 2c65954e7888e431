"""Lookup in the engine: the same answers, fewer steps where texts repeat, and who is counted."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.drafting import Propose, ScriptedMethod, SessionLink
from tests.verifier.support import (
    CONFIG,
    LAYER_IDS,
    TINY_ENGINE,
    Outcome,
    decode,
    make_engine,
    random_requests,
    tiny_decoder,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest, Usage

# A tiny target with random weights soon says the same few tokens again and again.
LONG = GenerationRequest("long", (1, 2, 3), max_output_tokens=90)
LOOKUP = replace(TINY_ENGINE, lookup=True, lookup_block=4)


def nothing(position: int, anchor: int, length: int) -> list[int]:
    return []


def wrong(position: int, anchor: int, length: int) -> list[int]:
    return [(anchor + 1) % 256] * length


def link_to(propose: Propose) -> SessionLink:
    return SessionLink(
        ScriptedMethod(
            propose,
            layer_ids=LAYER_IDS,
            hidden_size=CONFIG.hidden_size,
            vocab_size=CONFIG.vocab_size,
        )
    )


def usage_of(outcome: Outcome) -> Usage:
    usage = outcome.events[-1].usage
    assert usage is not None
    return usage


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> Engine:
    return make_engine(decoder)


@pytest.fixture(scope="module")
def looking(decoder: Decoder) -> Engine:
    return make_engine(decoder, config=LOOKUP)


def test_an_answer_that_repeats_itself_takes_fewer_steps(plain: Engine, looking: Engine) -> None:
    [expected], [outcome] = decode(plain, [LONG]), decode(looking, [LONG])
    assert outcome.tokens == expected.tokens
    usage = usage_of(outcome)
    assert usage.lookup_accepted > 20
    assert usage.verification_steps == len(outcome.tokens) - 1 - usage.lookup_accepted
    # Nobody else has drafted.
    assert sum(usage.drafted_per_position) == usage.lookup_drafted
    assert sum(usage.accepted_per_position) == usage.lookup_accepted
    # A block of four holds three drafted tokens.
    assert len(usage.drafted_per_position) == 3


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_lookup_never_changes_the_output(decoder: Decoder, plain: Engine, policy: Any) -> None:
    # Greedy and sampled ones, of which prompts repeat themselves.
    requests = [
        replace(request, prompt=request.prompt[:8] * 3)
        for request in random_requests(31, count=10, max_output_tokens=40)
    ]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    engine = make_engine(decoder, config=replace(LOOKUP, draft_policy=policy))
    outcomes = decode(engine, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    if policy == "fixed":
        sampled = [o for o, r in zip(outcomes, requests, strict=True) if r.sampling.temperature]
        assert sum(usage_of(outcome).lookup_drafted for outcome in sampled) > 0
        assert sum(usage_of(outcome).lookup_accepted for outcome in outcomes) > 0


@pytest.mark.parametrize("propose", [wrong, nothing])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_drafter_and_lookup_take_turns(
    decoder: Decoder, plain: Engine, propose: Propose, groups: Any
) -> None:
    requests = [LONG, *random_requests(32, count=6, max_output_tokens=30)]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    engine = make_engine(decoder, link_to(propose), replace(LOOKUP, draft_groups=groups))
    outcomes = decode(engine, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    # The drafter's contexts were kept up beside it.
    assert engine.metrics.repair_count() == 0
    usages = [usage_of(outcome) for outcome in outcomes]
    assert sum(usage.lookup_accepted for usage in usages) > 20
    if propose is wrong:
        drafted = sum(sum(usage.drafted_per_position) for usage in usages)
        assert drafted > sum(usage.lookup_drafted for usage in usages)


def test_the_drafter_takes_over_where_lookup_finds_nothing(decoder: Decoder, plain: Engine) -> None:
    request = GenerationRequest("a", tuple(range(100, 130)), max_output_tokens=24)
    [expected] = decode(plain, [request])
    known = [*request.prompt, *expected.tokens]

    def right(position: int, anchor: int, length: int) -> list[int]:
        return known[position + 1 : position + 1 + length]

    engine = make_engine(decoder, link_to(right), LOOKUP)
    [outcome] = decode(engine, [request])
    assert outcome.tokens == expected.tokens
    usage = usage_of(outcome)
    by_drafter = sum(usage.accepted_per_position) - usage.lookup_accepted
    assert by_drafter > 0
    assert usage.verification_steps < 12


def test_lookup_goes_on_while_the_drafter_is_away(decoder: Decoder, plain: Engine) -> None:
    link = link_to(nothing)
    engine = make_engine(decoder, link, LOOKUP)
    link.down = True
    [outcome] = decode(engine, [LONG])
    assert outcome.tokens == decode(plain, [LONG])[0].tokens
    assert usage_of(outcome).lookup_accepted > 20


def test_a_request_may_do_without(looking: Engine, plain: Engine) -> None:
    [expected] = decode(plain, [LONG])
    for request in (replace(LONG, lookup=False), replace(LONG, max_draft_tokens=0)):
        [outcome] = decode(looking, [request])
        assert outcome.tokens == expected.tokens
        assert usage_of(outcome).lookup_drafted == 0
    [outcome] = decode(looking, [replace(LONG, max_draft_tokens=1)])
    usage = usage_of(outcome)
    assert len(usage.drafted_per_position) == 1
    assert usage.lookup_accepted > 0


def test_preempted_and_resumed_answers_are_the_same(decoder: Decoder, plain: Engine) -> None:
    requests = [
        GenerationRequest(f"p{i}", tuple(range(i, i + 20)), max_output_tokens=24) for i in range(4)
    ]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    scarce = make_engine(decoder, config=LOOKUP, pages=26)
    assert [outcome.tokens for outcome in decode(scarce, requests)] == expected
    assert scarce.metrics.preemptions._value.get() > 0
    resumed = [
        replace(request, emitted=tuple(tokens[:9]))
        for request, tokens in zip(requests, expected, strict=True)
    ]
    rest = [outcome.tokens for outcome in decode(scarce, resumed)]
    assert rest == [tokens[9:] for tokens in expected]


def test_metrics_tell_the_sources_apart(decoder: Decoder) -> None:
    registry = CollectorRegistry()
    engine = make_engine(decoder, link_to(wrong), LOOKUP, registry)
    usages = [usage_of(outcome) for outcome in decode(engine, [LONG])]

    def counted(name: str, source: str) -> float | None:
        return registry.get_sample_value(f"blockdraft_verifier_{name}_total", {"source": source})

    found = sum(usage.lookup_drafted for usage in usages)
    assert counted("drafted_tokens", "lookup") == found > 0
    assert counted("accepted_tokens", "lookup") == sum(usage.lookup_accepted for usage in usages)
    drafted = sum(sum(usage.drafted_per_position) for usage in usages)
    assert counted("drafted_tokens", "drafter") == drafted - found > 0
    assert counted("accepted_tokens", "drafter") == 0


def test_an_engine_is_only_compiled_for_blocks_it_verifies(
    decoder: Decoder, plain: Engine, looking: Engine
) -> None:
    assert plain._runner.max_block == 1  # type: ignore[attr-defined]
    assert looking._runner.max_block == 4  # type: ignore[attr-defined]


def test_where_tokens_cost_their_time_lookup_verifies_next_to_nothing(
    decoder: Decoder, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CostModel, "verify_seconds", lambda self, rows, tokens: float(tokens))
    engine = make_engine(decoder, config=replace(LOOKUP, draft_policy="adaptive"))
    [expected], [outcome] = decode(plain, [LONG]), decode(engine, [LONG])
    assert outcome.tokens == expected.tokens
    # Only tries, every 64th step.
    assert usage_of(outcome).lookup_drafted <= 2 * 3
