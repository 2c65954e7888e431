"""Programs grouped by how they add, and the text that says so."""

from functools import partial

import jax
import pytest

from blockdraft_aot.classes import Padding, classes_of
from blockdraft_aot.classes_report import classes_json, classes_text, paddings_json
from blockdraft_aot.compiled import Compiled, Counts
from blockdraft_aot.modelled import Modelled
from blockdraft_aot.programs import Program
from blockdraft_aot.roofline import PUBLISHED
from blockdraft_aot.rounding import Rounding, Sum, Unit

NOTHING = Counts(0.0, 0.0, 0.0)


def never_lowered() -> jax.stages.Lowered:
    raise AssertionError


def rounding(unit: Unit, order: str) -> Rounding:
    return Rounding((Sum("layer product", 64, 32, unit, "bf16 x bf16", "bf16", 1, order),))


def step(rows: int, tokens: int, unit: Unit, order: str, seconds: float = 1.0) -> Modelled:
    program = Program("verify", rows, tokens, never_lowered, None, 1, 1, NOTHING, None)
    counts = Counts(1.0, 1.0, seconds)
    compiled = Compiled(0.0, counts, 0, 0, 0, 0, 0, 0, 0, rounding(unit, order))
    return Modelled(program, compiled, counts, PUBLISHED["TPU v5p"])


matrix = partial(step, unit="matrix unit")
PROGRAMS = (
    step(1, 1, "vector unit", "1 pass"),
    matrix(1, 2, order="1 pass"),
    matrix(1, 4, order="2 passes"),
    matrix(4, 4, order="1 pass"),
)


def test_classes_share_a_first_number_when_only_passes_differ() -> None:
    classes = classes_of(PROGRAMS)
    shapes = {
        each.label: [(one.program.rows, one.program.tokens) for one in each.programs]
        for each in classes
    }
    assert shapes == {"1.1": [(1, 1)], "2.1": [(1, 2), (4, 4)], "2.2": [(1, 4)]}
    first, second, third = classes
    assert first.differences == ()
    assert [each.order_only for each in second.differences] == [False]
    assert [each.order_only for each in third.differences] == [True]
    assert [each["label"] for each in classes_json(classes)] == ["1.1", "2.1", "2.2"]


def test_programs_that_add_alike_are_one_class() -> None:
    (one,) = classes_of(PROGRAMS[1:2] * 3)
    assert len(one.programs) == 3


def test_padding_is_told_with_its_cost_and_what_it_changes() -> None:
    unpadded = step(1, 1, "vector unit", "1 pass", seconds=0.002)
    padding = Padding(matrix(1, 16, order="1 pass", seconds=0.0025), unpadded)
    assert padding.cost == pytest.approx(0.25)
    text = "\n".join(classes_text(classes_of(PROGRAMS), [padding], "v5p:1x1x1"))
    assert "  2.1: 1x2 4x4\n" in text
    assert "layer product of 64 to 32 (passes only)" in text
    assert (
        "plain steps of 1x1 to 16 tokens on v5p:1x1x1: 2.500 ms instead of 2.000 (+25.0%)" in text
    )
    assert "unpadded: vector unit, bf16 x bf16 to bf16, 1 pass" in text
    (as_json,) = paddings_json([padding])
    assert (as_json["tokens"], as_json["padded_tokens"]) == (1, 16)
    assert not as_json["differences"][0]["order_only"]
