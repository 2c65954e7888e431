"""What callers over HTTP say of drafting, and hear of it."""

import random
import statistics
from typing import Any

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import body, complete, events
from tests.server.support import Running

from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_server.openai.acceptance import acceptance
from blockdraft_server.openai.responses import TextAnswer


async def test_a_stream_says_where_each_token_comes_from(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.tokens_per_step = 3
    asked = body(stream_options={"include_token_sources": True})
    pieces = [one["choices"][0] for one in await events(http, server, "/v1/completions", asked)]
    for piece in pieces:
        said = bytes(byte for token in piece["token_sources"] for byte in token["bytes"])
        assert said.decode() == piece["text"]
    sources = [token["source"] for piece in pieces for token in piece["token_sources"]]
    # The prompt's own step, and then steps of three tokens, of which the last is the target's.
    assert sources == ["target", *["drafter", "drafter", "target"] * 2, "target"]
    silent = await events(http, server, "/v1/completions", body())
    assert not any("token_sources" in one["choices"][0] for one in silent)


def test_sources_that_an_older_verifier_does_not_say_are_unknown() -> None:
    answer = TextAnswer("model", 1, 1, False, lambda token: bytes([token]))
    sources: list[pb.TokenSource.ValueType] = [pb.TOKEN_SOURCE_GRAMMAR]
    [piece] = answer.pieces(0, pb.StreamGenerateResponse(token_ids=[65, 66], token_sources=sources))
    assert piece["choices"][0]["token_sources"] == [
        {"bytes": [65], "source": "grammar"},
        {"bytes": [66], "source": "unknown"},
    ]


async def test_how_to_draft_reaches_the_verifier(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    options: dict[str, Any] = {"max_draft_tokens": 3, "prompt_lookup_disabled": True}
    assert (await complete(http, server, speculation=options))[0] == 200
    assert (await complete(http, server, speculation={"disabled": True}))[0] == 200
    drafted, plain = verifier.requests
    assert drafted.speculation == pb.SpeculationOptions(**options)
    assert plain.speculation == pb.SpeculationOptions(disabled=True)
    status, found = await complete(http, server, speculation={"enabled": True})
    assert (status, found["error"]["param"]) == (400, "speculation.enabled")


async def test_an_answer_says_how_many_drafted_tokens_were_accepted(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.tokens_per_step = 3
    _, plain = await complete(http, server)
    _, whole = await complete(http, server, return_spec_tokens_details=True)
    assert {"metrics", "sglext"}.isdisjoint(plain)
    assert whole["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] == 4
    options = {"include_usage": True}
    asked = body(stream_options=options, return_spec_tokens_details=True)
    last = (await events(http, server, "/v1/completions", asked))[-1]
    assert last["usage"] == whole["usage"]
    assert (last["metrics"], last["sglext"]) == (whole["metrics"], whole["sglext"])


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_is_that_of_the_steps(seed: int) -> None:
    draw = random.Random(seed)
    usages, accepted_of_step, drafted_count = [], [], 0
    for _ in range(3):
        usage = pb.Usage(drafted_per_position=[0] * 6, accepted_per_position=[0] * 6)
        for _ in range(40):
            drafted = draw.randint(0, 6)
            accepted = draw.randint(0, drafted)
            usage.verification_steps += 1
            for position in range(drafted):
                usage.drafted_per_position[position] += 1
            for position in range(accepted):
                usage.accepted_per_position[position] += 1
            accepted_of_step.append((drafted, accepted))
            drafted_count += drafted
        usages.append(usage)
    report = acceptance(usages)
    vllm = report["metrics"]["speculative_decoding"]
    sglang = report["sglext"]["spec_tokens_details"]
    drafts = [accepted for drafted, accepted in accepted_of_step if drafted]
    every = [accepted for _, accepted in accepted_of_step]
    for histogram, steps in (
        (vllm["acceptance_histogram"], drafts),
        (sglang["spec_correct_drafts_histogram"], every),
    ):
        assert histogram == [steps.count(count) for count in range(7)]
    assert vllm["num_spec_steps"] == len(drafts)
    assert vllm["mean_acceptance_length"] == pytest.approx(1 + statistics.mean(drafts))
    assert sglang["spec_accept_length"] == pytest.approx(1 + statistics.mean(every))
    assert vllm["draft_acceptance_rate"] == pytest.approx(sum(drafts) / drafted_count)


def test_acceptance_without_drafts() -> None:
    report = acceptance([pb.Usage(verification_steps=5)])
    vllm = report["metrics"]["speculative_decoding"]
    assert (vllm["acceptance_histogram"], vllm["mean_acceptance_length"]) == ([0], 1.0)
    assert report["sglext"]["spec_tokens_details"]["spec_correct_drafts_histogram"] == [5]
