"""Whom to draft for and how far, without an engine."""

from dataclasses import replace
from typing import Any

import pytest

from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.drafting.times import DraftTimes, LateAnswer
from blockdraft_verifier.engine.cost_model import EXPLORE_EVERY_STEPS, CostModel
from blockdraft_verifier.engine.draft_lengths import DraftLengths
from blockdraft_verifier.scheduling.scheduler import Progress, Row
from blockdraft_verifier.scheduling.sequence import (
    FinishReason,
    GenerationRequest,
    Proposal,
    Sequence,
)

BLOCK_SIZE = 5
# Each token verified costs as much as the first: drafting pays only where nearly always right.
DEAR = {Bucket(1, tokens, tokens): float(tokens) for tokens in (1, 2, 4, 8)}


def made(policy: DraftPolicy = "fixed") -> DraftLengths:
    lengths = DraftLengths(EngineSettings(draft_policy=policy))
    lengths.costs = CostModel(DEAR)
    lengths.costs.attach_drafter((0.5,))
    return lengths


def decoding(lengths: DraftLengths, *, output: int = 20, **options: Any) -> Sequence:
    """Return a sequence that is known and has its first token."""
    sequence = Sequence(1, GenerationRequest("r", (1, 2), max_output_tokens=output, **options), 0.0)
    sequence.tokens.append(3)
    sequence.committed = 2
    lengths.add(sequence)
    return sequence


def test_prompts_only_send_and_answers_are_drafted_for() -> None:
    lengths = made()
    answer, prompt = decoding(lengths), Sequence(2, GenerationRequest("p", (1, 2)), 0.0)
    wanted = lengths.wanted([answer, prompt], BLOCK_SIZE)
    assert wanted == [(prompt, 0), (answer, BLOCK_SIZE - 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"finish_reason": FinishReason.STOP},
        {"draftable": False},
        {"awaiting_draft": True},
        {"proposal": Proposal((4,))},
    ],
)
def test_who_cannot_use_a_proposal_is_left_out(change: dict[str, Any]) -> None:
    lengths = made()
    sequence = decoding(lengths)
    for name, value in change.items():
        setattr(sequence, name, value)
    assert lengths.wanted([sequence], BLOCK_SIZE) == []


@pytest.mark.parametrize(
    ("output", "allowed", "expected"),
    [(20, None, 4), (20, 2, 2), (4, None, 2), (2, None, 0), (4, 1, 1)],
)
def test_neither_the_request_nor_its_end_is_exceeded(
    output: int, allowed: int | None, expected: int
) -> None:
    lengths = made()
    sequence = decoding(lengths, output=output, max_draft_tokens=allowed)
    assert lengths.wanted([sequence], BLOCK_SIZE) == [(sequence, expected)]


def test_a_request_without_drafts_sends_nothing() -> None:
    lengths = made()
    assert lengths.wanted([decoding(lengths, max_draft_tokens=0)], BLOCK_SIZE) == []


def test_nothing_is_drafted_before_anything_was_measured() -> None:
    lengths = DraftLengths(EngineSettings())
    assert lengths.wanted([decoding(lengths)], BLOCK_SIZE) == []


def test_what_does_not_pay_is_tried_again_now_and_then() -> None:
    lengths = made("adaptive")
    sequence = decoding(lengths)
    row = Row(sequence, 2, (3, 4, 5, 6, 7), 4)
    for _ in range(60):
        lengths.observe_acceptance([Progress(row, 0, (9,), 1)])
    drafted = []
    for _ in range(2 * EXPLORE_EVERY_STEPS):
        drafted.append(bool(lengths.wanted([sequence], BLOCK_SIZE)))
        lengths.observe_step([Row(sequence, 2, (3,), 0)], 1.0)
    assert [step for step, tried in enumerate(drafted) if tried] == [0, EXPLORE_EVERY_STEPS]


def test_what_was_caught_up_is_not_charged_to_drafting() -> None:
    lengths = made()
    assert lengths.costs is not None
    before = lengths.costs.draft_seconds(1)
    usual = DraftTimes(waited=2.0, computed=1.5, answers=1, proposals=1)
    lengths.observe_drafting(replace(usual, backlogged=True))
    assert lengths.costs.draft_seconds(1) == before
    lengths.observe_drafting(usual)
    assert lengths.costs.draft_seconds(1) > before


def test_a_late_answer_teaches() -> None:
    lengths = made()
    assert lengths.costs is not None
    before = lengths.costs.draft_seconds(1)
    late = DraftTimes(missed=1, late=[LateAnswer(proposals=1, computed=1.0, elapsed=3.0)])
    for _ in range(100):
        lengths.observe_drafting(late)
    assert lengths.costs.draft_seconds(1) == pytest.approx(3.0, rel=0.01) != before


def test_who_is_only_sent_features_waits_for_nothing() -> None:
    lengths = made()
    sequence = decoding(lengths)
    assert lengths.wait_seconds([(sequence, 0)]) == 0.0
    # With the policy "fixed", twice the time that drafting takes.
    assert lengths.wait_seconds([(sequence, 3)]) == pytest.approx(1.0)
