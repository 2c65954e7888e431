"""The scheduler alone, driven by a target that can be computed by hand."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verifier.scheduling.by_hand import VOCAB, Driver, draft, next_token

from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.scheduling.pages import PageAllocator
from blockdraft_verifier.scheduling.prompts import prefill_chunk
from blockdraft_verifier.scheduling.scheduler import Scheduler
from blockdraft_verifier.scheduling.sequence import (
    Draft,
    FinishReason,
    GenerationRequest,
    TokenSequence,
)
from blockdraft_verifier.scheduling.states import StateCopy, StateSlots

MAX_STEPS = 3000


def expected_end(
    request: GenerationRequest, max_context_tokens: int
) -> tuple[list[int], FinishReason]:
    tokens = [*request.prompt, *request.emitted]
    while True:
        tokens.append(next_token(tokens))
        if tokens[-1] in request.stop_token_ids:
            return tokens, FinishReason.STOP
        count = len(tokens) - len(request.prompt)
        if count == request.max_output_tokens or len(tokens) == max_context_tokens:
            return tokens, FinishReason.LENGTH


@st.composite
def limits(draw: st.DrawFn) -> tuple[SchedulerSettings, int, int]:
    """Return limits, number of pages and page size; one sequence always fits."""
    page_size = draw(st.integers(1, 5))
    max_sequences = draw(st.integers(1, 5))
    max_context = draw(st.integers(4, 24))
    config = SchedulerSettings(
        max_sequences=max_sequences,
        max_step_tokens=draw(st.integers(max_sequences, 20)),
        max_context_tokens=max_context,
    )
    spare = draw(st.sampled_from([0, 0, 1, 3, 30]))
    return config, -(-max_context // page_size) + spare, page_size


def random_request(rng: random.Random, name: int, max_context: int) -> GenerationRequest:
    length = rng.randint(1, max_context - 1)
    # Few different prompts, so that prefixes are shared.
    start = rng.randrange(2)
    prompt = tuple((start + i) % VOCAB for i in range(length))
    emitted: tuple[int, ...] = ()
    if rng.random() < 0.3 and length + 2 < max_context:
        tokens = list(prompt)
        for _ in range(rng.randint(1, 2)):
            tokens.append(next_token(tokens))
        emitted = tuple(tokens[length:])
    return GenerationRequest(
        f"r{name}",
        prompt,
        emitted=emitted,
        max_output_tokens=len(emitted) + rng.randint(1, 15),
        stop_token_ids=frozenset({rng.randrange(VOCAB)} if rng.random() < 0.3 else ()),
        cache_salt=rng.choice((b"", b"a", b"b")),
        background=rng.random() < 0.3,
    )


@settings(max_examples=80, derandomize=True)
@given(limits(), st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_every_request_ends_right_whatever_the_limits(
    limits: tuple[SchedulerSettings, int, int], seed: int, rate: float, grouped: bool
) -> None:
    config, num_pages, page_size = limits
    rng = random.Random(seed)
    pages = PageAllocator(num_pages, page_size)
    driver = Driver(Scheduler(config, pages))
    sequences = [
        TokenSequence(i, random_request(rng, i, config.max_context_tokens), 0.0)
        for i in range(rng.randint(1, 8))
    ]
    arriving = list(sequences)
    for _ in range(MAX_STEPS):
        while arriving and rng.random() < 0.5:
            driver.add(arriving.pop(0))
        running = driver.scheduler.running
        rows = driver.step(-(-len(running) // 2) if grouped and running else None)
        idle = not rows and not driver.preempted
        if idle and not arriving and not any(s.awaiting_draft for s in running):
            break
        for sequence in running:
            # A draft comes at once, later, or not at all.
            if sequence.decoding and sequence.draft is None and rng.random() < 0.8:
                sequence.awaiting_draft = rng.random() < 0.3
                if not sequence.awaiting_draft:
                    sequence.draft = draft(rng, sequence.tokens, rate)
    assert not driver.scheduler.running
    assert not driver.scheduler.waiting
    assert pages.used == 0
    assert len(driver.admitted) == len(sequences)
    for sequence in sequences:
        tokens, reason = expected_end(sequence.request, config.max_context_tokens)
        assert sequence.tokens == tokens
        assert sequence.finish_reason is reason


def scheduler(
    num_pages: int = 64,
    page_size: int = 4,
    max_sequences: int = 4,
    max_step_tokens: int = 16,
    max_context_tokens: int = 64,
) -> Scheduler:
    config = SchedulerSettings(max_sequences, max_step_tokens, max_context_tokens)
    return Scheduler(config, PageAllocator(num_pages, page_size))


def new(
    number: int, prompt: Iterable[int], max_output_tokens: int = 40, *, background: bool = False
) -> TokenSequence:
    request = GenerationRequest(
        f"r{number}", tuple(prompt), max_output_tokens=max_output_tokens, background=background
    )
    return TokenSequence(number, request, 0.0)


def test_scarce_pages_preempt_the_youngest_and_it_ends_right_all_the_same() -> None:
    driver = Driver(scheduler(num_pages=8, max_context_tokens=30))
    sequences = [new(i, [i] * 6, 20) for i in range(3)]
    driver.add(*sequences)
    driver.finish()
    assert driver.preemptions > 0
    assert driver.ended[0] is sequences[0]
    for sequence in sequences:
        assert sequence.tokens == expected_end(sequence.request, 30)[0]


def test_the_background_gives_its_slots_up_and_goes_on_later() -> None:
    driver = Driver(scheduler(max_sequences=2))
    behind = [new(i, [i], 10, background=True) for i in range(2)]
    driver.add(*behind)
    driver.step()
    assert driver.scheduler.running == behind
    driver.add(first := new(2, [5], 10))
    driver.step()
    assert driver.scheduler.running == [behind[0], first]  # the youngest has given way
    driver.add(second := new(3, [6], 10), third := new(4, [7], 10))
    driver.step()
    assert driver.scheduler.running == [first, second]
    driver.finish()
    assert driver.ended[:2] == [first, second]
    assert set(driver.ended[2:]) == {third, *behind}
    for sequence in behind:
        assert sequence.tokens == expected_end(sequence.request, 64)[0]
    assert driver.preemptions == 2


def test_the_background_gives_its_pages_up_before_younger_ones_do() -> None:
    driver = Driver(scheduler(num_pages=8, max_context_tokens=30))
    driver.add(behind := new(0, [0] * 6, 20, background=True))
    driver.step()
    driver.add(first := new(1, [1] * 6, 20))
    driver.step()
    assert driver.scheduler.running == [behind, first]
    while first not in driver.ended:
        driver.step()
        assert first in driver.scheduler.running or first in driver.ended
    assert driver.preemptions > 0
    driver.finish()
    assert behind.tokens == expected_end(behind.request, 30)[0]


def test_the_background_keeps_what_would_not_be_enough() -> None:
    driver = Driver(scheduler(num_pages=8, max_step_tokens=32, max_context_tokens=30))
    driver.add(big := new(0, [0] * 18, 10), behind := new(1, [1] * 4, 2, background=True))
    driver.step()
    driver.add(late := new(2, [2] * 18, 2))
    driver.step()
    assert late in driver.scheduler.waiting
    assert behind in (*driver.scheduler.running, *driver.ended)
    assert driver.preemptions == 0
    driver.finish()
    assert set(driver.ended) == {big, behind, late}


def test_rows_take_turns_and_newcomers_do_not_starve_the_old() -> None:
    driver = Driver(scheduler())
    old = new(0, [1], 60)
    driver.add(old)
    for _ in range(20):
        driver.step(2)
    driver.add(*(new(number, [number], 60) for number in (1, 2)))
    driver.step(2)
    assert all(sequence.decoding for sequence in driver.scheduler.running)
    before = [len(sequence.tokens) for sequence in driver.scheduler.running]
    for _ in range(6):
        assert len(driver.step(2)) == 2
    gained = [
        len(sequence.tokens) - count
        for sequence, count in zip(driver.scheduler.running, before, strict=True)
    ]
    # Twelve rows for three sequences.
    assert gained == [4, 4, 4]


def test_drafts_do_not_starve_a_prompt() -> None:
    driver = Driver(scheduler(max_step_tokens=8))
    old = [new(number, [number], 60) for number in range(2)]
    driver.add(*old)
    driver.step()
    driver.add(late := new(2, [5] * 6, 2))
    for _ in range(6):
        for sequence in old:
            sequence.draft = Draft((VOCAB,) * 5)
        driver.step()
    assert late.output_count > 0


def test_prompts_get_the_room_that_is_left_them_beside_others() -> None:
    driver = Driver(scheduler(max_step_tokens=16, max_context_tokens=64, num_pages=32))
    asked: list[tuple[int, int, int]] = []

    def room(rows: int, tokens: int, context: int) -> int:
        asked.append((rows, tokens, context))
        return 5

    driver.add(first := new(0, [1, 2], 40))
    driver.step(prompt_room=room)
    assert first.decoding
    assert not asked  # no sequence is held up
    driver.add(*(new(number, range(8), 4) for number in (1, 2)))
    first.draft = Draft((0, 0))
    rows = driver.step(prompt_room=room)
    assert asked == [(1, 3, 0)]
    assert [len(row.token_ids) for row in rows] == [3, 5]
    rows = driver.step(prompt_room=room)
    assert asked[1] == (1, 1, 5)
    assert [len(row.token_ids) for row in rows] == [1, 3, 2]


def test_prompt_tokens_are_those_that_could_run_next() -> None:
    driver = Driver(scheduler(max_sequences=3, max_step_tokens=8, max_context_tokens=64))
    plan = driver.scheduler
    assert plan.prompt_tokens == 0
    driver.add(new(0, [1, 2], 40))
    assert plan.prompt_tokens == 2
    driver.step()
    assert plan.prompt_tokens == 0
    # The last one has to wait for a slot.
    for number, length in enumerate((20, 30, 15), start=1):
        driver.add(new(number, [number] * length, 40))
    assert plan.prompt_tokens == 20 + 30
    driver.step()
    assert plan.prompt_tokens == 20 + 30 - 7


def test_drafts_share_the_budget() -> None:
    driver = Driver(scheduler(max_step_tokens=8, max_sequences=3))
    driver.add(*(new(number, [number]) for number in range(3)))
    driver.step()
    for sequence in driver.scheduler.running:
        sequence.draft = Draft((VOCAB,) * 9)
    # The first may take what the others do not need for one token each.
    assert [row.draft_count for row in driver.step()] == [5, 0, 0]


@pytest.mark.parametrize(("max_output", "drafted"), [(2, 0), (3, 1), (4, 2), (9, 3)])
def test_the_last_token_is_not_drafted(max_output: int, drafted: int) -> None:
    driver = Driver(scheduler())
    driver.add(sequence := new(0, [1, 2], max_output))
    driver.step()
    sequence.draft = Draft((VOCAB,) * 3)
    assert [row.draft_count for row in driver.step()] == [drafted]


@pytest.mark.parametrize(
    ("prompt_length", "drafted"), [(10, 3), (11, 3), (12, 2), (13, 1), (14, 0)]
)
def test_drafts_stay_in_the_context(prompt_length: int, drafted: int) -> None:
    driver = Driver(scheduler(max_context_tokens=16, max_step_tokens=32))
    driver.add(sequence := new(0, [1] * prompt_length))
    while not sequence.decoding:
        driver.step()
    sequence.draft = Draft((VOCAB,) * 3)
    assert [row.draft_count for row in driver.step()] == [drafted]


@pytest.mark.parametrize(("ends", "max_output"), [(True, 9), (True, 3), (False, 9), (False, 3)])
def test_what_had_no_room_is_no_early_end(ends: bool, max_output: int) -> None:
    driver = Driver(scheduler())
    driver.add(sequence := new(0, [1, 2], max_output))
    driver.step()
    sequence.draft = Draft((VOCAB,) * 3, ended_early=ends)
    [row] = driver.step()
    assert row.draft_count == min(3, max_output - 2)
    assert row.ended_early == (ends and row.draft_count == 3)


def test_tokens_after_a_stop_token_are_dropped() -> None:
    driver = Driver(scheduler())
    tokens = [1, 2]
    for _ in range(4):
        tokens.append(next_token(tokens))
    assert len(set(tokens[2:])) == 4
    request = GenerationRequest("s", (1, 2), stop_token_ids=frozenset({tokens[4]}))
    driver.add(sequence := TokenSequence(0, request, 0.0))
    driver.step()
    sequence.draft = Draft(tuple(tokens[3:6]))
    driver.step()
    assert sequence.tokens == tokens[:5]
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.committed == 0  # its pages are free


def test_removing_a_waiting_sequence() -> None:
    waiting = scheduler(max_sequences=1)
    for number in range(3):
        waiting.add(new(number, [number]))
    waiting.plan()
    waiting.remove(next(iter(waiting.waiting)))
    assert [s.sequence_id for s in (*waiting.running, *waiting.waiting)] == [0, 2]
    waiting.remove(new(9, [1]))  # unknown: harmless


def test_the_drafting_are_left_out() -> None:
    driver = Driver(scheduler())
    driver.add(*(new(number, [number]) for number in range(2)))
    driver.step()
    driver.scheduler.running[0].awaiting_draft = True
    assert [row.sequence.sequence_id for row in driver.step()] == [1]


def test_a_cached_prefix_is_reported_but_not_that_of_a_preempted_sequence() -> None:
    driver = Driver(scheduler())
    for number in range(2):
        driver.add(sequence := new(number, range(10), 2))
        driver.finish()
        assert sequence.usage.cached_prompt_tokens == 8 * number


def test_what_was_preempted_names_its_pages_anew() -> None:
    driver = Driver(scheduler(max_step_tokens=8))
    driver.scheduler.max_block = 8
    # No pages are taken over for a prompt whose log probabilities are wanted.
    scored = GenerationRequest("s", tuple(range(16)), prompt_log_probs=1, max_output_tokens=1)
    driver.add(sequence := TokenSequence(0, scored, 0.0))
    driver.step()
    # Its pages lack what a new drafter reads; those that it gets now do not.
    sequence.names_pages = False
    driver.scheduler.preempt_all()
    driver.scheduler.pages.forget_contents()
    driver.finish()
    driver.add(again := new(1, range(16)))
    driver.finish()
    assert again.usage.cached_prompt_tokens == 12


def test_a_state_saved_before_all_was_preempted_is_saved_anew() -> None:
    limits = SchedulerSettings(max_sequences=1, max_step_tokens=8, max_context_tokens=16)
    driver = Driver(Scheduler(limits, PageAllocator(4, 4), StateSlots(1, 1, chunk_tokens=8)))
    driver.add(new(0, range(10)))
    for _ in range(2):
        steps = [driver.step(), driver.step()]
        assert [rows[0].state_copies for rows in steps] == [(), (StateCopy(0, 1),)]
        driver.scheduler.preempt_all()
        driver.scheduler.pages.forget_contents()


@given(st.integers(1, 5000), st.integers(0, 300), st.integers(1, 512))
@settings(max_examples=300, derandomize=True)
def test_prefill_chunk(remaining: int, used: int, budget: int) -> None:
    count = prefill_chunk(remaining, used, budget)
    whole = min(remaining, budget)
    assert 1 <= count <= whole
    total = used + count
    bucket = 1 << (total - 1).bit_length()
    if count < whole:
        assert total == bucket, "a cut chunk fills its bucket"
        assert used + whole < 0.75 * 2 * bucket
    elif total < 0.75 * bucket:
        assert bucket // 2 <= used, "more padding than a quarter could have been avoided"


def test_one_whole_sequence_must_fit() -> None:
    scheduler(num_pages=16, max_context_tokens=64)
    with pytest.raises(ValueError, match="cannot hold"):
        scheduler(num_pages=16, max_context_tokens=65)
