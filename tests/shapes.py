"""Shapes and types of arrays, checked at each call of the modules that annotate shapes.

mypy knows no shapes, but checks all else: to check the other modules too took half of the suite's
time. A function within another is left out, because it would be wrapped anew at each call.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
from beartype import beartype

ROOT = Path(__file__).parents[1]


def modules() -> list[str]:
    """Return the product's modules that annotate shapes, by name."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
        for path in sorted(ROOT.glob("*/blockdraft_*/**/*.py"))
        if "from jaxtyping import" in path.read_text("utf-8")
    ]


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a check of its arguments, unless it is defined within another."""
    return function if "<locals>" in function.__qualname__ else beartype(function)


jaxtyping.install_import_hook(modules(), f"{__name__}.{checked.__name__}")
