"""Which sequences to draft for and how far, without an engine."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.drafting.sync import DraftTimes, LateResponse
from blockdraft_verifier.engine.acceptance import (
    HOPELESS_ACCEPTANCE,
    PRIOR_OF_MATCHES,
    AcceptanceEstimate,
    MatchAcceptance,
)
from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.costs import DraftCosts
from blockdraft_verifier.engine.policy import (
    PROBE_EVERY_STEPS,
    PROBE_SHARE,
    PROBE_STEPS,
    DraftLengths,
)
from blockdraft_verifier.engine.repetitions import INDEXED_PER_STEP
from blockdraft_verifier.scheduling.scheduler import Row, SequenceProgress
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


def test_drafts_leave_room_for_prompts() -> None:
    lengths = DraftLengths(EngineSettings(draft_policy="adaptive", prompt_lookup=False))
    # Verifying is free up to the largest step, which four drafted tokens fill.
    lengths.costs = CostModel({Bucket(2, tokens, tokens): 1.0 for tokens in (1, 5)})
    lengths.costs.drafts = DraftCosts(8, (0.1,))
    sequence = decoding(lengths)
    lengths._steps = 1  # not a step that probes
    lengths._drafts[sequence] = AcceptanceEstimate([0.2] * 4, [20] * 4)
    assert lengths.decide([sequence], BLOCK_SIZE, 0) == [(sequence, BLOCK_SIZE - 1)]
    assert not lengths.pause_reason
    assert lengths.decide([sequence], BLOCK_SIZE, 4) == []
    assert lengths.pause_reason


def test_prompts_only_send_and_completions_are_drafted_for() -> None:
    lengths = made()
    completion, prompt = decoding(lengths), TokenSequence(2, GenerationRequest("p", (1, 2)), 0.0)
    wanted = lengths.decide([completion, prompt], BLOCK_SIZE, 0)
    assert wanted == [(prompt, 0), (completion, BLOCK_SIZE - 1)]


@pytest.mark.parametrize("right", [0.09, 0.11])
@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_a_drafter_that_is_hardly_asked_hears_nothing_of_prompts(
    policy: DraftPolicy, right: float
) -> None:
    lengths = made(policy)
    lengths._overall = AcceptanceEstimate([right], [100])
    prompt = TokenSequence(2, GenerationRequest("p", (1, 2)), 0.0)
    hopeless = policy == "adaptive" and right < HOPELESS_ACCEPTANCE
    assert lengths.decide([prompt], BLOCK_SIZE, 0) == ([] if hopeless else [(prompt, 0)])


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


def test_what_does_not_pay_is_probed_now_and_then() -> None:
    lengths = made("adaptive")
    sequence = decoding(lengths)
    row = Row(sequence, 2, (3, 4, 5, 6, 7), 4)
    for _ in range(60):
        lengths.observe_acceptance([SequenceProgress(row, 0, (9,), 1)])
    assert lengths.costs is not None
    drafted = []
    for _ in range(1000):
        drafted.append(bool(lengths.decide([sequence], BLOCK_SIZE, 0)))
        lengths.observe_step([Row(sequence, 2, (3,), 0)], 1.0)
    assert lengths.pause_reason == "drafts for 1 at once take longer than they gain: 1% begin right"
    tried = [step for step, once in enumerate(drafted) if once]
    # Five tokens are verified in 8 s, the drafter takes half a second, and nothing is gained.
    steps = lengths.costs.expected_steps([lengths._drafts[sequence]], 4)
    lost = steps.lost_seconds(4, 0)
    assert lost == pytest.approx(7.5, abs=0.1)
    every = PROBE_EVERY_STEPS * math.ceil(lost / PROBE_SHARE / PROBE_EVERY_STEPS)
    assert tried == [every, 2 * every]


def test_early_ends_are_learned() -> None:
    lengths = made("adaptive")
    sequence = decoding(lengths)
    row = Row(sequence, 2, (3, 4, 5), 2, ended_early=True)
    for _ in range(60):
        lengths.observe_acceptance([SequenceProgress(row, 2, (4, 5, 9), 3)])
    for drafts in (lengths._overall, lengths._drafts[sequence]):
        assert drafts.draft_survival(3) == pytest.approx([1.0, 1.0, 0.0], abs=0.1)
        assert drafts.accepted_of(4) == pytest.approx(2.0, abs=0.2)


def test_the_credit_for_probes_is_bounded() -> None:
    lengths = made("adaptive")
    for _ in range(2 * PROBE_STEPS):
        lengths.observe_step([], 1.0)
    assert lengths._credit_seconds == pytest.approx(PROBE_SHARE * PROBE_STEPS)


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


class Run:
    """Decodes a given completion, step by step, at made-up costs."""

    def __init__(self, lengths: DraftLengths, prompt: list[int], completion: list[int]) -> None:
        request = GenerationRequest("r", tuple(prompt), max_output_tokens=len(completion) + 1)
        self.sequence = TokenSequence(1, request, 0.0)
        self.sequence.tokens.append(completion[0])
        self.text = [*prompt, *completion]
        self.lengths = lengths
        self.seconds = 0.0
        lengths.add(self.sequence)

    def step(self) -> None:
        """Verify what was drafted, if anything."""
        sequence, costs = self.sequence, self.lengths.costs
        assert costs is not None
        sequence.committed = len(sequence.tokens) - 1
        draft = sequence.draft or Draft(())
        drafted, sequence.draft = draft.token_ids, None
        known = len(sequence.tokens)
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == self.text[known + accepted]:
            accepted += 1
        gained = tuple(self.text[known : known + accepted + 1])
        row = Row(sequence, known - 1, (0, *drafted), len(drafted), draft.source)
        sequence.tokens.extend(gained)
        sequence.committed = len(sequence.tokens) - 1
        seconds = costs.verify_seconds(1, 1 + len(drafted))
        self.seconds += seconds
        self.lengths.observe_step([row], seconds)
        self.lengths.decide([sequence], 1, 0)
        self.lengths.observe_acceptance([SequenceProgress(row, accepted, gained, accepted + 1)])

    def all(self) -> float:
        """Return the seconds of all steps."""
        while len(self.sequence.tokens) < len(self.text):
            self.step()
        assert self.sequence.tokens == self.text
        return self.seconds


def prompt_lookups(seconds: dict[int, float]) -> DraftLengths:
    lengths = DraftLengths(EngineSettings())
    lengths.use_blocks(1)
    lengths.costs = CostModel({Bucket(1, tokens, tokens): cost for tokens, cost in seconds.items()})
    return lengths


# As measured on CPU: 16 tokens cost 1.9 times as much as one.
RISING = {1: 1.0, 2: 1.26, 4: 1.31, 8: 1.54, 16: 1.9, 32: 2.84}


@pytest.mark.parametrize("alphabet", [3, 30, 1000])
def test_a_text_without_repetitions_is_not_slowed(alphabet: int) -> None:
    rng = random.Random(alphabet)
    lengths = prompt_lookups(RISING)
    tokens = 0
    seconds = 0.0
    for _ in range(3):
        prompt = [rng.randrange(alphabet) for _ in range(200)]
        completion = [rng.randrange(alphabet) for _ in range(300)]
        seconds += Run(lengths, prompt, completion).all()
        tokens += len(completion) - 1
    # Chance repeats pairs of few different tokens; what that gains pays at least for the rest.
    assert seconds <= 1.005 * tokens


def test_a_copy_is_many_times_as_fast() -> None:
    rng = random.Random(0)
    prompt = [rng.randrange(1000) for _ in range(400)]
    lengths = prompt_lookups(RISING)
    first, second = (Run(lengths, prompt, prompt[10:310]).all() for _ in range(2))
    assert first < 300 / 3
    # What was learned of the first helps the second from its first tokens on.
    assert second < first
    assert second < 300 / 5


def test_a_long_prompt_is_indexed_piece_by_piece() -> None:
    lengths = prompt_lookups(RISING)
    rng = random.Random(0)
    prompt = [rng.randrange(10**6) for _ in range(3 * INDEXED_PER_STEP)]
    run = Run(lengths, prompt, prompt[:100])
    behind = []
    for _ in range(5):
        run.step()
        behind.append(lengths._repetitions._searched[run.sequence].text.behind)
    assert behind[0] == len(run.text[: len(prompt) + 2]) - 1 - INDEXED_PER_STEP
    assert behind[:1] > behind[1:2] > behind[2:3]
    assert behind[-1] == 0


def test_what_prompt_lookup_drafted_says_nothing_of_the_drafter() -> None:
    lengths = made("adaptive")
    sequence = decoding(lengths)
    row = Row(sequence, 2, (3, 4, 5, 6, 7), 4, DraftSource.PROMPT_LOOKUP)
    for _ in range(60):
        lengths.observe_acceptance([SequenceProgress(row, 0, (9,), 1)])
    for drafts in (lengths._overall, lengths._drafts[sequence]):
        assert drafts.count == 0


def test_the_draft_cache_of_a_copying_sequence_is_kept_up() -> None:
    lengths = made()
    lengths.use_blocks(BLOCK_SIZE)
    copying, other = decoding(lengths), decoding(lengths)
    copying.tokens[:] = [1, 2, 3, 1, 2, 3, 1, 2]
    copying.committed = len(copying.tokens) - 1
    # Sure that it goes on so.
    lengths._repetitions._searched[copying].learned.in_text = MatchAcceptance(
        [1.0] * len(PRIOR_OF_MATCHES)
    )
    wanted = lengths.decide([copying, other], BLOCK_SIZE, 0)
    assert wanted == [(copying, 0), (other, BLOCK_SIZE - 1)]
    assert copying.draft is not None
    assert copying.draft.source is DraftSource.PROMPT_LOOKUP
    assert copying.draft.token_ids[:4] == (3, 1, 2, 3)
    assert other.draft is None
