"""The draft methods there are. Another one needs a folder like `dflash` and a line here."""

from collections.abc import Mapping
from typing import Any

from blockdraft_drafter.compiled.definition import MethodDefinition
from blockdraft_drafter.config import DraftConfig
from blockdraft_drafter.dflash.definition import DFLASH
from blockdraft_drafter.eagle3.definition import EAGLE3

METHODS: tuple[MethodDefinition[Any, Any], ...] = (EAGLE3, DFLASH)
"""The first that recognizes a checkpoint has it; DFlash takes what is left."""

DEFAULT: MethodDefinition[Any, Any] = DFLASH
"""What a random drafter is that is not asked for by the name of a method."""

FASTEST_FIRST: tuple[MethodDefinition[Any, Any], ...] = (EAGLE3, DFLASH)
"""Of several drafters that ship for a target, the order in which they are preferred
(docs/adr/0038-the-fastest-drafter-first.md)."""


def published_method(config: Mapping[str, Any]) -> MethodDefinition[Any, Any]:
    """Return the method of a drafter's parsed `config.json`.

    Raises:
        ValueError: If a part of the configuration is not what it should be.
    """
    return next(method for method in METHODS if method.recognizes(config))


def method_of(config: DraftConfig) -> MethodDefinition[Any, Any]:
    """Return the method whose drafters have this type of configuration."""
    return next(method for method in METHODS if isinstance(config, method.config_type))
