"""What docs/site.py makes of the pages, before zensical builds the site of them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, read


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "mermaid-1.js").write_text("script")
    gather: list[str | Path] = [
        ROOT / "docs" / "site.py",
        "--mermaid",
        folder / "mermaid-1.js",
        "--folder",
        folder,
    ]
    subprocess.run([sys.executable, *gather], check=True)
    return folder


def test_the_site_has_the_version_and_the_repository_of_the_project(gathered: Path) -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    site = tomllib.loads((gathered / "zensical.toml").read_text("utf-8"))["project"]
    assert site["site_name"] == f"blockdraft {project['version']}"
    assert site.get("repo_url") == project.get("urls", {}).get("Repository")


@pytest.mark.parametrize(
    ("page", "script"),
    [("index", "mermaid.js"), ("architecture", "../mermaid.js"), ("quickstart", None)],
)
def test_pages_with_diagrams_bring_what_draws_them(
    page: str, script: str | None, gathered: Path
) -> None:
    text = (gathered / "pages" / f"{page}.md").read_text("utf-8")
    assert ('<div class="diagram" markdown>' in text) == (script is not None)
    assert (f'<script src="{script}"></script>' in text) == (script is not None)
    assert (gathered / "pages" / "mermaid.js").read_text() == "script"


def test_long_names_break_between_their_words(gathered: Path) -> None:
    text = (gathered / "pages" / "metrics.md").read_text("utf-8")
    assert "| <code>blockdraft_<wbr>verifier_<wbr>slots</code> |" in text
