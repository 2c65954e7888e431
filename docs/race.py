"""Draw one answer twice, plainly decoded and drafted, as it arrived from a running service.

`python docs/race.py docs/figures/race.svg` asks the service on this machine, first plainly,
then drafted, and writes an animation in which each piece of text appears when it came.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from blockdraft import ChatMessage, Client, SpeculationParams

PROMPT = "A baker packs 24 muffins and 18 rolls into boxes of 6. How many boxes are there in all?"
MAX_TOKENS = 96
COLUMNS = 46
LINE_HEIGHT, CHARACTER_WIDTH, MARGIN, TOP = 20, 7.8, 16, 46
PAUSE_SECONDS = 3.0
"""Seconds for which both answers stay before they begin again."""


@dataclass(frozen=True, slots=True)
class Take:
    """An answer: when each piece of text came, in seconds from the first, and its tokens."""

    title: str
    pieces: tuple[tuple[float, str], ...]
    token_ids: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the first piece to the last."""
        return self.pieces[-1][0]

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, per second, as everywhere in the benchmarks."""
        return (len(self.token_ids) - 1) / self.seconds


def record(client: Client, title: str, *, drafted: bool) -> Take:
    """Let the service answer; return the pieces with their times, and the tokens."""
    pieces: list[tuple[float, str]] = []
    token_ids: list[int] = []
    options = SpeculationParams(disabled=not drafted)
    message = ChatMessage("user", PROMPT)
    with client.stream([message], max_tokens=MAX_TOKENS, speculation=options) as stream:
        for chunk in stream:
            pieces.append((time.perf_counter(), chunk.text))
            token_ids += chunk.token_ids
    began = pieces[0][0]
    return Take(title, tuple((at - began, text) for at, text in pieces), tuple(token_ids))


def placed(take: Take) -> list[tuple[float, int, int, str]]:
    """Return the time, line and column of each piece of the answer, wrapped between words."""
    answer = "".join(text for _, text in take.pieces)
    line_of, column_of = wrap(answer)
    parts: list[tuple[float, int, int, str]] = []
    position = 0
    for at, text in take.pieces:
        for character in text:
            line, column = line_of[position], column_of[position]
            position += 1
            if character == "\n":
                continue
            if parts and parts[-1][:2] == (at, line):
                parts[-1] = (*parts[-1][:3], parts[-1][3] + character)
            else:
                parts.append((at, line, column, character))
    return parts


def wrap(answer: str) -> tuple[list[int], list[int]]:
    """Return the line and the column of every character."""
    lines: list[int] = []
    columns: list[int] = []
    line = column = 0
    for position, character in enumerate(answer):
        word = answer[position:].split(maxsplit=1)[0] if character.isspace() else ""
        if character == "\n" or (character == " " and column + len(word) >= COLUMNS):
            lines.append(line)
            columns.append(column)
            line, column = line + 1, 0
            continue
        lines.append(line)
        columns.append(column)
        column += 1
    return lines, columns


def draw(takes: list[Take]) -> str:
    """Return the animation."""
    duration = max(take.seconds for take in takes) + PAUSE_SECONDS
    pane = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN
    height = TOP + LINE_HEIGHT * (2 + max(part[1] for take in takes for part in placed(take)))

    def shown(at: float) -> str:
        return (
            f'<animate attributeName="visibility" values="hidden;visible" '
            f'keyTimes="0;{at / duration:.4f}" dur="{duration:.2f}s" calcMode="discrete" '
            'repeatCount="indefinite"/>'
        )

    body = []
    for number, take in enumerate(takes):
        left = number * pane + MARGIN
        speed = f"{take.tokens_per_second:.0f} tokens/s"
        body.append(f'<text x="{left}" y="26" class="title">{escape(take.title)}</text>')
        body.append(
            f'<text x="{left + pane - 2 * MARGIN}" y="26" class="speed">{speed}'
            f"{shown(take.seconds)}</text>"
        )
        body += [
            f'<text x="{left + column * CHARACTER_WIDTH:.1f}" y="{TOP + 14 + line * LINE_HEIGHT}" '
            f'textLength="{len(text) * CHARACTER_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{escape(text)}{shown(at)}</text>'
            for at, line, column, text in placed(take)
        ]
    width = pane * len(takes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'role="img" aria-label="one answer, plain and drafted">\n'
        "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d7dde5}"
        ".title{font-weight:bold;fill:#fff}.speed{fill:#7ee787;text-anchor:end}</style>\n"
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#161b22"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def main() -> int:
    """Ask, compare, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--address", default="localhost")
    arguments = parser.parse_args()
    with Client(arguments.address) as client:
        for drafted in (False, True):  # Compiles, and reads the prompt into the prefix cache.
            record(client, "", drafted=drafted)
        takes = [
            record(client, "plain decoding", drafted=False),
            record(client, "blockdraft", drafted=True),
        ]
    if takes[0].token_ids != takes[1].token_ids:
        print("the answers differ", file=sys.stderr)
        return 1
    arguments.output.write_text(draw(takes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
