"""smg before a server whose verifier says what the test wants."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.models.tiny import CHAT_TEMPLATE, write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_ports
from tests.server.support import EOS, Running, serving, until
from tests.verifier.support import tiny_decoder

from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings
from blockdraft_server.supervise.plan import ServePlan, ServeSettings

# By the name, the gateway knows how the model calls tools.
MODEL = "qwen3"
SEQUENCES = 4
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


@dataclass
class Gateway:
    server: Running
    client: openai.AsyncOpenAI

    async def ask(self, client: openai.AsyncOpenAI | None = None, **options: Any) -> Any:
        fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **options}
        return await (client or self.client).chat.completions.create(model=MODEL, **fields)


@pytest.fixture
async def gateway(verifier: FakeVerifier, tmp_path: Path) -> AsyncIterator[Gateway]:
    write_hf_checkpoint(tiny_decoder(), tmp_path)
    config = tmp_path / "tokenizer_config.json"
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    verifier.description.max_context_tokens = 1024
    port = free_ports(3)
    address, http = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    process = ProcessSettings(address, drain_seconds=0)
    settings = ServeSettings(openai=http, server=ServerSettings(process=process))
    plan = ServePlan.of(settings, tmp_path, os.environ).gatewayed(http, port + 2)
    [gateway] = [child for child in plan.children() if child.name == "openai"]
    limits = LimitsSettings(max_waiting=0)
    async with (
        serving(
            verifier, address=address, target=str(tmp_path), model_name=MODEL, limits=limits
        ) as server,
        openai.AsyncOpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0) as client,
    ):
        running = await asyncio.create_subprocess_exec(*gateway.command, env=gateway.environment)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    with contextlib.suppress(openai.APIError):
                        if [model.id async for model in client.models.list()]:
                            break
                    await asyncio.sleep(0.05)
            yield Gateway(server, client)
        finally:
            running.terminate()
            await running.wait()


async def test_a_call_of_a_tool(gateway: Gateway, verifier: FakeVerifier) -> None:
    verifier.script = [*CALL.encode(), EOS]
    asked: Any = {"tools": [WEATHER], "max_tokens": 200}
    [choice] = (await gateway.ask(**asked)).choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Ulm"})
    # The template that the server published has told the model of it.
    prompt = bytes(token for token in verifier.requests[-1].prompt_token_ids if token < 256)
    assert b'"weather"' in prompt
    deltas = [
        delta
        async for piece in await gateway.ask(stream=True, **asked)
        for one in piece.choices
        for delta in one.delta.tool_calls or ()
    ]
    assert [delta.function.name for delta in deltas if delta.function.name] == ["weather"]
    told = "".join(delta.function.arguments or "" for delta in deltas)
    assert json.loads(told) == {"city": "Ulm"}


async def test_more_than_fit_are_told_so_and_get_in_later(
    gateway: Gateway, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 0
    held = [asyncio.create_task(gateway.ask()) for _ in range(SEQUENCES)]
    await until(lambda: len(verifier.requests) == SEQUENCES)
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError, match="at most 4 are allowed") as raised:
            await gateway.ask(stream=stream)
        # The gateway passes on no more than the status and the message.
        assert "retry-after" not in raised.value.response.headers
    # Clients try again by themselves.
    again = asyncio.create_task(gateway.ask(gateway.client.with_options(max_retries=20)))
    await until(lambda: gateway.server.metric("requests_total", outcome="resource_exhausted") == 3)
    verifier.go_on.set()
    texts = [each.choices[0].message.content for each in await asyncio.gather(again, *held)]
    assert len(set(texts)) == 1


async def test_who_leaves_ends_what_he_asked_for(gateway: Gateway, verifier: FakeVerifier) -> None:
    verifier.hold_after = 0
    waiting = [asyncio.create_task(gateway.ask(stream=stream)) for stream in (False, True)]
    await until(lambda: len(verifier.requests) == 2)
    for task in waiting:
        task.cancel()
    await until(lambda: verifier.cancelled == 2)
    verifier.hold_after, verifier.delay_seconds = None, 0.01
    answer = await gateway.ask(stream=True, max_tokens=900)
    await anext(aiter(answer))
    await answer.close()
    await until(lambda: verifier.cancelled == 3)
    await until(lambda: gateway.server.metric("requests_total", outcome="cancelled") == 3)
