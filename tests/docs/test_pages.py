"""Pages link to what exists, and speak of no machine in particular."""

import hashlib
import re
import unicodedata
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, pages, read

from blockdraft_client.cli.main import main
from blockdraft_drafter.known import KNOWN_PAIRS, known_drafter

# Absolute paths a page may show: examples, defaults, and names of RPCs.
ALLOWED_PATHS = (
    "/path",
    "/models/",
    "/v1/",
    *("/health", "/version", "/metrics", "/tokenize", "/detokenize"),
    "/etc/blockdraft/",
    "/run/blockdraft",
    "/var/cache/blockdraft",
    "/tmp",
    "/blockdraft.v1.",
    "/reset",
    "/exit",
)
LINE_LENGTH = 120


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M):
        kept = (
            character
            for character in title.lower()
            if character in " -_" or unicodedata.category(character)[0] in "LN"
        )
        found.add("".join(kept).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_path_of_a_machine(page: Path) -> None:
    for path in re.findall(r"(?<![\w/.~…}\])<>*:-])/[a-z][\w./-]+", page.read_text("utf-8")):
        assert path.startswith(ALLOWED_PATHS), path


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_are_short(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    # A row of a table cannot be broken.
    assert [line for line in lines if len(line) > LINE_LENGTH and not line.startswith("|")] == []


def test_modules_exist() -> None:
    """A module is named from its source root on; `server/…/` is `server/blockdraft_server/`."""
    named = {
        name
        for page in pages()
        for name in re.findall(r"`([^`\s]+\.py|[a-z]+/…/[^`\s]*)`", page.read_text("utf-8"))
    }
    assert len(named) > 20
    for name in named:
        package = f"blockdraft_{name.partition('/')[0]}"
        assert (ROOT / name.replace("…", package)).exists(), name


def test_decisions_are_listed() -> None:
    index = read("docs/adr/README.md")
    names = sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
    # Grouped by subject and status, each once.
    assert sorted(re.findall(r"\((0[^)]+)\)", index)) == names


def test_shipped_drafters_are_those_that_are_named() -> None:
    told = re.findall(r"^\| (\S+) \|.*\| `([0-9a-f]{16})` \|$", read("docs/training.md"), re.M)
    folder = ROOT / "drafter/blockdraft_drafter/checkpoints"
    for name, digest in told:
        weights = folder / f"smollm2-135m-{name.lower().replace('-', '')}" / "model.safetensors"
        assert hashlib.sha256(weights.read_bytes()).hexdigest().startswith(digest)
    assert len(told) == len(list(folder.iterdir()))


def test_known_models_are_those_of_auto(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--known"]) == 0
    heading, rule, *rows = capsys.readouterr().out.splitlines()
    chosen = [
        row
        for pair, row in zip(KNOWN_PAIRS, rows, strict=True)
        if pair.drafter in (known_drafter(pair.target), "included")
    ]
    assert len(chosen) == len({pair.target for pair in KNOWN_PAIRS})
    assert "\n".join([heading, rule, *chosen]) in read("docs/models.md")
