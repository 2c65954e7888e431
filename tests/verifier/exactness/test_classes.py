"""Step shapes grouped by what they computed."""

import pytest

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.exactness import InexactError, find_classes

ONE, TWO, FOUR = Bucket(1, 1, 1), Bucket(1, 2, 2), Bucket(4, 4, 4)


def test_shapes_that_computed_the_same_are_one_class() -> None:
    found = find_classes("bfloat16", {FOUR: [b"a", b"a"], ONE: [b"a"], TWO: [b"a"]})
    assert found.exact
    assert found.classes == ((ONE, TWO, FOUR),)
    assert found.summary() == "exact in bfloat16: all 3 step shapes are batch-invariant"


def test_shapes_that_differ_are_named() -> None:
    found = find_classes("float32", {ONE: [b"a"], TWO: [b"b"], FOUR: [b"b", b"b"]})
    assert not found.exact
    assert found.classes == ((ONE,), (TWO, FOUR))
    assert found.summary() == (
        "inexact in float32: 3 step shapes (rows x tokens) fall into 2 numerics classes: "
        "1x1 | 1x2 4x4"
    )


@pytest.mark.parametrize("others", [{}, {ONE: [b"a"]}, {ONE: [b"a", b"b"]}])
def test_a_shape_whose_rows_differ_is_not_exact(others: dict[Bucket, list[bytes]]) -> None:
    found = find_classes("float32", {FOUR: [b"a", b"b"], **others})
    assert not found.exact
    assert (FOUR,) in found.classes
    assert FOUR in found.unsteady


EIGHT = Bucket(4, 8, 4)


def test_the_cheapest_class_is_served_and_not_the_largest() -> None:
    found = find_classes("bfloat16", {ONE: [b"a"], TWO: [b"b"], FOUR: [b"a"], EIGHT: [b"b"]})
    seconds = {ONE: 1.0, TWO: 1.0, FOUR: 1.2, EIGHT: 4.0}
    mended = found.mended(seconds)
    assert mended.classes == ((ONE, FOUR),)
    # Steps of more tokens, which no draft has, are cut.
    assert mended.step_tokens == 4
    assert mended.padded == (TWO, EIGHT)
    assert found.mended({**seconds, EIGHT: 1.1}).classes == ((TWO, EIGHT),)


@pytest.mark.parametrize(("cost", "mended"), [(1.3, True), (1.31, False)])
def test_what_costs_too_much_is_refused(cost: float, mended: bool) -> None:
    found = find_classes("float32", {ONE: [b"a"], FOUR: [b"b"]})
    if mended:
        assert found.mended({ONE: 1.0, FOUR: cost}).padded == (ONE,)
    else:
        with pytest.raises(InexactError, match=r"1\.3 times the cost: --allow-inexact"):
            found.mended({ONE: 1.0, FOUR: cost})


def test_a_class_must_hold_all_rows_and_be_steady() -> None:
    found = find_classes("float32", {ONE: [b"a"], TWO: [b"a"], FOUR: [b"b", b"c"]})
    with pytest.raises(InexactError):
        found.mended(dict.fromkeys((ONE, TWO, FOUR), 1.0))


def test_a_class_must_hold_a_draft_of_every_row() -> None:
    found = find_classes("float32", {ONE: [b"a"], TWO: [b"b"]})
    assert found.mended({ONE: 1.0, TWO: 1.1}).classes == ((TWO,),)
