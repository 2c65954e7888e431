"""Text that arrives in pieces is wrapped as if it came at once."""

import re

from hypothesis import given
from hypothesis import strategies as st

from blockdraft_client.cli.wrapping import WordWrapper

TEXTS = st.text(alphabet="ab \n\t", max_size=60)


def wrapped(pieces: list[str], width: int) -> str:
    wrapper = WordWrapper(width)
    return "".join([*map(wrapper.push, pieces), wrapper.finish()])


@given(st.lists(TEXTS, max_size=8), st.integers(1, 20))
def test_pieces_do_not_matter_and_words_stay(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    lines = wrapped(pieces, width)
    assert lines == wrapped([text], width)
    assert lines.split() == text.split()
    # Lines are broken only where they would be too long, at white space.
    for line in lines.split("\n"):
        assert len(line.rstrip()) <= width or not re.search(r"\S\s+\S", line)


def test_a_line_is_broken_between_words() -> None:
    assert wrapped(["The sk", "y is blue", "\nand  wide"], 8) == "The sky\nis blue\nand\nwide"
    assert wrapped(["a  longerthan8 b"], 8) == "a\nlongerthan8\nb"


def test_words_are_held_back_until_they_end() -> None:
    wrapper = WordWrapper(8)
    assert [wrapper.push(piece) for piece in ("The s", "ky ", "is")] == ["The", " sky", ""]
    assert wrapper.finish() == "\nis"


def test_colors_take_no_place() -> None:
    red = "\x1b[31m"
    assert wrapped(["The sk", f"{red}y is{red} blue", f"\nand {red} wide"], 8) == (
        f"The sk{red}y\nis{red} blue\nand {red}\nwide"
    )
