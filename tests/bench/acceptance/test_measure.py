"""Measured acceptance against drafters that are right exactly as often as they are told to be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.support import (
    BLOCK_SIZE,
    DRAFT_LENGTH,
    LIMITS,
    MAX_TOKENS,
    PROMPTS,
    ScriptedPair,
    scripted_pair,
)

from blockdraft_bench.acceptance.measure import conditions, measure_acceptance
from blockdraft_bench.acceptance.report import DatasetAcceptance
from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.common.prompts import Prompt, PromptSet
from blockdraft_bench.common.record import digest
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.common.store import ResultStore
from blockdraft_bench.engine.samples import AnswerKey, AnswerStore, Limits, SampleAnswers


@pytest.fixture(scope="module")
def pair() -> ScriptedPair:
    return scripted_pair()


def answer_store(path: Path | None = None) -> AnswerStore:
    return ResultStore(AnswerKey, SampleAnswers, "x", path)


def measure(
    pair: ScriptedPair,
    prompts: PromptSet = PROMPTS,
    limits: Limits = LIMITS,
    store: AnswerStore | None = None,
    draft_length: int = DRAFT_LENGTH,
    temperature: float = 0.0,
    on_answer: Callable[[str], None] = lambda dataset: None,
) -> DatasetAcceptance:
    store = store or answer_store()
    [result] = measure_acceptance(
        pair.decoder, [prompts], [temperature], limits, draft_length, store, on_answer
    )
    return result


def values(estimates: tuple[Estimate, ...]) -> list[float | None]:
    return [estimate.value for estimate in estimates]


def test_a_drafter_that_knows_everything_gains_a_block(pair: ScriptedPair) -> None:
    pair.script(lambda offset: DRAFT_LENGTH)
    result = measure(pair)
    assert result.acceptance_length == Estimate(4.0, None, 2)
    assert values(result.acceptance_per_position) == [1.0, 1.0, 1.0]
    assert values(result.conditional_acceptance_per_position) == [1.0, 1.0, 1.0]
    assert values(result.acceptance_decay) == [1.0, 1.0]
    assert (result.samples, result.tokens) == (2, 2 * MAX_TOKENS)
    # Four blocks an answer, the last of them just as long as the answer may still get.
    assert result.steps == result.verifications == 8
    assert result.identical_share == 1.0


def test_a_drafter_that_is_always_wrong_gains_nothing(pair: ScriptedPair) -> None:
    pair.script(lambda offset: 0)
    result = measure(pair)
    assert result.acceptance_length == Estimate(1.0, None, 2)
    assert values(result.acceptance_per_position) == [0.0, 0.0, 0.0]
    assert values(result.conditional_acceptance_per_position) == [0.0, None, None]
    assert values(result.acceptance_decay) == [None, None]
    # One token a verification; the last three of an answer have shorter proposals.
    assert result.verifications == 2 * (MAX_TOKENS - 1)
    assert result.steps == result.verifications - 2 * 3
    assert result.identical_share == 1.0


def test_a_drafter_that_is_right_at_times(pair: ScriptedPair) -> None:
    # Offset of the anchor in the answer, right tokens, next offset: 0 3 4; 4 1 6; 6 1 8; 8 3 12;
    # 12 3 16, all with whole proposals; at 16 nothing is left. Accepted 3, 1, 1, 3, 3.
    pair.script(lambda offset: 3 if offset % 4 == 0 and offset != 4 else 1)
    result = measure(pair)
    assert result.steps == result.verifications == 2 * 5
    assert result.acceptance_length.value == pytest.approx((4 + 2 + 2 + 4 + 4) / 5)
    assert values(result.acceptance_per_position) == pytest.approx([1.0, 0.6, 0.6])
    assert values(result.conditional_acceptance_per_position) == pytest.approx([1.0, 0.6, 1.0])
    assert values(result.acceptance_decay) == pytest.approx([0.6, 1.0 / 0.6])


def test_shortened_proposals_do_not_count(pair: ScriptedPair) -> None:
    # One token from the prompt, a block of four, and room for two more: one drafted, one not.
    limits = replace(LIMITS, max_tokens=7)
    pair.script(lambda offset: DRAFT_LENGTH, limits=limits)
    result = measure(pair, limits=limits)
    assert (result.steps, result.verifications) == (2, 4)
    assert result.acceptance_length.value == BLOCK_SIZE


def test_a_shorter_draft_length(pair: ScriptedPair) -> None:
    pair.script(lambda offset: DRAFT_LENGTH)
    result = measure(pair, draft_length=1)
    assert result.acceptance_length.value == 2.0
    assert values(result.acceptance_per_position) == [1.0]
    assert result.acceptance_decay == ()


@pytest.mark.parametrize("right", [0, DRAFT_LENGTH])
@pytest.mark.parametrize("end", [5, 8])
def test_the_verification_that_ends_in_a_stop_token_does_not_count(
    pair: ScriptedPair, right: int, end: int
) -> None:
    # An answer with many different tokens. With a perfect drafter its tokens 5 to 8 are a block,
    # so that the stop token is the first one drafted, or the target's own at the end.
    prompts = PromptSet("tiny", (Prompt("one", tuple(range(0, 19 * 7, 7))),))
    [whole] = pair.script(lambda offset: 0, prompts=prompts)
    assert whole.token_ids[end] not in whole.token_ids[:end]
    limits = replace(LIMITS, stop_token_ids=frozenset({whole.token_ids[end]}))
    pair.script(lambda offset: right, prompts=prompts, limits=limits)
    result = measure(pair, prompts, limits)
    assert result.tokens == end + 1
    assert result.acceptance_length == Estimate(right + 1.0, None, 1)
    assert result.steps == result.verifications - 1


def test_sampled_answers_are_those_of_plain_decoding(pair: ScriptedPair) -> None:
    pair.method.propose = lambda position, anchor, length: [anchor] * length
    result = measure(pair, temperature=1.0)
    assert result.temperature == 1.0
    assert result.identical_share == 1.0


def test_the_seed_decides_what_is_sampled(pair: ScriptedPair) -> None:
    pair.method.propose = lambda position, anchor, length: [anchor] * length

    def answers(seed: int, prompts: PromptSet) -> set[tuple[int, ...]]:
        store = answer_store()
        measure(pair, prompts, replace(LIMITS, seed=seed), store, temperature=1.0)
        return {answer.token_ids for record in store for answer in record.methods.values()}

    first = answers(7, PROMPTS)
    assert answers(8, PROMPTS).isdisjoint(first)
    # A sample's answer does not depend on which others are measured.
    assert answers(7, PromptSet("tiny", PROMPTS.prompts[1:])) <= first


def test_many_prompts_of_other_lengths_all_get_their_answers(pair: ScriptedPair) -> None:
    pair.method.propose = lambda position, anchor, length: [anchor] * length
    prompts = [Prompt(f"p{i}", tuple(range(1 + i, 4 + 7 * i))) for i in range(9)]
    done: list[str] = []
    limits = replace(LIMITS, max_tokens=8)
    result = measure(pair, PromptSet("many", tuple(prompts)), limits, on_answer=done.append)
    assert (result.samples, result.tokens, done) == (9, 72, ["many"] * 18)
    assert result.identical_share == 1.0


def test_an_interrupted_measurement_goes_on(pair: ScriptedPair, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    pair.script(lambda offset: DRAFT_LENGTH)
    whole = measure(pair)

    def interrupt(dataset: str) -> None:
        if len(path.read_text("utf-8").splitlines()) == 3:
            raise KeyboardInterrupt

    # An interrupted decoder has work left, so it is not the one the other tests use.
    broken = scripted_pair()
    broken.script(lambda offset: DRAFT_LENGTH)
    with pytest.raises(KeyboardInterrupt):
        measure(broken, store=answer_store(path), on_answer=interrupt)
    # The fourth answer was being written.
    with path.open("a", encoding="utf-8") as file:
        file.write('{"settings": "x", "data')
    assert measure(pair, store=answer_store(path)) == whole
    assert len(path.read_text("utf-8").splitlines()) == 4
    # Once more: nothing is left to decode, and nothing counts twice.
    pair.method.propose = lambda position, anchor, length: pytest.fail("decoded again")
    assert measure(pair, store=answer_store(path)) == whole


def test_drafts_that_get_lost_end_the_measurement() -> None:
    broken = scripted_pair()
    broken.method.propose = lambda position, anchor, length: [10**6] * length
    with pytest.raises(BenchError, match="out of step"):
        measure(broken)


def test_whatever_decides_an_answer_is_part_of_the_identity(pair: ScriptedPair) -> None:
    variants = [
        (LIMITS, DRAFT_LENGTH, pair.decoder, "float32", 1.0),
        (replace(LIMITS, seed=8), DRAFT_LENGTH, pair.decoder, "float32", 1.0),
        (replace(LIMITS, max_tokens=8), DRAFT_LENGTH, pair.decoder, "float32", 1.0),
        (
            replace(LIMITS, stop_token_ids=frozenset({1})),
            DRAFT_LENGTH,
            pair.decoder,
            "float32",
            1.0,
        ),
        (LIMITS, 1, pair.decoder, "float32", 1.0),
        (LIMITS, DRAFT_LENGTH, pair.decoder, "bfloat16", 1.0),
        (LIMITS, DRAFT_LENGTH, pair.decoder, "float32", 0.9),
    ]
    identities = [digest(*conditions(*variant)) for variant in variants]
    assert len(set(identities)) == len(identities)
