"""Gathers the pages of the site below build/pages: docs/ and what lies beside it.

`make site` runs it, and then zensical, which refuses links that lead nowhere.
"""

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
DOCS = ROOT / "docs"
# Pages of the repository's first level, and their names on the site.
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
# The folder of other files that pages link to, such as the protos.
FILES = "files"

LINK = re.compile(r"(\]\()([^)\s#]+)([^)]*\))")


def place(path: Path) -> Path:
    """Return the path on the site of a file of the repository, from the first level on."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    name = path.relative_to(ROOT).as_posix()
    if name in BESIDE:
        return Path(BESIDE[name])
    # Elsewhere a page is a file to read as it is.
    return Path(FILES, f"{name}.txt" if path.is_file() else name)


def gathered(page: Path) -> tuple[str, set[Path]]:
    """Return a page with its links as they are on the site, and the other files they lead to."""
    linked = set()

    def moved(match: re.Match[str]) -> str:
        if "://" in match[2] or match[2].startswith("mailto:"):
            return match[0]
        target = (page.parent / match[2]).resolve()
        location = place(target)
        if location.parts[0] == FILES:
            linked.add(target)
        return match[1] + os.path.relpath(location, place(page).parent) + match[3]

    return LINK.sub(moved, page.read_text("utf-8")), linked


def main() -> None:
    """Write all pages and the files that they link to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS / "figures", PAGES / "figures")
    shutil.copy(DOCS / "site.css", PAGES)
    linked: set[Path] = set()
    for page in [*DOCS.rglob("*.md"), *map(ROOT.joinpath, BESIDE)]:
        text, more = gathered(page)
        linked |= more
        path = PAGES / place(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for source in linked:
        path = PAGES / place(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)


if __name__ == "__main__":
    main()
