"""Gathers the pages of the site and its configuration below build: docs/ and what lies beside it.

`make site` runs it, and then zensical, which refuses links that lead nowhere.
"""

import argparse
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
# A long name that begins the row of a table; it may break after each of its words.
NAME = re.compile(r"^\| `(\w{16,})` \|", re.M)
DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.M | re.S)


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

    def breakable(match: re.Match[str]) -> str:
        return f"| <code>{match[1].replace('_', '_<wbr>')}</code> |"

    return NAME.sub(breakable, LINK.sub(moved, page.read_text("utf-8"))), linked


def configuration(project: Mapping[str, Any]) -> str:
    """Return zensical's configuration, with name, version and repository of a pyproject.toml."""
    about = {
        "site_name": f"{project['name']} {project['version']}",
        "repo_url": project.get("urls", {}).get("Repository"),
    }
    lines = [f'{key} = "{value}"\n' for key, value in about.items() if value]
    text = (DOCS / "site.toml").read_text("utf-8")
    return text.replace("[project]\n", "[project]\n" + "".join(lines), 1)


def main() -> None:
    """Write the configuration, all pages and the files that they link to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mermaid", type=Path, help="script that draws diagrams")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where to write")
    args = parser.parse_args()
    pages = args.folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS / "figures", pages / "figures")
    shutil.copy(DOCS / "site.css", pages)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (args.folder / "zensical.toml").write_text(configuration(project), "utf-8")
    linked: set[Path] = set()
    for page in [*DOCS.rglob("*.md"), *map(ROOT.joinpath, BESIDE)]:
        text, more = gathered(page)
        linked |= more
        path = pages / place(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        text, diagrams = DIAGRAM.subn(r'<div class="diagram" markdown>\n\n\g<0>\n</div>\n', text)
        if args.mermaid and diagrams:
            # Where there is none, the theme would fetch one from elsewhere.
            shutil.copy(args.mermaid, pages / "mermaid.js")
            folder = "." if path.stem == "index" else place(page).with_suffix("")
            text += f'\n<script src="{os.path.relpath("mermaid.js", folder)}"></script>\n'
        path.write_text(text, "utf-8")
    for source in linked:
        path = pages / place(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)


if __name__ == "__main__":
    main()
