"""The commands whose settings have one definition, and values for those settings."""

import argparse
import importlib
from typing import Any

from hypothesis import strategies as st

from blockdraft_bench.command import MEASUREMENTS
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.values import Setting
from blockdraft_training.command import SUBCOMMANDS

MODULES = (
    "blockdraft_server.command",
    "blockdraft_verifier.command",
    "blockdraft_drafter.command",
    "blockdraft_hosted.command",
    "blockdraft_server.supervise.command",
    "blockdraft_aot.command",
)
_DECLARED = [importlib.import_module(module).CONFIGURATION for module in MODULES]
_TRAINING = [each.configuration for each in SUBCOMMANDS.values() if each.configuration]
_BENCH = [each.configuration for each in MEASUREMENTS]
CONFIGURATIONS: dict[str, Configuration[Any]] = {
    configuration.command: configuration for configuration in (*_DECLARED, *_TRAINING, *_BENCH)
}


def parse(configuration: Configuration[Any], *flags: str) -> dict[str, Any]:
    """Return what a command line says, by destination."""
    parser = argparse.ArgumentParser(f"blockdraft {configuration.command}", exit_on_error=False)
    configuration.add_arguments(parser)
    return vars(parser.parse_args(flags))


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    """Return values that a setting may have."""
    if setting.many:
        items: st.SearchStrategy[Any] = st.lists(
            _items(setting), min_size=1, max_size=3, unique=True
        )
        return items.map(tuple)
    return _items(setting)


def _items(setting: Setting) -> st.SearchStrategy[Any]:
    declaration = setting.declaration
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.kind is bool:
        return st.booleans()
    if setting.kind is int:
        return st.integers(int(declaration.minimum or 0), int(declaration.maximum or 1 << 20))
    if setting.kind is float:
        least = declaration.minimum if declaration.above is None else declaration.above
        return st.floats(
            least or 0.0,
            declaration.maximum or 1e9,
            exclude_min=declaration.above is not None,
            width=32,
        )
    if setting.declaration.metavar == "HOST:PORT":
        return st.just("host:1")
    # Blanks, quotes, hyphens and equal signs are what command lines trip over.
    text = st.text("az09 -='\"$%#.:é", min_size=1)
    kind = setting.declaration.parse or setting.kind
    # Where unset is not the default, the word for it is no value; and argparse takes two hyphens
    # away from any flag, `--drafter=--` included.
    return text.filter(lambda each: each not in ("none", "--")).map(kind)
