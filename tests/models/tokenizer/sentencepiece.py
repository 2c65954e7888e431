"""Small tokenizers of SentencePiece's kind, described as published ones are."""

import json
from pathlib import Path
from typing import Any

SPECIALS = ("<unk>", "<s>", "</s>", "<|user|>", "<|end|>")
UNK, BOS, EOS, USER, END = range(5)
MERGES = ("▁ h", "h e", "l l", "▁h e", "▁ ▁", "▁▁ ▁▁", "o r", "▁ w", "▁w or", "\n \n", "▁ {")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message.content }}<|end|>\n{% endfor %}"
)
KINDS = ("gemma", "llama", "phi", "mistral", "always")

_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PREPEND = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": "▁"}, _REPLACE],
}
_SPLIT = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
_DECODERS = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def described(kind: str) -> dict[str, Any]:
    """Return a `tokenizer.json`: control tokens, the bytes from id 5 on, and a few merges."""
    texts = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁ehlorw{}\n\té"]
    texts += [merge.replace(" ", "") for merge in MERGES]
    metaspace = {"type": "Metaspace", "replacement": "▁", "split": False}
    normalizer, splitter = {
        "gemma": (_REPLACE, _SPLIT),
        "llama": (_PREPEND, None),
        "phi": (_PREPEND, None),
        "mistral": (None, {**metaspace, "prepend_scheme": "first"}),
        "always": (None, {**metaspace, "prepend_scheme": "always"}),
    }[kind]
    flags = {"single_word": False, "normalized": False}
    added = [
        {"id": token, "content": text, **flags, "lstrip": kind == "always", "rstrip": kind == "phi"}
        for token, text in enumerate(SPECIALS)
    ]
    added = [{**one, "special": True} for one in added]
    if kind == "gemma":
        spaces = {"id": texts.index("▁▁"), "content": "▁▁", **flags}
        added.append({**spaces, "lstrip": False, "rstrip": False, "special": False})
    content = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": _DECODERS if kind == "gemma" else [*_DECODERS, _STRIP],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }
    # A copy, which the caller may change.
    return dict(json.loads(json.dumps(content)))


def write_tokenizer(directory: Path, content: dict[str, Any]) -> Path:
    """Write a directory with a `tokenizer.json` and what a tokenizer needs beside it."""
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    files = {"tokenizer.json": content, "tokenizer_config.json": config, "config.json": {}}
    directory.mkdir(parents=True, exist_ok=True)
    for name, described_file in files.items():
        (directory / name).write_text(json.dumps(described_file))
    return directory
