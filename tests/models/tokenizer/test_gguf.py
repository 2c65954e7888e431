"""GGUF tokenizers: pre-tokenizers split as published, bad vocabularies are refused."""

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tests.models.builders import close_gguf
from tests.models.decoder.test_gguf_config import GGUF

from blockdraft_models.errors import TokenizerError
from blockdraft_models.families.published_config import config_from_gguf
from blockdraft_models.tokenizer.files import BYTE_TO_CHAR, backend_from_gguf
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.gguf_header import read_header

BYTES = [BYTE_TO_CHAR[byte] for byte in range(256)]
MERGES = ["1 2", "12 3", "l l", "Ġ a", "Ċ Ċ"]
TOKENS = [*BYTES, "12", "123", "ll", "Ġa", "ĊĊ", "<|end|>", "<think>"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 2) + [3, 4],
}


END = TOKENS.index("<|end|>")


def tokenizer_writer(path: Path, pre: str) -> GGUFWriter:
    """Begin a file with this vocabulary, which ends with `<|end|>`."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_merges(MERGES)
    writer.add_token_types(METADATA["tokenizer.ggml.token_type"])
    writer.add_eos_token_id(END)
    return writer


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("gpt-2", "1234", ["123", "4"]),
        ("smollm", "I'll a\n\n", ["I", "'", "ll", "Ġa", "ĊĊ"]),
        ("llama-bpe", "I'LL a\n\n", ["I", "'", "L", "L", "Ġa", "ĊĊ"]),
        ("smollm", "a<think>", ["a", "<think>"]),
    ],
)
def test_pre_tokenizers_split_as_published(pre: str, text: str, tokens: list[str]) -> None:
    backend = backend_from_gguf({**METADATA, "tokenizer.ggml.pre": pre})
    assert backend.encode(text).tokens == tokens


def test_qwen_normalizes_to_nfc() -> None:
    backend = backend_from_gguf({**METADATA, "tokenizer.ggml.pre": "qwen2"})
    assert backend.encode("e\u0301").ids == backend.encode("é").ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama' is not supported"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.merges": None}, "no merges"),
        ({"tokenizer.ggml.token_type": [1]}, "inconsistent"),
        ({"tokenizer.ggml.tokens": ["a"] * len(TOKENS)}, "inconsistent"),
        ({"tokenizer.ggml.merges": ["x yz"]}, "do not fit"),
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer 'tekken' is not supported"),
        ({"tokenizer.ggml.pre": None}, "names no pre-tokenizer"),
        ({"tokenizer.ggml.pre": "default"}, "names no pre-tokenizer"),
        ({"tokenizer.ggml.pre": 5}, "pre of the GGUF file is no str"),
        ({"tokenizer.ggml.tokens": 5}, "tokens of the GGUF file is no list"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens of the GGUF file holds what is no text"),
        ({"tokenizer.ggml.tokens": ["\udc80", *TOKENS[1:]]}, "is not UTF-8"),
        ({"tokenizer.ggml.merges": [0.5]}, "merges of the GGUF file holds what is no text"),
        ({"tokenizer.ggml.token_type": True}, "token_type of the GGUF file is no list"),
    ],
)
def test_bad_vocabularies_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        backend_from_gguf({**METADATA, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pre", "said", "adds"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("smollm", None, False),
        ("smollm", True, True),
    ],
)
def test_llama_3_begins_with_bos_unless_told_otherwise(
    pre: str, said: bool | None, adds: bool, tmp_path: Path
) -> None:
    writer = tokenizer_writer(tmp_path / "a.gguf", pre)
    writer.add_bos_token_id(END)
    if said is not None:
        writer.add_add_bos_token(said)
    close_gguf(writer)
    assert (load_tokenizer(tmp_path / "a.gguf").encode("a")[0] == END) == adds


def test_control_tokens_that_end_a_turn_are_known_by_their_spelling(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    tokens = [*BYTES, "<|end_of_text|>", "<|eot_id|>", "<|start|>", "<|im_end|>", "ll"]
    writer.add_token_list(tokens)
    writer.add_token_merges(["l l"])
    # `<|im_end|>` is a word of the text here.
    writer.add_token_types([1] * 256 + [3, 3, 3, 1, 1])
    writer.add_eos_token_id(256)
    close_gguf(writer)
    assert load_tokenizer(tmp_path / "a.gguf").eos_token_ids == (256, 257)
    metadata = {**GGUF, **read_header(tmp_path / "a.gguf").metadata}
    config = config_from_gguf({**metadata, "tokenizer.ggml.eot_token_id": None}, [])
    assert config.eos_token_ids == (256, 257)


def test_a_gguf_tokenizer_loads_with_template_and_stop_tokens(tmp_path: Path) -> None:
    writer = tokenizer_writer(tmp_path / "a.gguf", "smollm")
    writer.add_eot_token_id(5)
    writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}")
    close_gguf(writer)

    tokenizer = load_tokenizer(tmp_path / "a.gguf")
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == (END, 5)
    assert tokenizer.special_token_ids == {END}
    ids = tokenizer.encode_chat([{"role": "user", "content": "<|end|>"}])
    assert ids[-1] == END
    assert END not in ids[:-1]
    assert tokenizer.token_bytes(TOKENS.index("<think>")) == b"<think>"
