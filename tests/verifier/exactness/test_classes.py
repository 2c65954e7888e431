"""Step shapes grouped by what they computed."""

import pytest

from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.exactness import find_classes

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
        "not exact in float32: 3 step shapes (rows x tokens) fall into 2 numerics classes: "
        "1x1 | 1x2 4x4"
    )


@pytest.mark.parametrize("others", [{}, {ONE: [b"a"]}, {ONE: [b"a", b"b"]}])
def test_a_shape_whose_rows_differ_is_not_exact(others: dict[Bucket, list[bytes]]) -> None:
    found = find_classes("float32", {FOUR: [b"a", b"b"], **others})
    assert not found.exact
    assert (FOUR,) in found.classes
    assert FOUR in found.unsteady
