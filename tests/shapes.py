"""Shapes and types of arrays, checked at each call of the packages that pyproject.toml names.

A function within another is left out: it would be wrapped anew at each call of the outer one, which
took a quarter of the suite's time.
"""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a check of its arguments, unless it is defined within another."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
