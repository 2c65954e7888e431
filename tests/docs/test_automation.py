"""The workflow and the commit hooks run what `.ci/run` runs, by the same make targets."""

import re

from tests.docs.pages import read


def targets(text: str, before: str) -> set[str]:
    """Return the words of every line of `text` that names make targets after `before`."""
    return {
        word for found in re.findall(rf"{before}([a-z][a-z -]*)", text) for word in found.split()
    }


def test_the_workflow_leaves_nothing_out() -> None:
    required = targets(read(".ci/run"), "make ")
    assert {"lint", "types", "test"} <= required
    assert required <= targets(read(".github/workflows/ci.yml"), "target: ")


def test_commit_hooks_run_targets_of_the_makefile() -> None:
    hooks = targets(read(".pre-commit-config.yaml"), "entry: make ")
    assert hooks
    assert hooks <= set(re.findall(r"^([a-z-]+):", read("Makefile"), re.M))
