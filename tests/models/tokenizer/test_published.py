"""A GGUF file's tokenizer in published form gives the same ids, and says the same of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.builders import close_gguf
from tests.models.tokenizer.test_gguf import END, tokenizer_writer
from tokenizers import Tokenizer as Backend

from blockdraft_models.tokenizer.published import published_files
from blockdraft_models.tokenizer.tokenizer import load_tokenizer

TEMPLATE = "{{ messages[0]['content'] }}<|end|>"


def gguf(path: Path, pre: str, *, adds_bos: bool = False) -> Path:
    writer = tokenizer_writer(path, pre)
    writer.add_bos_token_id(END)
    writer.add_add_bos_token(adds_bos)
    writer.add_chat_template(TEMPLATE)
    writer.add_context_length(512)
    close_gguf(writer)
    return path


@pytest.fixture(scope="module", params=["smollm", "qwen2", "llama-bpe", "gpt-2"])
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Backend]:
    path = gguf(tmp_path_factory.mktemp("published") / "a.gguf", request.param)
    published = published_files(path)
    return load_tokenizer(path), Backend.from_str(published["tokenizer.json"].decode())


@given(text=st.text(max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_have_the_same_ids(both: tuple[Any, Backend], text: str) -> None:
    ours, theirs = both
    if "<|end|>" not in text:
        assert theirs.encode(text).ids == ours.encode(text)


def test_it_begins_with_bos_where_the_model_does(tmp_path: Path) -> None:
    path = gguf(tmp_path / "a.gguf", "smollm", adds_bos=True)
    theirs = Backend.from_str(published_files(path)["tokenizer.json"].decode())
    assert theirs.encode("123").ids == load_tokenizer(path).encode("123")
    assert theirs.encode("123").ids[0] == END


def test_what_is_said_beside_the_vocabulary(tmp_path: Path) -> None:
    published = published_files(gguf(tmp_path / "a.gguf", "smollm"))
    config = json.loads(published["config.json"])
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["eos_token_id"], config["max_position_embeddings"]) == ([END], 512)
    told = json.loads(published["tokenizer_config.json"])
    assert (told["chat_template"], told["eos_token"]) == (TEMPLATE, "<|end|>")


def test_of_a_directory_the_files_are_its_own(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json", "chat_template.jinja", "model.safetensors"):
        (tmp_path / name).write_text(name)
    assert published_files(tmp_path) == {
        name: name.encode() for name in ("tokenizer.json", "config.json", "chat_template.jinja")
    }


@pytest.mark.smollm2
@pytest.mark.parametrize("text", ["Hello, world!", "1234  \n\n x = 5", "Füße 深い 🦆", "I'll"])
def test_the_default_target(text: str) -> None:
    from blockdraft_models.weights.resolve import resolve_target

    path = resolve_target("smollm2-135m")
    theirs = Backend.from_str(published_files(path)["tokenizer.json"].decode())
    assert theirs.encode(text).ids == load_tokenizer(path).encode(text)
