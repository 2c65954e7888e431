"""Each decoder against a reference of its own: the tokens, and where they end."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.support import BLOCK_SIZE, PROMPTS, ScriptedPair, scripted_pair, tiny_decoder
from tests.models.builders import run_dense, write_gguf
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.engine.sample_decoder import DecodeOne
from blockdraft_bench.peers.answers import Variant
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_verifier.engine.listeners import TokensGained
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


def test_blockdraft_computes_its_prompt_each_time(pair: ScriptedPair) -> None:
    pair.script(lambda offset: 2)
    events: list[TokensGained] = []
    request = GenerationRequest("again", PROMPTS.prompts[1].token_ids, max_output_tokens=2)
    for _ in range(2):
        pair.decoder.stream(request, events.append)
    cached = [event.usage.cached_prompt_tokens for event in events if event.usage is not None]
    assert cached == [0, 0]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the tiny target in transformers, read from a GGUF file, as its own assistant."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from blockdraft_bench.peers.transformers import load_transformers_peers

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(tiny_decoder(), path)
    return [*load_transformers_peers(path, path, "float32", threads=1)]


@pytest.mark.filterwarnings("default")  # theirs
class TestTransformers:
    def test_every_way_to_generate(self, peers: list[Any]) -> None:
        names = [peer.variant.name for peer in peers]
        assert names == ["generate", "prompt_lookup", "assisted"]
        check(peers[0].decode)
        # These draft before they have read the prompt.
        for peer in peers[1:]:
            check(peer.decode, range(1, LENGTH))

    def test_weights_in_bfloat16(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        pytest.importorskip("transformers")
        from blockdraft_bench.peers.transformers import load_model

        write_hf_checkpoint(tiny_decoder(), tmp_path)
        model = load_model(tmp_path, "bfloat16")
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}

    def test_an_assistant_of_other_tokens_is_refused(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
        from flax import nnx

        from blockdraft_bench.peers.transformers import load_transformers_peers

        write_hf_checkpoint(tiny_decoder(), tmp_path / "target")
        other = Decoder(tiny_config(vocab_size=300), rngs=nnx.Rngs(0))
        write_hf_checkpoint(other, tmp_path / "other")
        with pytest.raises(BenchError, match="the assistant has 300 tokens, the target 260"):
            load_transformers_peers(tmp_path / "target", tmp_path / "other", "float32", threads=1)


@pytest.mark.smollm2
def test_llama_cpp() -> None:
    pytest.importorskip("llama_cpp")
    from blockdraft_bench.peers.llama_cpp import LlamaCppPeer

    path = resolve_target("smollm2-135m")
    tokenizer = load_tokenizer(path)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.encode_chat(question)
    peer = LlamaCppPeer(path, context_tokens=128, threads=1)
    assert peer.variant == Variant("llama.cpp", "plain", "Q4_1")
    request = asked(prompt, 24, *tokenizer.eos_token_ids)
    answer = peer.decode(request)
    assert "Paris" in tokenizer.decode(answer.token_ids)
    assert len(answer.token_ids) <= 24
    assert answer.first_tokens == 1
    assert answer.decode_seconds > 0
    assert peer.decode(request).token_ids == answer.token_ids
