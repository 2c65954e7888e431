"""What callers may ask for at once: it is bounded, and done once, aside from others' streams."""

import asyncio
import io
import json
import math
import time
from typing import Any

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import HERE, JSON, body, complete, url
from tests.server.support import Running, serving

from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_runtime.status import ServiceError
from blockdraft_server.json_fields import Fields
from blockdraft_server.openai.requests import completion_request


async def test_a_prompt_is_tokenized_once_for_all_its_completions(
    http: aiohttp.ClientSession, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = server.app._tokenizer
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return list(text.encode())

    monkeypatch.setattr(tokenizer, "encode", encode)
    status, found = await complete(http, server, prompt=["ab", "cd"], n=3)
    assert (status, len(found["choices"])) == (200, 6)
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


async def test_a_large_body_is_read_aside(http: aiohttp.ClientSession, server: Running) -> None:
    data = json.dumps(body(prompt=[1] * 1_300_000, n=16)).encode()
    parsed, needed, holds = [], [], []
    # The shortest of several, since other processes hold this one too.
    for _ in range(5):
        started = time.monotonic()
        value = json.loads(data)
        parsed.append(time.monotonic() - started)
        completion_request(value)
        needed.append(time.monotonic() - started)
        holds.append(await longest_hold(http, url(server, "/v1/completions"), data))
    # One call of C is not divided; what follows is.
    assert min(holds) < (min(parsed) + min(needed)) / 2


async def longest_hold(http: aiohttp.ClientSession, address: str, data: bytes) -> float:
    """Return how long a body that is refused holds the event loop, in seconds."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)

    ticking = asyncio.ensure_future(tick())
    async with http.post(address, data=io.BytesIO(data), headers=JSON) as response:
        error: Any = (await response.json())["error"]
    ticking.cancel()
    assert (response.status, error["code"]) == (400, "context_length_exceeded")
    return longest


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
