"""BPE as SentencePiece trains it: spaces written as ▁, and single bytes for what has no token.

Llama 2, Phi 3, Mistral up to 7B v0.3 and Gemma publish such tokenizers. All but Gemma's put a space
before a text, which decoding drops: at its beginning, and in older files after each control token.
"""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from blockdraft_models.errors import TokenizerError

SPACE = "▁"
UNSUPPORTED = "only byte-level BPE and SentencePiece's BPE are supported"
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_DECODER = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """The parts of such a tokenizer that byte-level BPE does not have."""

    single_bytes: Mapping[int, bytes]  # by the tokens that stand for them
    space_character: tuple[int, ...]  # tokens of ▁ itself
    drops_space: bool  # whether decoding drops the space that a text begins with
    inner: Backend  # puts no space before a text
    after_control: Backend  # encodes text after a control token


def read_sentencepiece(backend: Backend) -> SentencePiece:
    """Read these parts of a tokenizer; `TokenizerError` if it is not SentencePiece's BPE."""
    steps = _state(backend.decoder).get("decoders")
    drops_space = steps == [*_DECODER, _STRIP]
    if not (drops_space or steps == _DECODER):
        raise TokenizerError(UNSUPPORTED)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    single_bytes = {
        token: bytes.fromhex(match[1])
        for text, token in vocabulary.items()
        if (match := _BYTE.fullmatch(text))
    }
    token_of = {data[0]: token for token, data in single_bytes.items()}
    # Without them, text would become the unknown token, which is a control token. Some vocabularies
    # have a character of ASCII instead.
    lacking = [byte for byte in range(256) if byte not in token_of]
    if not getattr(backend.model, "byte_fallback", False) or not all(
        byte < 128 and chr(byte) in vocabulary for byte in lacking
    ):
        raise TokenizerError("SentencePiece's BPE is supported only with tokens for all bytes")
    normalizer, splitter = _state(backend.normalizer), _state(backend.pre_tokenizer)
    plain = [_without_prefix(part) for part in (normalizer, splitter)]
    inner = backend if plain == [normalizer, splitter] else _changed(backend, *plain)
    only_first = '"prepend_scheme": "first"' in json.dumps(splitter)
    return SentencePiece(
        single_bytes=single_bytes,
        space_character=tuple(token_of[byte] for byte in SPACE.encode()),
        drops_space=drops_space,
        inner=inner,
        after_control=inner if only_first else backend,
    )


def _state(part: Any) -> dict[str, Any]:
    return dict(json.loads(part.__getstate__())) if part is not None else {}


def _changed(
    backend: Backend, normalizer: Mapping[str, Any], splitter: Mapping[str, Any]
) -> Backend:
    """Return a tokenizer with the same model and added tokens, but other steps before them."""
    described = {
        "version": "1.0",
        "normalizer": normalizer or None,
        "pre_tokenizer": splitter or None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    changed = Backend.from_str(json.dumps(described))
    changed.model = backend.model  # shared, not copied
    added = backend.get_added_tokens_decoder()
    # In the order of their ids, so that they get the same ids again.
    for special, tokens in itertools.groupby(added.values(), lambda token: token.special):
        add = changed.add_special_tokens if special else changed.add_tokens
        add(list(tokens))
    if changed.get_added_tokens_decoder() != added:
        raise TokenizerError("the added tokens have ids that tokens added in order do not get")
    return changed


def _without_prefix(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a normalizer or pre-tokenizer that puts nothing before a text."""
    changed = dict(part)
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            changed[name] = [step for step in map(_without_prefix, part[name]) if step]
    if part.get("type") == "Metaspace":
        changed["prepend_scheme"] = "never"
    return {} if part.get("type") == "Prepend" else changed
