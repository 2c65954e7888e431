"""Prompts in the chat template, cut without harm to it."""

from pathlib import Path

import pytest

from blockdraft_bench.prompts import chat_prompt, prepare
from blockdraft_bench.settings import PromptSettings
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(target: Path) -> Tokenizer:
    return load_tokenizer(target)


def text_of(tokenizer: Tokenizer, token_ids: tuple[int, ...]) -> str:
    return tokenizer.decode(token_ids, skip_special=False)


@pytest.mark.usefixtures("jax_as_it_was")
def test_a_short_message_is_whole(tokenizer: Tokenizer, target: Path, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text('{"id": "a", "turns": ["Hello"]}')
    settings = PromptSettings(
        dataset=(str(tmp_path / "set.jsonl"),), max_prompt_tokens=100, target=str(target)
    )
    prepared = prepare(settings)
    assert (prepared.target, prepared.count) == (target, 1)
    [prompts] = prepared.prompt_sets
    assert prompts.dataset == "set"
    [prompt] = prompts.prompts
    assert prompt.sample_id == "a"
    expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(tokenizer, prompt.token_ids) == expected


@pytest.mark.parametrize("limit", [25, 26, 60, 99])
def test_a_long_message_keeps_its_beginning_and_the_template(
    tokenizer: Tokenizer, limit: int
) -> None:
    text = "abcdefghij" * 30
    prompt = chat_prompt(text, tokenizer, limit)
    template = len(chat_prompt("", tokenizer, limit))
    # One token a byte: exactly what fits.
    assert len(prompt) == limit
    kept = text[: limit - template]
    expected = f"<|im_start|>user\n{kept}<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(tokenizer, prompt) == expected


def test_characters_stay_whole(tokenizer: Tokenizer) -> None:
    template = len(chat_prompt("", tokenizer, 100))
    prompt = chat_prompt("é" * 50, tokenizer, template + 5)
    assert len(prompt) == template + 4
    assert "éé<|im_end|>" in text_of(tokenizer, prompt)
