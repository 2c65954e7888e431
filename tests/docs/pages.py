"""Reading the project's Markdown: pages, code blocks, tables."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(sorted(ROOT.glob("*/blockdraft_*")))


def pages() -> list[Path]:
    """Return every Markdown file of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob(".github/*.md")])


def sources() -> list[Path]:
    """Return every Python file of the project's packages, but not the tests."""
    return sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def read(name: str) -> str:
    """Return a page's text, by path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """A fenced code block and the page it is on."""

    page: str
    language: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.language}-{self.number}"


def blocks(language: str) -> list[Block]:
    """Return the code blocks of one language on all pages."""
    return [
        Block(path.relative_to(ROOT).as_posix(), language, number, text)
        for path in pages()
        for number, text in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", path.read_text("utf-8"), re.M | re.S), start=1
        )
    ]


def section(text: str, title: str) -> str:
    """Return what is under a heading of the second level."""
    _, found, rest = text.partition(f"\n## {title}\n")
    assert found, f"no section {title!r}"
    return rest.split("\n## ", 1)[0]


def rows(text: str, width: int) -> list[list[str]]:
    """Return the cells of every table row with `width` columns, headings and rules left out."""
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    is_rule = [set("".join(cells)) <= set("-: ") for cells in table]
    return [
        cells
        for cells, rule, next_is_rule in zip(table, is_rule, [*is_rule[1:], False], strict=True)
        if len(cells) == width and not rule and not next_is_rule
    ]


def code(cell: str) -> list[str]:
    """Return what a cell has in backquotes."""
    return re.findall(r"`([^`]+)`", cell)
