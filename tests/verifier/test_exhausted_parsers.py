"""A lexer that a draft or another output exhausted: outputs are those of plain decoding still."""

import asyncio
from pathlib import Path

import pytest
from llguidance import LLParserLimits
from tests.verifier.grammars import END, text_grammar
from tests.verifier.support import link_to, make_engine
from tests.verifier.test_service import Served, collect, refused, served, tokens_of

from blockdraft_models.decoder.model import Decoder
from blockdraft_protos.v1 import inference_pb2
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.grammars import compilation
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Each letter after the number sign takes more than the one before.
GRAMMAR = text_grammar(lark="start: /say (ok|#([a-z ]*[aeiou][a-z ]{30}q)) now/")
PROMPT = (1, 2, 3)


@pytest.fixture(autouse=True)
def little_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step take no more than "say ok now" needs."""
    limits = LLParserLimits(step_lexer_fuel=200, verbose_errors=False)
    monkeypatch.setattr(compilation, "_LIMITS", limits)


def expensive(position: int, anchor: int, length: int) -> list[int]:
    return list(b"say #aeiouae"[position + 1 - len(PROMPT) :][:length])


async def said(verifier: Served, bias: float = -100.0) -> str:
    """Return what is said when the number sign has a bias."""
    options = inference_pb2.SamplingOptions(logit_bias={ord("#"): bias})
    request = GenerationRequest("r", PROMPT, max_output_tokens=40)
    messages = await collect(verifier.stream(request, grammar=GRAMMAR, sampling=options))
    assert messages[-1].finish_reason == inference_pb2.FINISH_REASON_STOP
    assert messages[-1].usage.output_tokens == len(tokens_of(messages))
    return bytes(token for token in tokens_of(messages) if token != END).decode()


@pytest.fixture(params=["plain", "drafted"])
def engine(request: pytest.FixtureRequest, decoder: Decoder) -> Engine:
    return make_engine(decoder, link_to(expensive) if request.param == "drafted" else None)


async def test_nothing_that_others_try_changes_an_output(engine: Engine, tmp_path: Path) -> None:
    engine.start()
    async with served(engine, tmp_path / "s") as verifier:
        verifier.open()
        together = asyncio.gather(*(said(verifier) for _ in range(4)))
        assert await together == ["say ok now"] * 4
        # One that cannot be followed by itself fails, and again no other does.
        options = inference_pb2.SamplingOptions(logit_bias={ord("#"): 100.0})
        stream = verifier.stream(GenerationRequest("r", PROMPT), grammar=GRAMMAR, sampling=options)
        _, reason = (await asyncio.gather(refused(stream), said(verifier)))[0]
        assert reason == "CONSTRAINT_TOO_COMPLEX"
        assert await said(verifier) == "say ok now"
        # A replay is followed as plain decoding is.
        resumed = verifier.stream(
            GenerationRequest("r", PROMPT), grammar=GRAMMAR, emitted_token_ids=b"say o"
        )
        assert bytes(tokens_of(await collect(resumed))).startswith(b"k now")
    engine.stop()
