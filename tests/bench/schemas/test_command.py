"""`blockdraft bench schemas`, with a tiny target's tokens and with a service."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fakes.inference import FakeInference, running_fake

from blockdraft_runtime.status import ServiceError

SMALL = "schemas --samples 6 --answers 1 --max-tokens 64 --draft-length 3"


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "schemas.json").read_text("utf-8"))
    return found


def test_writes_a_row_for_each_family(bench: Callable[..., int], workplace: Path) -> None:
    assert bench("--target", "target", "--output", "out") == 0
    found = report(workplace / "out")
    rows = {row["family"]: row for row in found["results"]}
    assert list(rows) == ["schemastore", "kubernetes", "functions", "test-suite", "all"]
    assert rows["functions"]["compiled"] == 1.0
    assert rows["all"]["schemas"] == 24
    assert 0 < rows["all"]["compiled"] < 1
    assert sum(found["refused"].values()) == round(24 * (1 - rows["all"]["compiled"]))
    assert rows["all"]["valid"] == 1.0
    assert rows["test-suite"]["invalid_allowed"] == 0.0
    for name in ("compile_ms", "mask_us", "draft_ms"):
        times = [rows["all"][f"{name}_{which}"] for which in ("p50", "p99", "max")]
        assert 0 < times[0] <= times[1] <= times[2]
    assert "| kubernetes | 6 |" in (workplace / "out" / "schemas.md").read_text("utf-8")


def test_asks_a_service(bench: Callable[..., int], workplace: Path) -> None:
    fake = FakeInference()
    with running_fake(service=fake) as running:
        arguments = ["--address", running.target, "--family", "functions", "--samples", "2"]
        assert bench(*arguments, "--output", "out") == 0
        assert bench(*arguments, "--unconstrained", "--output", "free") == 0
    constrained, free = fake.requests[:2], fake.requests[2:]
    for request in constrained:
        text = request.prompt.conversation.messages[-1].content
        assert request.sampling.constraint.json_schema in text
    assert not any(request.sampling.HasField("constraint") for request in free)
    _, row = report(workplace / "out")["results"]
    assert (row["answers"], row["ended"], row["mask_us_p50"]) == (2, 1.0, None)
    _, row = report(workplace / "free")["results"]
    # It is no JSON.
    assert row["valid"] == 0.0
    assert len(report(workplace / "free")["invalid"]) == 2


def test_counts_what_a_service_refuses(bench: Callable[..., int], workplace: Path) -> None:
    error = ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "no such keyword")
    with running_fake(service=FakeInference(error=error)) as running:
        assert bench("--address", running.target, "--family", "functions", "--output", "out") == 0
    found = report(workplace / "out")
    assert found["refused"] == {"no such keyword": 6}
    assert found["results"][0]["compiled"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--family", "snowplow"), "--family must be of schemastore, kubernetes, functions, test"),
        (("--schemas", "none.gz"), "none.gz cannot be read"),
        (("--schemas", "target/config.json"), "target/config.json cannot be read"),
        (("--unconstrained",), "--unconstrained is for a service: say --address"),
    ],
)
def test_refuses(
    bench: Callable[..., int],
    refused: Callable[[int, int, str], None],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    refused(bench("--target", "target", *arguments), 2, message)
