"""The picture and the walk that docs/architecture.md opens with are those of the code."""

import ast
import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks, read, section

PICTURE = next(block.text for block in blocks("mermaid") if "architecture" in block.page)
BOXES = dict(re.findall(r'(\w+)\["([\w/]+)"\]', PICTURE))
ARROWS = re.findall(r"^ *(\w+) --> (\w+)$", PICTURE, re.M)
WALK = re.findall(
    r"^\d+\. `([\w/…]+\.py)` `([\w.]+)`", section(read("docs/architecture.md"), "One request"), re.M
)


def folder(box: str) -> Path:
    top, *rest = BOXES[box].split("/")
    return ROOT.joinpath(top, f"blockdraft_{top}", *rest)


def imported(box: str) -> set[str]:
    """Return the modules that those of a folder import."""
    names = set()
    for path in folder(box).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return names


def test_boxes_are_folders() -> None:
    assert len(BOXES) > 10
    assert [name for box, name in BOXES.items() if not folder(box).is_dir()] == []


@pytest.mark.parametrize(("user", "used"), ARROWS)
def test_arrows_are_imports(user: str, used: str) -> None:
    module = ".".join(folder(used).relative_to(ROOT / BOXES[used].split("/")[0]).parts)
    assert any(f"{name}.".startswith(f"{module}.") for name in imported(user))


def test_the_walk_is_of_functions_that_exist() -> None:
    assert 8 <= len(WALK) <= 12
    for module, function in WALK:
        top, rest = module.split("/…/")
        tree: ast.AST = ast.parse((ROOT / top / f"blockdraft_{top}" / rest).read_text())
        for name in function.split("."):
            tree = next(
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == name
            )
