"""Which proposed tokens are verified, by made-up costs."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings
from blockdraft_verifier.device.buckets import Bucket, all_buckets
from blockdraft_verifier.engine.confidence import LEAST_DRAFTS, log_chances
from blockdraft_verifier.engine.cost_model import (
    EXPLORE_EVERY_STEPS,
    LEAST_CHANCE,
    NO_PROMPTS,
    CostModel,
)
from blockdraft_verifier.engine.draft_costs import DraftCosts
from blockdraft_verifier.engine.draft_lengths import DraftLengths
from blockdraft_verifier.engine.trimming import likeliest
from blockdraft_verifier.scheduling.scheduler import Progress, Row
from blockdraft_verifier.scheduling.sequence import (
    DraftSource,
    GenerationRequest,
    Proposal,
    Sequence,
)

# A step of 4 or 8 tokens takes as long as any smaller one, one of 16 three times as long.
COSTS = CostModel({Bucket(4, 4, 4): 1.0, Bucket(4, 8, 8): 1.05, Bucket(4, 16, 16): 3.0})
SURE, LIKELY, POOR = [0.98, 0.95, 0.9], [0.9, 0.6, 0.2], [0.1, 0.01, 0.001]


def test_the_likeliest_tokens_of_all_sequences_fill_the_step() -> None:
    counts = likeliest(COSTS, 3, [LIKELY, SURE, POOR], unsaid=(0, 0.0), prompts=NO_PROMPTS)
    # Eight tokens, of which three are the sequences' own.
    assert counts == [2, 3, 0]


def test_what_says_nothing_of_itself_takes_its_room() -> None:
    counts = likeliest(COSTS, 3, [LIKELY, SURE], unsaid=(3, 1.0), prompts=NO_PROMPTS)
    assert counts == [0, 2]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_way_to_trim_is_faster(seed: int) -> None:
    rng = random.Random(seed)
    seconds, slower = {}, 0.0
    for bucket in sorted(all_buckets(4, 32, 4), key=lambda bucket: (bucket.tokens, bucket.rows)):
        slower += rng.random()
        seconds[bucket] = 1.0 + slower
    costs, rows = CostModel(seconds), rng.randint(1, 4)
    survivals = [
        list(itertools.accumulate((rng.random() for _ in range(3)), lambda a, b: a * b))
        for _ in range(rng.randint(1, rows))
    ]
    unsaid = rng.randint(0, 3), rng.random()

    def rate(counts: tuple[int, ...]) -> float:
        gain = rows + unsaid[1] + sum(sum(s[:n]) for s, n in zip(survivals, counts, strict=True))
        return gain / costs.verify_seconds(rows, rows + unsaid[0] + sum(counts))

    ways = itertools.product(*(range(len(survival) + 1) for survival in survivals))
    found = likeliest(costs, rows, survivals, unsaid=unsaid, prompts=NO_PROMPTS)
    assert rate(tuple(found)) == pytest.approx(max(map(rate, ways)))


def made(policy: DraftPolicy = "adaptive") -> DraftLengths:
    lengths = DraftLengths(EngineSettings(draft_policy=policy))
    lengths.costs = COSTS
    return lengths


def proposing(lengths: DraftLengths, number: int, proposal: Proposal | None) -> Sequence:
    sequence = Sequence(number, GenerationRequest(str(number), (1, 2)), 0.0)
    sequence.tokens.append(3)
    sequence.committed = 2
    sequence.proposal = proposal
    lengths.add(sequence)
    return sequence


def drafted(survival: list[float], source: DraftSource = DraftSource.DRAFTER) -> Proposal:
    return Proposal(tuple(range(5, 5 + len(survival))), log_chances(survival), source)


def kept(sequence: Sequence) -> int:
    assert sequence.proposal is not None
    proposal = sequence.proposal
    assert proposal.token_ids == tuple(range(5, 5 + len(proposal.token_ids)))
    assert len(proposal.log_chances) in (0, len(proposal.token_ids))
    return len(proposal.token_ids)


def test_proposals_of_drafter_and_lookup_are_trimmed_together() -> None:
    lengths = made()
    running = [
        proposing(lengths, 1, drafted(LIKELY, DraftSource.LOOKUP)),
        proposing(lengths, 2, drafted(SURE)),
        proposing(lengths, 3, drafted(POOR)),
        proposing(lengths, 4, None),
    ]
    lengths.trim(running, 0)
    assert [kept(sequence) for sequence in running[:3]] == [1, 3, 0]
    assert running[3].proposal is None


def test_a_fixed_policy_leaves_nothing_out() -> None:
    lengths = made("fixed")
    running = [proposing(lengths, number, drafted(POOR)) for number in (1, 2, 3)]
    lengths.trim(running, 0)
    assert [kept(sequence) for sequence in running] == [3, 3, 3]
    assert lengths.least_chance == 0


@pytest.mark.parametrize(("credit", "count"), [(100.0, 4), (0.0, 1)])
def test_a_try_is_verified_whole_as_long_as_it_is_not_too_dear(credit: float, count: int) -> None:
    lengths = made()
    lengths.costs = CostModel(COSTS.steps.by_bucket)
    lengths.costs.drafts = DraftCosts(5, (0.1, 0.1, 0.1))
    lengths._steps, lengths._credit_seconds = EXPLORE_EVERY_STEPS, credit
    for _ in range(LEAST_DRAFTS):
        lengths._confidence.see(log_chances([0.1, 0.01, 0.001, 0.0001]))
    running = [proposing(lengths, number, None) for number in (1, 2)]
    lengths.wanted(running, 5, 0)
    assert lengths.least_chance == (LEAST_CHANCE if count == 1 else 0)
    for sequence in running:
        sequence.proposal = drafted([0.1, 0.01, 0.001, 0.0001])
    lengths.trim(running, 0)
    # A step of four tokens is as fast as one of two.
    assert [kept(sequence) for sequence in running] == [count, count]


def test_proposals_of_which_nothing_is_said_are_verified_whole() -> None:
    lengths = made()
    silent = replace(drafted(POOR), log_chances=())
    running = [proposing(lengths, 1, silent), proposing(lengths, 2, drafted(POOR))]
    lengths.trim(running, 0)
    assert [kept(sequence) for sequence in running] == [3, 3]
    running = [proposing(lengths, 3, silent), proposing(lengths, 4, silent)]
    lengths.trim(running, 0)
    assert [kept(sequence) for sequence in running] == [3, 3]


def test_a_sequence_that_waits_for_its_draft_takes_no_room() -> None:
    lengths = made()
    running = [proposing(lengths, number, drafted(SURE)) for number in (1, 2)]
    waiting = [proposing(lengths, number, None) for number in (3, 4)]
    for sequence in waiting:
        sequence.awaiting_draft = True
    lengths.trim([*running, *waiting], 0)
    assert [kept(sequence) for sequence in running] == [3, 3]


def verified(lengths: DraftLengths, sequence: Sequence, accepted: int) -> Progress:
    count = kept(sequence)
    assert sequence.proposal is not None
    row = Row(sequence, 2, (3, *sequence.proposal.token_ids), count, sequence.proposal.source)
    return Progress(row, accepted, (9,) * (accepted + 1), accepted + 1)


def test_what_is_left_out_is_learned_from_too() -> None:
    lengths = made()
    for _ in range(60):
        running = [
            proposing(lengths, 1, drafted(SURE)),
            proposing(lengths, 2, drafted(POOR)),
            proposing(lengths, 3, drafted([0.95, 0.9])),
        ]
        lengths.trim(running, 0)
        assert [kept(sequence) for sequence in running] == [3, 0, 2]
        lengths.observe_acceptance(
            verified(lengths, sequence, kept(sequence)) for sequence in running
        )
    # A third of the first tokens are left out, and a tenth of those would be right.
    assert lengths.acceptance[0] == pytest.approx((1 + 0.1 + 1) / 3, abs=0.06)
    assert math.isclose(lengths.acceptance[1], 1.0, abs_tol=0.02)
