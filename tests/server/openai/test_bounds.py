"""What callers may ask for at once: it is bounded, and done once, aside from others' streams."""

import asyncio
import json
import math
import threading
import time

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import HERE, complete, url
from tests.server.support import Running, serving, until

from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_runtime.status import ServiceError
from blockdraft_server.json_fields import Fields
from blockdraft_server.openai import http_server
from blockdraft_server.openai.requests import CompletionBatch, completion_request


async def test_a_prompt_is_tokenized_once_for_all_its_completions(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return list(text.encode())

    monkeypatch.setattr(server.tokenizer, "encode", encode)
    status, found = await complete(http, server, prompt=["ab", "cd"], n=16)
    assert (status, len(found["choices"])) == (200, 32)
    assert encoded == ["ab", "cd"]


async def test_more_completions_than_are_ever_held_are_no_matter_of_time(
    http: aiohttp.ClientSession, verifier: FakeVerifier
) -> None:
    async with serving(verifier, openai=HERE, limits=LimitsSettings(max_waiting=1)) as server:
        status, found = await complete(http, server, prompt=["a"] * 64, n=16)
        assert (status, found["error"]["param"]) == (400, "n")
        assert not verifier.requests
        status, found = await complete(http, server, n=5)
        assert (status, len(found["choices"])) == (200, 5)


async def test_a_large_body_is_read_aside(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, goes_on = threading.Event(), threading.Event()

    def read_late(value: object) -> CompletionBatch:
        reading.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return completion_request(value)

    monkeypatch.setattr(http_server, "completion_request", read_late)
    large = asyncio.ensure_future(complete(http, server, prompt=[1] * 100_000))
    await until(reading.is_set)
    async with http.get(url(server, "/v1/models")) as response:
        assert response.status == 200
    assert not large.done()
    goes_on.set()
    status, found = await large
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("number", ["1", "1.0"])
def test_a_long_list_of_numbers_takes_no_longer_than_to_read_it(number: str) -> None:
    """What Python does for each of them would keep the event loop from its thread's turn."""
    text = f"[{','.join([number] * 500_000)}]"
    began = time.thread_time()
    values = json.loads(text)
    read = time.thread_time()
    assert Fields({"prompt": values}).integers("prompt") == values
    assert time.thread_time() - read < 1.5 * (read - began)


@pytest.mark.parametrize(
    "values", [[1.5], [True], ["1"], [2**31], [-(2**31) - 1], [math.nan, 10**400], [math.inf], [[]]]
)
def test_what_is_no_list_of_integers_is_refused(values: list[object]) -> None:
    with pytest.raises(ServiceError, match="prompt must be a list of integers"):
        Fields({"prompt": [7, *values]}).integers("prompt")
