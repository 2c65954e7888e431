"""Routes beside those that complete: version, metrics, tokens."""

from typing import Any

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import HERE, PROMPT, chat, complete, post, url
from tests.server.support import Running, serving

from blockdraft_runtime import version


async def test_the_version(http: aiohttp.ClientSession, server: Running) -> None:
    async with http.get(url(server, "/version")) as response:
        assert await response.json() == {"version": version()}


async def test_the_metrics_are_those_of_the_server(
    http: aiohttp.ClientSession, server: Running
) -> None:
    assert (await complete(http, server))[0] == 200
    async with http.get(url(server, "/metrics")) as response:
        assert response.content_type == "text/plain"
        lines = (await response.text()).splitlines()
    [finished] = [
        line
        for line in lines
        if line.startswith("blockdraft_server_requests_total{") and "1.0" in line
    ]
    assert "length" in finished


async def test_tokens_and_their_text(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    asked = {"model": "smollm2-135m", "prompt": "hé"}
    status, answer = await post(http, server, "/tokenize", asked)
    assert status == 200
    assert answer == {"count": 3, "max_model_len": 64, "tokens": list("hé".encode())}
    status, spelt = await post(http, server, "/detokenize", {"tokens": answer["tokens"]})
    assert (status, spelt) == (200, {"prompt": "hé"})
    messages = [{"role": "user", "content": "hi"}]
    assert (await chat(http, server))[0] == 200
    status, answer = await post(http, server, "/tokenize", {"messages": messages})
    assert (status, answer["tokens"]) == (200, list(verifier.requests[-1].prompt_token_ids))


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("/tokenize", {}, "messages"),
        ("/tokenize", {"prompt": "hi", "tools": []}, "tools"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": "hi", "add_special_tokens": False}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [1, 300]}, "tokens[1]"),
    ],
)
async def test_what_cannot_be_is_named(
    http: aiohttp.ClientSession, server: Running, path: str, asked: dict[str, Any], param: str
) -> None:
    status, answer = await post(http, server, path, asked)
    assert (status, answer["error"]["param"]) == (400, param)
    status, answer = await post(http, server, path, {**asked, "model": "other"})
    assert (status, answer["error"]["param"]) == (404, "model")


@pytest.mark.parametrize("path", ["/version", "/metrics"])
async def test_a_key_is_needed(
    http: aiohttp.ClientSession, verifier: FakeVerifier, path: str
) -> None:
    async with serving(verifier, openai=HERE, api_keys=["key"]) as server:
        async with http.get(url(server, path)) as response:
            assert response.status == 401
        async with http.get(url(server, path), headers={"Authorization": "Bearer key"}) as response:
            assert response.status == 200


async def test_fields_without_effect(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    fields = {"user": "u", "metadata": {}, "store": True, "verbosity": "low"}
    fields |= {"prompt_cache_retention": "24h", "safety_identifier": "s"}
    assert (await complete(http, server, **fields))[0] == 200
    assert list(verifier.requests[-1].prompt_token_ids) == PROMPT
