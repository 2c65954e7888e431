"""Routes beside those that complete: version, metrics, tokens."""

import asyncio
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import HERE, PROMPT, chat, complete, post, url
from tests.server.support import Running, serving

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
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


async def test_drafts_have_the_names_of_vllm_too(
    http: aiohttp.ClientSession, server: Running, verifier: FakeVerifier
) -> None:
    verifier.load = verifier_pb2.GetLoadResponse(
        running_sequences=3, waiting_sequences=2, used_pages=1, total_pages=4
    )
    for source, drafts, accepted in (
        (inference_pb2.TOKEN_SOURCE_DRAFTER, 5, [4, 2]),
        (inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP, 1, [1, 1, 1]),
    ):
        verifier.description.drafting.sources.add(
            source=source,
            drafts=drafts,
            drafted_tokens=3 * drafts,
            accepted_tokens=sum(accepted),
            accepted_per_position=accepted,
        )

    async def exposed() -> dict[str, float]:
        async with http.get(url(server, "/metrics")) as response:
            families = text_string_to_metric_families(await response.text())
        samples = [sample for family in families for sample in family.samples]
        assert all(
            sample.labels["model_name"] == "smollm2-135m"
            for sample in samples
            if sample.name.startswith("vllm:")
        )
        return {
            sample.name.removeprefix("vllm:") + sample.labels.get("position", ""): sample.value
            for sample in samples
            if sample.name.startswith("vllm:")
        }

    async with asyncio.timeout(PATIENCE_SECONDS):
        while (values := await exposed())["num_requests_running"] != 3:
            await asyncio.sleep(0.01)
    assert values == {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "spec_decode_num_drafts_total": 6,
        "spec_decode_num_draft_tokens_total": 18,
        "spec_decode_num_accepted_tokens_total": 9,
        "spec_decode_num_accepted_tokens_per_pos_total0": 5,
        "spec_decode_num_accepted_tokens_per_pos_total1": 3,
        "spec_decode_num_accepted_tokens_per_pos_total2": 1,
    }


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
        ("/tokenize", {"content": "hi"}, "prompt"),
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
