"""Which sequences to draft for and how far, without an engine."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.verifier.grammars import choice_of, matcher, tiny_tokenizer

from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.drafting.sync import DraftTimes, LateResponse
from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.costs import DraftCosts
from blockdraft_verifier.engine.policy import (
    PROBE_EVERY_STEPS,
    PROBE_SHARE,
    PROBE_STEPS,
    DraftLengths,
)
from blockdraft_verifier.scheduling.row import Row, SequenceProgress
from blockdraft_verifier.scheduling.sequence import (
    Draft,
    DraftSource,
    FinishReason,
    GenerationRequest,
    TokenSequence,
)

BLOCK_SIZE = 5
# Each token verified costs as much as the first: drafting pays only where nearly always right.
DEAR = {Bucket(1, tokens, tokens): float(tokens) for tokens in (1, 2, 4, 8)}


def made(policy: DraftPolicy = "fixed") -> DraftLengths:
    lengths = DraftLengths(EngineSettings(draft_policy=policy))
    lengths.costs = CostModel(DEAR)
    lengths.costs.drafts = DraftCosts(8, (0.5,))
    return lengths


def decoding(lengths: DraftLengths, *, output: int = 20, **options: Any) -> TokenSequence:
    """Return a sequence that is known and has its first token."""
    sequence = TokenSequence(
        1, GenerationRequest("r", (1, 2), max_output_tokens=output, **options), 0.0
    )
    sequence.tokens.append(3)
    sequence.committed = 2
    lengths.add(sequence)
    return sequence


def teach(
    lengths: DraftLengths,
    sequence: TokenSequence,
    accepted: int,
    source: DraftSource = DraftSource.DRAFTER,
    drafts: int = 60,
) -> None:
    """Verify drafts of four tokens, of which so many are right."""
    row = Row(sequence, 2, (3, 4, 5, 6, 7), 4, source)
    gained = (*row.drafted[:accepted], 9)
    for _ in range(drafts):
        lengths.observe_acceptance([SequenceProgress(row, accepted, gained, 1 + accepted)])


def test_prompts_only_send_and_completions_are_drafted_for() -> None:
    lengths = made()
    completion, prompt = decoding(lengths), TokenSequence(2, GenerationRequest("p", (1, 2)), 0.0)
    wanted = lengths.decide([completion, prompt], BLOCK_SIZE, 0)
    assert wanted == [(prompt, 0), (completion, BLOCK_SIZE - 1)]


@pytest.mark.parametrize("hopeless", [False, True])
@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_a_drafter_that_is_hardly_asked_hears_nothing_of_prompts(
    policy: DraftPolicy, hopeless: bool
) -> None:
    lengths = made(policy)
    teach(lengths, decoding(lengths), 0)
    if not hopeless:
        teach(lengths, decoding(lengths), 1, drafts=5)
    prompt = TokenSequence(2, GenerationRequest("p", (1, 2)), 0.0)
    unasked = policy == "adaptive" and hopeless
    assert lengths.decide([prompt], BLOCK_SIZE, 0) == ([] if unasked else [(prompt, 0)])


@pytest.mark.parametrize(
    "change",
    [
        {"finish_reason": FinishReason.STOP},
        {"draftable": False},
        {"awaiting_draft": True},
        {"draft": Draft((4,))},
    ],
)
def test_sequences_that_cannot_use_a_draft_are_left_out(change: dict[str, Any]) -> None:
    lengths = made()
    sequence = decoding(lengths)
    for name, value in change.items():
        setattr(sequence, name, value)
    assert lengths.decide([sequence], BLOCK_SIZE, 0) == []


@pytest.mark.parametrize(
    ("output", "allowed", "expected"),
    [(20, None, 4), (20, 2, 2), (4, None, 2), (2, None, 0), (4, 1, 1)],
)
def test_neither_the_request_nor_its_end_is_exceeded(
    output: int, allowed: int | None, expected: int
) -> None:
    lengths = made()
    sequence = decoding(lengths, output=output, max_draft_tokens=allowed)
    assert lengths.decide([sequence], BLOCK_SIZE, 0) == [(sequence, expected)]


def test_a_request_without_drafts_sends_nothing() -> None:
    lengths = made()
    assert lengths.decide([decoding(lengths, max_draft_tokens=0)], BLOCK_SIZE, 0) == []


def test_nothing_is_drafted_before_anything_was_measured() -> None:
    lengths = DraftLengths(EngineSettings())
    assert lengths.decide([decoding(lengths)], BLOCK_SIZE, 0) == []


# Five tokens are verified in 8 s, the drafter takes half a second, and nothing is gained.
LOST_SECONDS = 7.5


def probes(lengths: DraftLengths, sequence: TokenSequence, steps: int) -> list[int]:
    """Return the steps for which the drafter is asked, of so many that take a second each."""
    tried = []
    for step in range(steps):
        if lengths.decide([sequence], BLOCK_SIZE, 0):
            tried.append(step)
        lengths.observe_step([Row(sequence, 2, (3,), 0)], 1.0)
    return tried


def test_what_does_not_pay_is_probed_now_and_then() -> None:
    lengths = made("adaptive")
    sequence = decoding(lengths)
    teach(lengths, sequence, 0)
    tried = probes(lengths, sequence, 1000)
    assert lengths.pause_reason == "drafts for 1 at once take longer than they gain: 1% begin right"
    every = PROBE_EVERY_STEPS * math.ceil(LOST_SECONDS / PROBE_SHARE / PROBE_EVERY_STEPS)
    assert tried == [every, 2 * every]


def test_the_credit_for_probes_is_bounded() -> None:
    lengths = made("adaptive")
    sequence = decoding(lengths)
    teach(lengths, sequence, 0)
    for _ in range(4 * PROBE_STEPS):
        lengths.observe_step([], 1.0)
    tried = probes(lengths, sequence, 10 * PROBE_EVERY_STEPS)
    assert len(tried) > 1
    seconds = PROBE_STEPS + 10 * PROBE_EVERY_STEPS
    assert len(tried) * LOST_SECONDS <= PROBE_SHARE * seconds


def test_what_was_caught_up_is_not_charged_to_drafting() -> None:
    lengths = made()
    assert lengths.costs is not None
    before = lengths.costs.drafts.seconds(1, 7)
    usual = DraftTimes(waited=2.0, computed=1.5, responses=1, drafts=1, longest=7)
    lengths.observe_drafting(replace(usual, backlogged=True))
    assert lengths.costs.drafts.seconds(1, 7) == before
    lengths.observe_drafting(usual)
    assert lengths.costs.drafts.seconds(1, 7) > before


def test_a_late_response_teaches() -> None:
    lengths = made()
    assert lengths.costs is not None
    before = lengths.costs.drafts.seconds(1, 7)
    late = DraftTimes(missed=1, late=[LateResponse(drafts=1, longest=7, computed=1.0, elapsed=3.0)])
    for _ in range(100):
        lengths.observe_drafting(late)
    assert lengths.costs.drafts.seconds(1, 7) == pytest.approx(3.0, rel=0.01) != before


def test_features_alone_are_not_waited_for() -> None:
    lengths = made()
    sequence = decoding(lengths)
    assert lengths.wait_seconds([(sequence, 0)]) == 0.0
    # With the policy "fixed", twice the time that drafting takes.
    assert lengths.wait_seconds([(sequence, 3)]) == pytest.approx(1.0)


def test_what_prompt_lookup_drafted_says_nothing_of_the_drafter() -> None:
    lengths = made("adaptive")
    teach(lengths, decoding(lengths), 0, DraftSource.PROMPT_LOOKUP)
    assert lengths.acceptance == []


def test_outputs_with_a_grammar_are_estimated_apart() -> None:
    lengths = made("adaptive")
    lengths.costs = CostModel(dict.fromkeys(DEAR, 1.0))
    lengths.costs.drafts = DraftCosts(8, (0.5,))
    grammar = matcher(tiny_tokenizer(), choice_of(["alpha", "beta"]))
    teach(lengths, decoding(lengths), 4)
    teach(lengths, decoding(lengths, grammar=grammar), 0)
    free, constrained = decoding(lengths), decoding(lengths, grammar=grammar)
    assert lengths.decide([free], BLOCK_SIZE, 0) == [(free, BLOCK_SIZE - 1)]
    assert lengths.decide([constrained], BLOCK_SIZE, 0) == []


def test_the_draft_cache_of_a_copying_sequence_is_kept_up() -> None:
    lengths = made()
    lengths.use_blocks(BLOCK_SIZE)
    copying, other = decoding(lengths, output=80), decoding(lengths)
    copying.tokens[:] = [*[1, 2, 3] * 12, 1, 2]
    copying.committed = len(copying.tokens) - 1
    wanted = lengths.decide([copying, other], BLOCK_SIZE, 0)
    assert wanted == [(copying, 0), (other, BLOCK_SIZE - 1)]
    assert copying.draft is not None
    assert copying.draft.source is DraftSource.PROMPT_LOOKUP
    assert copying.draft.token_ids[:4] == (3, 1, 2, 3)
    assert other.draft is None
