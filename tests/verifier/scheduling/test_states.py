"""Which states are saved, in which slots, and where a sequence may go on."""

import pytest

from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence
from blockdraft_verifier.scheduling.states import StateCopy, StateSlots

PAGE, CHUNK = 16, 32


def arrived(slots: StateSlots, committed: int, prompt: int = 100, name: str = "") -> TokenSequence:
    """Return a sequence of which so many tokens are committed, in a slot of its own."""
    request = GenerationRequest("r", tuple(range(prompt)))
    sequence = TokenSequence(0, request, 0.0, committed=committed, state_slot=slots.take())
    sequence.page_hashes = [f"{name}{page}".encode() for page in range(committed // PAGE)]
    return sequence


@pytest.mark.parametrize(
    ("committed", "page"),
    [(31, None), (32, b"1"), (47, b"1"), (63, b"1"), (64, b"3"), (95, b"3"), (96, b"5")],
)
def test_a_state_is_saved_where_page_and_chunk_end(committed: int, page: bytes | None) -> None:
    slots = StateSlots(2, 4, CHUNK)
    slots.save(arrived(slots, committed), PAGE)
    assert slots.take_copies() == (() if page is None else (StateCopy(0, 5),))
    assert [name for name in (b"0", b"1", b"2", b"3", b"4", b"5") if slots.has(name)] == (
        [] if page is None else [page]
    )


def test_of_larger_pages_only_an_end_just_passed_is_saved() -> None:
    slots = StateSlots(3, 4, CHUNK)
    for committed in (100, 128, 170):
        sequence = arrived(slots, committed)
        sequence.page_hashes = [b"0"] * (committed // 128)
        slots.save(sequence, 128)
    assert slots.take_copies() == (StateCopy(1, 6),)


def test_a_state_outlives_its_sequence_until_newer_ones_need_its_place() -> None:
    slots = StateSlots(1, 2, CHUNK)
    for name in "abc":
        sequence = arrived(slots, 32, name=name)
        slots.save(sequence, PAGE)
        slots.release(sequence.state_slot)
        if name == "b":
            # The first one is used again, so the second gives way.
            sequence = arrived(slots, 32, name="a")
            slots.restore(sequence)
            assert slots.take_copies() == (StateCopy(0, 2), StateCopy(0, 1), StateCopy(2, 0))
            slots.release(sequence.state_slot)
    assert [slots.has(name) for name in (b"a1", b"b1", b"c1")] == [True, False, True]
    assert slots.take_copies() == (StateCopy(0, 1),)
    slots.forget_contents()
    assert not slots.has(b"a1")


def test_a_completion_has_one_state() -> None:
    slots = StateSlots(1, 8, CHUNK)
    sequence = arrived(slots, 32, prompt=40)
    for committed in (32, 64, 96, 128):
        sequence.committed = committed
        sequence.page_hashes = [str(page).encode() for page in range(committed // PAGE)]
        slots.save(sequence, PAGE)
    assert [slots.has(str(page).encode()) for page in (1, 3, 5, 7)] == [True, False, False, True]


def test_a_sequence_that_gives_its_slot_back_needs_no_state_in_it() -> None:
    slots = StateSlots(1, 1, CHUNK)
    sequence = arrived(slots, 32)
    slots.save(sequence, PAGE)
    slots.restore(sequence)
    slots.release(sequence.state_slot)
    assert slots.take_copies() == (StateCopy(0, 1),)


def test_without_states_a_beginning_may_end_anywhere() -> None:
    slots = StateSlots(1)
    sequence = arrived(slots, 32)
    slots.save(sequence, PAGE)
    slots.restore(sequence)
    assert slots.has(b"any")
    assert slots.take_copies() == ()
