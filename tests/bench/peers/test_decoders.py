"""Each decoder against a reference of its own: the tokens, and where they end."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.bench.support import BLOCK_SIZE, PROMPTS, ScriptedPair, scripted_pair, tiny_decoder
from tests.models.builders import run_dense, write_gguf

from blockdraft_bench.engine.samples import DecodeOne
from blockdraft_bench.peers import decoders
from blockdraft_bench.peers.decoders import LLAMA_CPP, TRANSFORMERS, Peers, Variant
from blockdraft_models.cache import default_cache_dir
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPT = PROMPTS.prompts[0].token_ids
LENGTH = 1 + 3 * BLOCK_SIZE


def greedy(decoder: Decoder, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Decode one token at a time, without a cache."""
    tokens = list(prompt)
    for _ in range(length):
        padded = np.zeros((1, len(prompt) + length), np.int64)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(run_dense(decoder, padded)[0][0, len(tokens) - 1].argmax()))
    return tuple(tokens[len(prompt) :])


EXPECTED = greedy(tiny_decoder(), PROMPT, LENGTH)


def asked(prompt: Sequence[int], length: int, *stop_token_ids: int) -> GenerationRequest:
    return GenerationRequest(
        "one",
        tuple(prompt),
        max_output_tokens=length,
        stop_token_ids=frozenset(stop_token_ids),
    )


def check(decode: DecodeOne, first_tokens: range = range(1, 2)) -> None:
    """Compare whole answers, and one that a stop token ends."""
    whole = decode(asked(PROMPT, LENGTH))
    assert whole.token_ids == EXPECTED
    assert whole.first_tokens in first_tokens
    assert whole.timed_tokens == LENGTH - whole.first_tokens
    assert whole.ttft_seconds > 0
    assert whole.decode_seconds > 0
    stop = EXPECTED[4]
    short = decode(asked(PROMPT, LENGTH, stop))
    assert short.token_ids == EXPECTED[: EXPECTED.index(stop) + 1]


@pytest.fixture(scope="module")
def pair() -> Iterator[ScriptedPair]:
    made = scripted_pair()
    yield made
    made.decoder.close()


@pytest.mark.parametrize("max_draft_tokens", [0, None])
def test_blockdraft(pair: ScriptedPair, max_draft_tokens: int | None) -> None:
    pair.script(lambda offset: 2)
    check(functools.partial(pair.decoder.decode_alone, max_draft_tokens=max_draft_tokens))


def stack_of(peer: str) -> ExitStack:
    """Return a stack for processes of a peer, or skip the test if it was never fetched."""
    if not (default_cache_dir() / "peers" / peer / ".fetched").exists():
        pytest.skip(f"{peer} is not here; `blockdraft bench peers` fetches it")
    return ExitStack()


def test_transformers(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_decoder(), path)
    with stack_of(TRANSFORMERS) as stack:
        peers = Peers(stack)
        peers.start_transformers(path, "float32", threads=1)
        assert {"torch", "transformers"} == set(peers.versions)
        generate, lookup = peers.decoders
        assert generate == Variant("transformers", "generate", "float32")
        assert lookup == Variant("transformers", "prompt_lookup", "float32")
        check(peers.decoders[generate])
        # It drafts before it has read the prompt.
        check(peers.decoders[lookup], range(1, LENGTH))


@pytest.mark.smollm2
def test_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    # Files in other types: test_weights. Each takes seconds to write.
    monkeypatch.setattr(decoders, "OTHER_TYPES", ("BF16",))
    path = resolve_target("smollm2-135m")
    tokenizer = load_tokenizer(path)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.encode_chat(question)
    request = asked(prompt, 8, *tokenizer.eos_token_ids)
    with stack_of(LLAMA_CPP) as stack:
        peers = Peers(stack)
        peers.start_llama_cpp(path, threads=1, context_tokens=128)
        assert set(peers.versions) == {"llama.cpp"}
        kinds = ["BF16", "Q4_1"]
        assert list(peers.decoders) == [Variant("llama.cpp", "plain", kind) for kind in kinds]
        # The other computes with activations of 8 bits, and may say something else.
        first = next(iter(peers.decoders.values()))
        assert "Paris" in tokenizer.decode(first(request).token_ids)
        for decode in peers.decoders.values():
            answer = decode(request)
            assert len(answer.token_ids) <= 8
            assert answer.first_tokens == 1
            assert answer.decode_seconds > 0
            assert decode(request).token_ids == answer.token_ids
            assert len(decode(asked(prompt, 2)).token_ids) == 2
