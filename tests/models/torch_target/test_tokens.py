"""Tokenizers that say things twice, or beside `tokenizer.json`, against transformers.

`make test-torch` runs it: where there is no transformers it is skipped.
"""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from tests.models.tiny import IM_END, byte_tokenizer
from tests.models.tokenizer.test_tokenizer import SPECIAL, post_processor
from transformers import AutoTokenizer

from blockdraft_models.tokenizer.tokenizer import load_tokenizer

END, WHOLE = "<|im_end|>", byte_tokenizer(260)
WITHOUT_END = {
    **WHOLE,
    "added_tokens": [token for token in WHOLE["added_tokens"] if token["content"] != END],
    "model": {**WHOLE["model"], "vocab": {**WHOLE["model"]["vocab"], END: IM_END}},
}
WITH_BOS = {**WHOLE, "post_processor": post_processor("<|im_start|>", "A")}
ENTRY = {"content": END, **SPECIAL, "special": True}


@pytest.mark.parametrize(
    ("tokenizer", "config", "special_map"),
    [
        (WHOLE, {"add_bos_token": True, "bos_token": "<|im_start|>"}, None),
        (WITH_BOS, {"add_bos_token": False, "bos_token": "<|im_start|>"}, None),
        (WITH_BOS, {"add_eos_token": True, "bos_token": "<|endoftext|>", "eos_token": END}, None),
        (WITHOUT_END, {"eos_token": "<|endoftext|>"}, {"eos_token": END}),
        (WHOLE, {"eos_token": END, "added_tokens_decoder": {}}, {"eos_token": "<|endoftext|>"}),
        (WITHOUT_END, {"added_tokens_decoder": {"258": ENTRY}}, None),
        (WHOLE, {"added_tokens_decoder": {"258": {**ENTRY, "special": False}}}, None),
        (WITHOUT_END, {"additional_special_tokens": [END]}, None),
        (WITHOUT_END, {"pad_token": {"__type": "AddedToken", "content": END}}, None),
    ],
)
def test_tokens_are_those_of_transformers(
    tokenizer: dict[str, Any],
    config: dict[str, Any],
    special_map: dict[str, Any] | None,
    tmp_path: Path,
) -> None:
    files = {"tokenizer": tokenizer, "tokenizer_config": config, "config": {"model_type": "llama"}}
    files |= {"special_tokens_map": special_map} if special_map else {}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert ours.encode("a b") == theirs("a b").input_ids
    added = theirs.added_tokens_decoder
    assert ours.special_token_ids == {index for index, token in added.items() if token.special}
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
