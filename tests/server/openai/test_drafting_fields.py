"""What callers over HTTP say of drafting, and hear of it."""

from typing import Any

import aiohttp
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import body, complete, events
from tests.server.support import Running

from blockdraft_protos.v1 import inference_pb2 as pb
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
