"""Prompt files, which prompts are answered, and where the user speaks in a chat template."""

import gzip
import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny import IM_START
from tests.training.talkative_target import write_talkative_target

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from blockdraft_training.corpus.conversations import opening_ids
from blockdraft_training.corpus.prompts import CorpusPrompt, read_prompts, select
from blockdraft_training.errors import CorpusError
from blockdraft_training.settings import PromptFile


def write(path: Path, *rows: Any) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = {".gz": gzip.compress(text), ".xz": lzma.compress(text)}
    path.write_bytes(packed.get(path.suffix, text))
    return path


def prompts(*texts: str) -> list[CorpusPrompt]:
    return [CorpusPrompt(f"p/{index}", "p", (text,)) for index, text in enumerate(texts)]


@pytest.mark.parametrize("name", ["some.jsonl", "some.jsonl.gz", "some.jsonl.xz"])
def test_files_are_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, {"id": "a", "turns": ["x", "y"]}, {"id": "b", "turns": ["z"]})
    assert list(read_prompts(PromptFile.parse(str(path)))) == [
        CorpusPrompt("a", "some", ("x", "y")),
        CorpusPrompt("b", "some", ("z",)),
    ]


def test_sources_may_be_named(tmp_path: Path) -> None:
    assert PromptFile.parse("math=a/b.jsonl") == PromptFile("math", Path("a/b.jsonl"))
    odd = write(tmp_path / "a=b.jsonl")
    assert PromptFile.parse(str(odd)) == PromptFile("a=b", odd)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["x"], "not a JSON object"),
        ({"turns": ["x"]}, "'id' must be a text"),
        ({"id": "a"}, "'turns' must be"),
        ({"id": "a", "turns": []}, "'turns' must be"),
        ({"id": "a", "turns": ["x", 1]}, "'turns' must be"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "some.jsonl", {"id": "good", "turns": ["x"]}, row)
    with pytest.raises(CorpusError, match=f"line 2: .*{message}"):
        list(read_prompts(PromptFile("some", path)))


def test_each_text_is_kept_once_and_excluded_ones_are_dropped() -> None:
    dropped: Counter[str] = Counter()
    selected = select(prompts("One", "Known?", "Two", "ONE ", "two"), {"Known?"}, dropped)
    assert [prompt.id for prompt in selected] == ["p/0", "p/2"]
    assert dropped == {"excluded": 1, "duplicate": 2}


def test_ids_must_differ() -> None:
    both = [CorpusPrompt("same", "p", ("x",)), CorpusPrompt("same", "q", ("y",))]
    with pytest.raises(CorpusError, match="two different prompts have the id same"):
        select(both, frozenset(), Counter())


@pytest.mark.parametrize("text", ["", "Write", "a", "0", "ends in <|im_end|>"])
def test_openings_stop_where_the_user_goes_on(tokenizer: Tokenizer, text: str) -> None:
    opening = opening_ids(tokenizer, text)
    assert opening[0] == IM_START
    assert bytes(opening[1:]) == b"user\n" + text.encode()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ 'always the same' }}", "no place before the user's text"),
        ("{{ messages[0]['content'] }}", "no place before the user's text"),
        ("user: {{ messages[0]['content'] | upper }}", None),
    ],
)
def test_openings_need_a_chat_template(
    tmp_path: Path, template: str | None, message: str | None
) -> None:
    target = write_talkative_target(tmp_path)
    path = target / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "chat_template": template}))
    tokenizer = load_tokenizer(target)
    if message is None:
        assert bytes(opening_ids(tokenizer, "")) == b"user: "
        return
    with pytest.raises(TokenizerError, match=message):
        opening_ids(tokenizer, "")
