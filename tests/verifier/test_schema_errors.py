"""Where the error of a schema is found, by a compiler that knows which parts are wrong."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blockdraft_verifier.grammars.schema_errors import failing_place


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b/c", "d~"])
    return st.one_of(
        st.builds(lambda parts: {"properties": parts}, st.dictionaries(names, leaf, max_size=3)),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(leaf, max_size=3)),
        st.builds(lambda part: {"items": part}, leaf),
    )


SCHEMAS = st.recursive(st.sampled_from([{}, {"wrong": True}]), nested, max_leaves=8)


def failure(schema: Any) -> str:
    return "wrong" if '"wrong"' in json.dumps(schema) else ""


@given(SCHEMAS)
def test_the_place_is_that_of_a_wrong_part(schema: Any) -> None:
    if not failure(schema):
        return
    part = schema
    for key in failing_place(schema, failure).split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        part = part[int(name)] if isinstance(part, list) else part[name]
    assert part == {"wrong": True}


def test_a_search_that_takes_too_long_tells_what_it_has() -> None:
    schema = {"properties": {"a": {"items": {"items": {"wrong": True}}}}}
    seconds = itertools.count()
    assert failing_place(schema, failure, lambda: next(seconds) / 5) == "#/properties/a/items"
