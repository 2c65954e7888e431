"""The other programs: their weights, how they are fetched and asked, and what each decodes."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from tests.bench.support import tiny_decoder, write_fake_peer
from tests.models.builders import run_dense, write_gguf

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.errors import BenchError
from blockdraft_bench.peers import decoders
from blockdraft_bench.peers.decoders import (
    LLAMA_CPP,
    TRANSFORMERS,
    Peers,
    Variant,
    fetch,
    peer_process,
    quantization,
    rewrite_gguf,
)
from blockdraft_bench.samples import DecodeOne
from blockdraft_models.cache import default_cache_dir
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.gguf_header import read_header
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_verifier.scheduling.sequence import GenerationRequest

PROMPT = tuple(range(40, 45))
LENGTH = 13


def greedy(decoder: Decoder, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Decode one token at a time, without a cache."""
    tokens = list(prompt)
    for _ in range(length):
        padded = np.zeros((1, len(prompt) + length), np.int64)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(run_dense(decoder, padded)[0][0, len(tokens) - 1].argmax()))
    return tuple(tokens[len(prompt) :])


def asked(prompt: Sequence[int], length: int, *stop_token_ids: int) -> GenerationRequest:
    return GenerationRequest(
        "one",
        tuple(prompt),
        max_output_tokens=length,
        stop_token_ids=frozenset(stop_token_ids),
    )


def check(decode: DecodeOne, first_tokens: range = range(1, 2)) -> None:
    """Compare whole completions, and one that a stop token ends."""
    expected = greedy(tiny_decoder(), PROMPT, LENGTH)
    whole = decode(asked(PROMPT, LENGTH))
    assert whole.token_ids == expected
    assert whole.first_tokens in first_tokens
    assert whole.timed_tokens == LENGTH - whole.first_tokens
    assert whole.decode_seconds > 0
    stop = expected[4]
    short = decode(asked(PROMPT, LENGTH, stop))
    assert short.token_ids == expected[: expected.index(stop) + 1]


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
        generate, prompt_lookup = peers.decoders
        assert generate == Variant("transformers", "generate", "float32")
        assert prompt_lookup == Variant("transformers", "prompt_lookup", "float32")
        check(peers.decoders[generate])
        # It drafts before it has read the prompt.
        check(peers.decoders[prompt_lookup], range(1, LENGTH))


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
            completion = decode(request)
            assert len(completion.token_ids) <= 8
            assert completion.first_tokens == 1
            assert completion.decode_seconds > 0
            assert decode(request).token_ids == completion.token_ids
            assert len(decode(asked(prompt, 2)).token_ids) == 2


def test_a_peer_is_asked_in_lines(tmp_path: Path) -> None:
    with peer_process([str(write_fake_peer(tmp_path / "fake"))]) as peer:
        assert peer.versions == {"fake": "1.0"}
        whole = peer.decode(asked((1,), 5))
        assert whole == CompletionRecord((100, 101, 102, 103, 104), 1.0, first_tokens=2)
        assert whole.timed_tokens == 3
        assert peer.decode(asked((1,), 5), prompt_lookup_tokens=10).token_ids[0] == 110
        # What follows a stop token is cut, and its time with it.
        cut = peer.decode(asked((1,), 5, 102))
        assert cut == CompletionRecord((100, 101, 102), 0.5, first_tokens=2)
        first = peer.decode(asked((1,), 5, 100))
        assert first == CompletionRecord((100,))


def test_says_why_it_ended(tmp_path: Path) -> None:
    with peer_process([str(write_fake_peer(tmp_path / "fake"))]) as peer:
        for _ in range(2):  # the second time it cannot even be asked
            with pytest.raises(BenchError, match="a peer ended: unlucky"):
                peer.decode(asked((13,), 5))


def test_says_why_it_did_not_start() -> None:
    failing = pytest.raises(BenchError, match="a peer ended: exit code 3")
    with failing, peer_process([sys.executable, "-c", "raise SystemExit(3)"]):
        pass


VERSIONS = {"torch": "1"}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a peer fetched by a command that makes its folder and notes that it ran."""

    def commands(peer: str, folder: Path) -> list[list[str]]:
        return [[sys.executable, "-c", code, str(folder), str(log)], ["true", str(VERSIONS)]]

    log = tmp_path / "log"
    code = "import os, sys; os.mkdir(sys.argv[1]); open(sys.argv[2], 'a').write('fetched ')"
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(decoders, "_commands", commands)
    return log


def test_once_for_each_version(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(TRANSFORMERS) == fetch(TRANSFORMERS) == tmp_path / "peers" / "transformers"
    assert log.read_text("utf-8") == "fetched "
    monkeypatch.setitem(VERSIONS, "torch", "2")
    fetch(TRANSFORMERS)
    assert log.read_text("utf-8") == "fetched fetched "


@pytest.mark.usefixtures("log")
def test_what_failed_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(decoders, "_commands", lambda peer, folder: [["true"], ["false"]])
        for _ in range(2):
            with pytest.raises(BenchError, match=r"llama\.cpp cannot be fetched: false failed"):
                fetch(LLAMA_CPP)
    assert fetch(LLAMA_CPP).is_dir()


@pytest.mark.parametrize(("kind", "tolerance"), [("BF16", 2**-8), ("Q8_0", 2**-7)])
def test_rewrite(tmp_path: Path, kind: str, tolerance: float) -> None:
    source, destination = tmp_path / "tiny.gguf", tmp_path / "other.gguf"
    write_gguf(tiny_decoder(), source)
    rewrite_gguf(source, destination, kind)
    assert quantization(destination) == kind
    before, after = read_header(source).metadata, dict(read_header(destination).metadata)
    after.pop("general.file_type")
    assert after == {k: v for k, v in before.items() if k != "general.file_type"}
    old, new = GGUFReader(source).tensors, GGUFReader(destination).tensors
    assert [t.name for t in new] == [t.name for t in old]
    for one, two in zip(old, new, strict=True):
        matrix = len(one.shape) > 1
        assert two.tensor_type.name == (kind if matrix else "F32")
        values = dequantize(two.data, two.tensor_type)
        np.testing.assert_allclose(values, one.data, atol=tolerance * np.abs(one.data).max())


def test_a_file_that_does_not_say_its_type(tmp_path: Path) -> None:
    write_gguf(tiny_decoder(), tmp_path / "tiny.gguf")
    assert quantization(tmp_path / "tiny.gguf") == "GGUF"
