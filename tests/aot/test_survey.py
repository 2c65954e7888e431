"""What fits a chip, by hand."""

import pytest

from blockdraft_aot.compiled import Compiled, Counts
from blockdraft_aot.settings import DoesNotFitError
from blockdraft_aot.survey import Memory, batch_by_context, check_drafter, pages_that_fit


def compiled(temporaries: int, results: int, code: int) -> Compiled:
    return Compiled(1.0, Counts(), 0, temporaries, results, code, 0, 0, 0, 0)


def test_programs_share_temporaries_but_not_code() -> None:
    memory = Memory(1000, weights=400, kv_cache=100).with_programs(
        [compiled(50, 3, 10), compiled(70, 2, 11)]
    )
    assert memory == Memory(1000, 400, 100, temporaries=70, results=3, code=21)
    assert memory.left == 1000 - 400 - 100 - 70 - 3 - 21


@pytest.mark.parametrize(("usable", "pages"), [(1000, 6), (1099, 6), (1100, 7)])
def test_pages_take_what_is_left(usable: int, pages: int) -> None:
    memory = Memory(usable, weights=300, kv_cache=0, temporaries=60, results=30, code=10)
    assert pages_that_fit(memory, page_bytes=100, needed=6) == pages


def test_less_than_one_sequence_does_not_fit() -> None:
    memory = Memory(10_000_000_000, 9_000_000_000, 0, temporaries=400_000_000, results=0, code=0)
    assert pages_that_fit(memory, 100_000_000, needed=6) == 6
    message = r"weights take 9\.00 GB of 10\.00 GB usable.* room for 6 of the 7 pages"
    with pytest.raises(DoesNotFitError, match=message):
        pages_that_fit(memory, 100_000_000, needed=7)
    with pytest.raises(DoesNotFitError, match="room for 0 of"):
        pages_that_fit(Memory(10, 20, 0, 0, 0, 0), 1, needed=1)


def test_a_drafter_fits_to_the_byte() -> None:
    check_drafter(Memory(100, weights=20, kv_cache=60, temporaries=10, results=5, code=5))
    with pytest.raises(DoesNotFitError, match=r"the drafter does not fit.*kv_cache take"):
        check_drafter(Memory(99, weights=20, kv_cache=60, temporaries=10, results=5, code=5))


def test_batches_at_lengths_that_halve() -> None:
    # A length that does not fill its last page takes it all the same.
    assert batch_by_context(100, 16, 600) == {600: 2, 300: 5, 150: 10, 75: 20}
    assert batch_by_context(10, 16, 20) == {20: 5}
    assert batch_by_context(10, 16, 16) == {16: 10}
