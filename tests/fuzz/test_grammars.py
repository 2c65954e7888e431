"""Grammars that are nearly right: followed, or refused with a message; nothing dies or hangs."""

from tools.fuzz.grammar_process import GrammarProcess, fuzz
from tools.fuzz.grammars import KINDS

from blockdraft_bench.schemas.sample import read_examples

GRAMMARS = 400


def test_grammars() -> None:
    schemas = [example.schema for example in read_examples()]
    tally = fuzz(schemas, tuple(KINDS), GRAMMARS, seed=1)
    assert not tally.bad, tally.bad[:3]
    for kind in KINDS:
        assert tally.endings[f"{kind}: refused"] > 0
        assert tally.endings[f"{kind}: followed"] > GRAMMARS // 50


def test_a_process_that_dies_is_noticed() -> None:
    process = GrammarProcess(None)
    process.kill()
    with process:
        assert process.follow("", seed=1)["ending"] == "BAD died with status -9"
