import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blockdraft_models.tokenizer.text_decoder import StandInDecoder, Utf8Decoder
from blockdraft_server.completion import Detokenizer


def expected_text(data: bytes, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text and whether it was stopped, computed on the whole answer at once."""
    text = data.decode("utf-8", errors="replace")
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        return text, False
    end, negative_length = min(ends)
    return text[: end + negative_length], True


def byte_token(token_id: int) -> bytes:
    return bytes([token_id])


# Few distinct characters, so that stop sequences overlap themselves and each other.
TEXT_BYTES = st.lists(st.sampled_from([b"a", b"b", "é".encode(), "😀".encode(), b"\xff", b"\xf0"]))
STOPS = st.lists(st.text(st.sampled_from("abé😀�"), min_size=1, max_size=4), max_size=4)


@given(parts=TEXT_BYTES, cuts=st.lists(st.integers(0, 60)), stops=STOPS)
@example(parts=[b"a", b"a", b"b"], cuts=[1, 2], stops=["ab"])
@example(parts=["😀".encode()], cuts=[1, 2, 3], stops=["😀"])
def test_any_chunking_gives_the_text_of_the_whole(
    parts: list[bytes], cuts: list[int], stops: list[str]
) -> None:
    data = b"".join(parts)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    detokenizer = Detokenizer(Utf8Decoder(byte_token), stops)
    text = "".join(detokenizer.push(data[start:end]) for start, end in itertools.pairwise(edges))
    text += detokenizer.finish()
    assert (text, detokenizer.stopped) == expected_text(data, stops)
    singly = Detokenizer(Utf8Decoder(byte_token), stops)
    for token_id in data:
        singly.push([token_id])
    assert detokenizer.tokens == singly.tokens


@given(data=st.binary(max_size=64), size=st.integers(1, 5))
def test_invalid_bytes_become_replacement_characters(data: bytes, size: int) -> None:
    detokenizer = Detokenizer(Utf8Decoder(byte_token))
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    text = "".join(map(detokenizer.push, chunks)) + detokenizer.finish()
    assert text == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize(("min_tokens", "text"), [(0, ""), (1, ""), (2, "END"), (4, "ENDEND")])
def test_stop_sequences_wait_for_min_tokens(min_tokens: int, text: str) -> None:
    detokenizer = Detokenizer(
        Utf8Decoder(lambda token: b"END"[token : token + 2]), ["END"], min_tokens
    )
    tokens = [0, 2, 0, 2, 0, 2]
    assert detokenizer.push(tokens) + detokenizer.finish() == text


def test_text_is_released_as_soon_as_it_is_certain() -> None:
    detokenizer = Detokenizer(Utf8Decoder(byte_token), ["END"])
    assert detokenizer.push(b"abcE") == "abc"
    assert detokenizer.push(b"N") == ""
    assert detokenizer.push(b"N") == "ENN"
    assert detokenizer.push(b"xEND tail") == "x"
    assert detokenizer.stopped
    assert detokenizer.push(b"more") == ""
    assert detokenizer.finish() == ""


def test_a_character_split_over_tokens_appears_once_whole() -> None:
    first, *middle, last = "😀".encode()
    detokenizer = Detokenizer(Utf8Decoder(byte_token))
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(middle) == ""
    assert detokenizer.push([last]) == "😀"


def test_control_tokens_have_no_text() -> None:
    detokenizer = Detokenizer(
        Utf8Decoder(lambda token_id: b"" if token_id == 0 else byte_token(token_id))
    )
    assert detokenizer.push([97, 0, 98]) == "ab"


def test_of_two_stop_sequences_the_first_completed_one_ends_the_text() -> None:
    detokenizer = Detokenizer(Utf8Decoder(byte_token), ["abcd", "bc"])
    assert detokenizer.push(b"abcd") == "a"


@given(
    data=st.lists(st.integers(0, 255) | st.just(258), max_size=20),
    cuts=st.lists(st.integers(0, 20)),
)
def test_no_text_is_taken_for_a_control_token(data: list[int], cuts: list[int]) -> None:
    data += [*"\ufdd0".encode(), 258, *"\ufdd0é".encode()[:-1], 259]
    marks = {258: "\ufdd0", 259: "\ufdd1"}
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = StandInDecoder(Utf8Decoder(byte_token), marks)
    text = "".join(decoder.push(data[start:end]) for start, end in itertools.pairwise(edges))
    text += decoder.finish()
    assert text.endswith("\ufffd\ufdd0\ufffd\ufffd\ufdd1")
    assert text.count("\ufdd0") == data.count(258)
