"""Which tenant's turn it is, where some want more than others."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence
from blockdraft_verifier.scheduling.waiting import WaitingSequences


def new(number: int, tenant: bytes) -> TokenSequence:
    return TokenSequence(number, GenerationRequest(f"r{number}", (1,), cache_salt=tenant), 0.0)


def taken(waiting: WaitingSequences, running: list[TokenSequence]) -> TokenSequence:
    sequence = waiting.first(running)
    waiting.take(sequence)
    running.append(sequence)
    return sequence


def test_a_slot_goes_to_the_tenant_that_runs_least() -> None:
    waiting, running = WaitingSequences(), [new(100, b"flood"), new(101, b"flood")]
    for number in range(10):
        waiting.add(new(number, b"flood"))
    for number in (50, 51, 52):
        waiting.add(new(number, b"trickle"))
    assert [taken(waiting, running).sequence_id for _ in range(5)] == [50, 51, 0, 52, 1]


def test_with_one_place_tenants_take_turns() -> None:
    waiting = WaitingSequences()
    for number in range(6):
        waiting.add(new(number, b"flood"))
    order = [taken(waiting, []).sequence_id]
    waiting.add(new(50, b"trickle"))
    order += [taken(waiting, []).sequence_id for _ in range(2)]
    # A tenant that comes back joins the round at its end: no tenant gains by leaving it.
    waiting.add(new(51, b"trickle"))
    order += [taken(waiting, []).sequence_id for _ in range(3)]
    assert order == [0, 1, 50, 2, 51, 3]


def test_replays_go_before_new_sequences() -> None:
    waiting, running = WaitingSequences(), list[TokenSequence]()
    waiting.add(new(0, b"a"))
    for number in (1, 2):
        replay = GenerationRequest(f"r{number}", (1,), (2,), cache_salt=b"b", replay=True)
        waiting.add(TokenSequence(number, replay, 0.0))
    waiting.put_back(new(3, b"c"))
    assert [taken(waiting, running).sequence_id for _ in range(4)] == [3, 1, 2, 0]


def test_the_background_waits_for_all_others_and_has_its_own_turns() -> None:
    def behind(number: int, tenant: bytes) -> TokenSequence:
        request = GenerationRequest(f"r{number}", (1,), cache_salt=tenant, background=True)
        return TokenSequence(number, request, 0.0)

    waiting = WaitingSequences()
    for number, tenant in enumerate((b"a", b"a", b"b")):
        waiting.add(behind(number, tenant))
    waiting.put_back(behind(3, b"a"))
    waiting.add(new(10, b"a"))
    assert [taken(waiting, []).sequence_id for _ in range(3)] == [10, 3, 0]
    waiting.add(new(11, b"a"))
    assert [taken(waiting, []).sequence_id for _ in range(3)] == [11, 2, 1]
    assert len(waiting) == 0


def test_preempted_sequences_go_first() -> None:
    waiting = WaitingSequences()
    waiting.add(new(0, b"a"))
    waiting.put_back(new(1, b"b"))
    waiting.put_back(new(2, b"b"))
    assert [s.sequence_id for s in waiting] == [2, 1, 0]
    assert [taken(waiting, []).sequence_id for _ in range(3)] == [2, 1, 0]


def test_a_discarded_sequence_costs_no_turn() -> None:
    waiting = WaitingSequences()
    sequences = {number: new(number, b"ab"[number % 2 :][:1]) for number in range(6)}
    for sequence in sequences.values():
        waiting.add(sequence)
    waiting.put_back(back := new(9, b"c"))
    for sequence in (sequences[0], sequences[1], sequences[3], sequences[5], back):
        waiting.discard(sequence)
        waiting.discard(sequence)  # unknown by now: harmless
    assert len(waiting) == 2
    assert [taken(waiting, []).sequence_id for _ in range(2)] == [2, 4]


@settings(max_examples=25, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(2, 4))
def test_no_tenant_waits_longer_for_tenants_that_want_more(
    seed: int, slots: int, tenants: int
) -> None:
    """A tenant with one request at a time, among others that always have many."""
    rng = random.Random(seed)
    waiting, running = WaitingSequences(), list[TokenSequence]()
    names = [bytes([number]) for number in range(tenants)]
    trickle, flood = names[0], names[1:]
    number = 0
    passed = 0
    for _ in range(60):
        for name in flood:
            while sum(s.request.cache_salt == name for s in waiting) < 5:
                waiting.add(new(number, name))
                number += 1
        mine = [s for s in (*waiting, *running) if s.request.cache_salt == trickle]
        if not mine and rng.random() < 0.5:
            waiting.add(new(number, trickle))
            number += 1
            passed = 0
        while len(running) < slots:
            sequence = taken(waiting, running)
            passed += sequence.request.cache_salt != trickle
        if any(s.request.cache_salt == trickle for s in waiting):
            # One of each other tenant at most, besides sequences that ran already.
            assert passed <= len(flood)
        running.remove(rng.choice(running))
