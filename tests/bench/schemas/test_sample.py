"""The schemas that come with the package."""

from collections import Counter

from blockdraft_bench.schemas.sample import read_examples


def test_families_and_names() -> None:
    examples = read_examples()
    assert Counter(one.family for one in examples) == {
        "schemastore": 140,
        "kubernetes": 80,
        "functions": 160,
        "test-suite": 313,
    }
    assert len({(one.family, one.name) for one in examples}) == len(examples)
    for one in examples:
        assert isinstance(one.schema, dict | bool)
        assert (one.prompt is not None) == (one.family == "functions")
        assert bool(one.valid or one.invalid) == (one.family == "test-suite")
