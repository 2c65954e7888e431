"""What `serve` prints when it is ready."""

import os
from pathlib import Path

import pytest
from tests.command_lines import parse

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_server.supervise.command import CONFIGURATION
from blockdraft_server.supervise.plan import ServePlan
from blockdraft_server.supervise.summary import facts

DRAFTER = inference_pb2.DraftModel(method="eagle3", block_size=8, trained=True)


def told(
    *flags: str, drafter: inference_pb2.DraftModel | None = DRAFTER, **exactness: object
) -> dict[str, str]:
    """Return the lines of a service that was started with flags."""
    settings = CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {})
    description = pb.VerifierServiceDescribeResponse(
        max_context_tokens=8192, max_sequences=16, kv_cache_tokens=23296, drafter=drafter
    )
    values = {"exact": True, "dtype": "bfloat16"} | exactness
    description.exactness.CopyFrom(inference_pb2.ModelExactness(**values))  # type: ignore[arg-type]
    return dict(facts(ServePlan.of(settings, Path("/run/bd"), os.environ), description))


def test_all_that_one_asks_first() -> None:
    assert told() == {
        "model": "smollm2-135m, bfloat16, exact: drafting never changes a token",
        "context": "8,192 tokens for each of up to 16 sequences; the KV cache holds 23,296",
        "drafter": "EAGLE-3, block of 8, trained; prompt lookup",
        "ask": 'blockdraft generate --chat "Why is the sky blue?"',
    }


@pytest.mark.parametrize(
    ("flags", "drafter", "words"),
    [
        (("--no-drafter",), None, "prompt lookup"),
        (("--no-drafter", "--no-prompt-lookup"), None, "none: every token is decoded plainly"),
        (
            ("--drafter-placement=far:1",),
            DRAFTER,
            "EAGLE-3, block of 8, trained, at far:1; prompt lookup",
        ),
        (
            ("--learn",),
            inference_pb2.DraftModel(method="dflash", block_size=8),
            "DFlash, block of 8, untrained, learns from requests; prompt lookup",
        ),
        (
            ("--target", "Qwen/Qwen3-8B"),
            inference_pb2.DraftModel(method="dflash", block_size=16, trained=True),
            "DFlash, block of 16, trained without thinking (less is accepted unless "
            "enable_thinking is false); prompt lookup",
        ),
    ],
)
def test_what_drafts(
    flags: tuple[str, ...], drafter: inference_pb2.DraftModel | None, words: str
) -> None:
    assert told(*flags, drafter=drafter)["drafter"] == words


def test_how_exact_it_is() -> None:
    assert ", exact: " in told(exact=True)["model"]
    assert "inexact (--allow-inexact)" in told(exact=False)["model"]
    assert "int8 weights" in told("--weights", "int8")["model"]
    assert told("--kv-cache-dtype", "fp8")["context"].endswith("in fp8")


def test_the_command_names_an_address_that_is_not_the_default() -> None:
    assert told("--listen", "0.0.0.0:50051")["ask"].endswith('blue?"')
    assert told("--listen", "localhost:8000")["ask"].endswith("--address localhost:8000")
    assert "ask" not in told("--no-server", "--peer-listen", "0.0.0.0:50052")
