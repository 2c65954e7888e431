"""`python -m tools.schema_suite SDIST`: what grammars allow of the official test suite.

    pip download --no-deps --no-binary jsonschema jsonschema==4.26.0

Of all drafts, optional tests too, with a target's tokens. No invalid value may be allowed, but for
what docs/structured-output.md says is not enforced: other formats, and contents of strings.
"""

import argparse
import itertools
import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockdraft_bench.schemas.grammar import (
    GrammarRefusedError,
    compiled,
    grammar_text,
    tokenizer_of,
)
from blockdraft_bench.schemas.validity import accepts
from blockdraft_server.json_schemas import FORMATS

_FILE = re.compile(r".*/json/tests/(draft[^/]+)/(.+)\.json")
_DRAFTS = {f"draft{n}": f"http://json-schema.org/draft-0{n}/schema#" for n in (3, 4, 6, 7)}


def groups(sdist: Path) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Yield the name of each group, its schema, which names its draft, and its tests."""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            if not (path := _FILE.fullmatch(member.name)):
                continue
            file = archive.extractfile(member)
            assert file is not None
            for group in json.load(file):
                schema = group["schema"]
                if isinstance(schema, dict) and path[1] in _DRAFTS:
                    schema = {"$schema": _DRAFTS[path[1]], **schema}
                yield f"{path[1]}/{path[2]}: {group['description']}", schema, group["tests"]


def is_enforced(schema: Any) -> bool:
    """Whether what a schema says of strings is kept."""
    if not isinstance(schema, dict):
        return True
    contents = schema.keys() & {"contentMediaType", "contentEncoding"}
    return not contents and schema.get("format", "date") in FORMATS


def orders(value: Any) -> Iterator[Any]:
    """Yield a value in all orders of its outermost names, of which a schema prescribes one."""
    if not isinstance(value, dict) or len(value) > 4:
        yield value
        return
    for items in itertools.permutations(value.items()):
        yield dict(items)


def main() -> int:
    """Print the counts and what differs; 1 if an invalid value is allowed."""
    parser = argparse.ArgumentParser("python -m tools.schema_suite", description=__doc__)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--target", default="default", help="whose tokens grammars are over")
    args = parser.parse_args()
    tokenizer = tokenizer_of(args.target)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    differing: dict[str, list[str]] = {"valid never written": [], "invalid allowed": []}
    for name, schema, tests in groups(args.sdist):
        counts["schemas"] += 1
        try:
            matcher = compiled(grammar_text(schema), tokenizer)
        except GrammarRefusedError as error:
            counts["refused"] += 1
            reasons[str(error).removeprefix("the constraint cannot be used: ")[:60]] += 1
            continue
        counts["compiled"] += 1
        for test in tests:
            kind = "valid" if test["valid"] else "invalid"
            counts[kind] += 1
            allowed = any(accepts(matcher, tokenizer, value) for value in orders(test["data"]))
            counts[f"{kind} allowed"] += allowed
            line = f"{name}: {json.dumps(schema)[:300]} {json.dumps(test['data'])[:120]}"
            if test["valid"] and not allowed:
                differing["valid never written"].append(line)
            elif allowed and not test["valid"] and is_enforced(schema):
                differing["invalid allowed"].append(line)
    print(
        json.dumps(
            {"counts": counts, "refused": dict(reasons.most_common(40)), **differing}, indent=1
        )
    )
    return int(bool(differing["invalid allowed"]))


if __name__ == "__main__":
    sys.exit(main())
