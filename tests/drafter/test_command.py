"""The command line: light to import, one line on errors."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from tests.drafter.process import write_tiny_target

from blockdraft_drafter.command import add_arguments
from blockdraft_runtime.settings.drafter import DrafterSettings


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_defaults_are_those_of_the_settings() -> None:
    args, default = parse(), DrafterSettings()
    for field in DrafterSettings.__dataclass_fields__:
        assert getattr(args, field) == getattr(default, field)
    assert args.listen == "unix:/tmp/blockdraft-drafter.sock"


def test_help_needs_no_jax() -> None:
    code = (
        "import sys, argparse; from blockdraft_drafter.command import add_arguments;"
        "add_arguments(argparse.ArgumentParser());"
        "sys.exit(bool({'jax', 'flax', 'grpc', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "message", "exit_code"),
    [
        (("--target", "nowhere"), "'nowhere' is no directory", 1),
        (("--block-size", "1"), "block_size must be at least 2, got 1", 2),
        (("--drafter", "random:x"), "the seed must be a whole number", 1),
        (("--max-sequences", "0"), "max_sequences must be at least 1, got 0", 2),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, str], message: str, exit_code: int, tmp_path: Path
) -> None:
    # A process of its own: the command sets up logging, metrics and jax for the whole process.
    code = (
        "import sys, argparse; from blockdraft_drafter.command import add_arguments, run;"
        "parser = argparse.ArgumentParser(); add_arguments(parser);"
        "sys.exit(run(parser.parse_args()))"
    )
    target = write_tiny_target(tmp_path / "target")
    places = ("--listen", f"unix:{tmp_path}/s", "--compilation-cache", str(tmp_path / "xla"))
    command = [sys.executable, "-c", code, "--target", str(target), *places, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1
    assert lines[0].startswith("blockdraft drafter: ")
    assert message in lines[0]
