"""SentencePiece's BPE: texts and tokens are what the `tokenizers` library makes of them."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.models.tokenizer.sentencepiece import (
    BOS,
    END,
    KINDS,
    SPECIALS,
    USER,
    described,
    write_tokenizer,
)
from tokenizers import Tokenizer as Backend

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer

Both = tuple[Tokenizer, Backend]

FIRST_BYTE = len(SPECIALS)
PARTS = ["he", " ", "  ", "\n", "wor", "ll", "▁", "é", "q€", "😀", "\x1c", "\u3000", "<0x41>", "{"]
TEXT = st.lists(st.sampled_from(PARTS) | st.text(max_size=3)).map("".join)
HOSTILE = st.lists(st.sampled_from([*SPECIALS, "<|", "user|>", "he", " "]) | TEXT).map("".join)
# Bytes of which some are characters together, and tokens that are text.
SINGLE = st.sampled_from([FIRST_BYTE + byte for byte in "€ é".encode() + b"\xff"])
TOKENS = st.lists(SINGLE | st.integers(0, FIRST_BYTE + 280))
any_kind = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=KINDS)
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Both:
    content = described(request.param)
    directory = write_tokenizer(tmp_path_factory.mktemp("pieces"), content)
    return load_tokenizer(directory), Backend.from_str(json.dumps(content))


def spells_none(text: str) -> bool:
    return not any(special in text for special in SPECIALS)


@given(text=TEXT.filter(spells_none))
@example(text=" he")
@any_kind
def test_texts_have_the_librarys_tokens(both: Both, text: str) -> None:
    ours, theirs = both
    assert ours.encode(text) == theirs.encode(text).ids


@given(text=HOSTILE)
@any_kind
def test_no_text_becomes_a_control_token(both: Both, text: str) -> None:
    ours, _ = both
    assert not ours.special_token_ids.intersection(ours.encode(text), ours.encode_inner(text))
    ids = ours.encode_chat([{"role": "user", "content": text}])
    assert [token for token in ids if token in ours.special_token_ids] == [BOS, USER, END]


@given(texts=st.lists(TEXT.filter(spells_none), min_size=1, max_size=3))
@example(texts=[" he", ""])
@example(texts=["\n\x1c he \t"])
@any_kind
def test_text_after_control_tokens_has_the_librarys_tokens(both: Both, texts: list[str]) -> None:
    ours, theirs = both
    rendered = "".join(["<s>", *(f"<|user|>{text}<|end|>\n" for text in texts)])
    messages = [{"role": "user", "content": text} for text in texts]
    assert ours.encode_chat(messages) == theirs.encode(rendered).ids


@given(ids=TOKENS, cuts=st.lists(st.integers(0, 40)))
@example(ids=[FIRST_BYTE + byte for byte in "€".encode()], cuts=[1, 2])
@example(ids=[FIRST_BYTE + byte for byte in "€".encode() + b"\xff"], cuts=[3])
@any_kind
def test_any_tokens_have_the_librarys_text_however_they_arrive(
    both: Both, ids: list[int], cuts: list[int]
) -> None:
    ours, theirs = both
    expected = theirs.decode(ids)
    assert ours.decode(ids) == expected
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special_tokens=False)
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    decoder = ours.text_decoder()
    text = "".join(decoder.push(ids[start:end]) for start, end in itertools.pairwise(edges))
    assert text + decoder.finish() == expected
    # After other text, nothing is left out.
    [before] = theirs.encode("{", add_special_tokens=False).ids[-1:]
    after = theirs.decode([before, *ids]).lstrip().removeprefix("{")
    assert ours.decode(ids, continues=True) == after


@given(text=TEXT)
@any_kind
def test_tokens_of_inner_text_have_its_bytes(both: Both, text: str) -> None:
    ours, _ = both
    ids = ours.encode_inner(text)
    assert b"".join(map(ours.token_bytes, ids)) == text.encode()
    assert ours.decode(ids, continues=True) == text


def test_spaces_before_texts(tmp_path: Path) -> None:
    said = {}
    for kind in KINDS:
        ours = load_tokenizer(write_tokenizer(tmp_path / kind, described(kind)))
        ids = ours.encode("he")
        said[kind] = (
            b"".join(map(ours.token_bytes, ids)),
            ours.decode(ids),
            ours.decode(ids, continues=True),
            ours.encode_chat([{"role": "user", "content": "he"}])[2] == ids[0],
        )
    assert said["gemma"] == (b"he", "he", "he", True)
    assert said["llama"] == said["always"] == (b" he", "he", " he", True)
    assert said["mistral"] == (b" he", "he", " he", False)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["decoder"]["decoders"].pop(1), "are supported"),
        (lambda content: content["decoder"]["decoders"].append(BYTE_LEVEL), "are supported"),
        (lambda content: content["decoder"]["decoders"][0].update(content="_"), "are supported"),
        (lambda content: content.update(decoder=None), "are supported"),
        (lambda content: content["model"].update(byte_fallback=False), "tokens for all bytes"),
        # The library panics.
        (lambda content: content["model"]["vocab"].pop("▁▁▁▁"), "cannot read"),
        (lambda content: content["model"]["vocab"].pop("<0xE2>"), "tokens for all bytes"),
        (lambda content: content["model"]["vocab"].pop("<0x41>"), "tokens for all bytes"),
        (
            lambda content: content["added_tokens"][1].update(content="he"),
            "can spell the control token 'he'",
        ),
    ],
)
def test_others_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    content = described("llama")
    change(content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write_tokenizer(tmp_path, content))


def test_a_character_may_stand_for_a_byte(tmp_path: Path) -> None:
    # Gemma's tab.
    content = described("gemma")
    del content["model"]["vocab"]["<0x09>"]
    ours = load_tokenizer(write_tokenizer(tmp_path, content))
    assert ours.decode(ours.encode("\the")) == "\the"
