"""`blockdraft bench`: measure."""

import argparse
import functools
import importlib
import sys
from dataclasses import dataclass
from typing import Any

from blockdraft_bench import report
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.serve.settings import LoadTestSettings
from blockdraft_bench.settings import (
    DecodeSettings,
    KFlatSettings,
    LinkSettings,
    PeersSettings,
    ProcessorSettings,
    SchemasSettings,
)
from blockdraft_models.errors import ModelError
from blockdraft_runtime.configuration.command import Configuration


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subcommand: a module with `measure(settings, run)`, imported when it is chosen."""

    path: str
    settings: type
    summary: str

    @property
    def name(self) -> str:
        """The subcommand's name, that of its module or package."""
        return self.path.partition(".")[0]

    @property
    def configuration(self) -> Configuration[Any]:
        """The configuration that reads its settings."""
        return Configuration(f"bench {self.name}", self.settings)


MEASUREMENTS = (
    Measurement("decode", DecodeSettings, "plain decoding and drafters, prompt by prompt"),
    Measurement("kflat.measure", KFlatSettings, "the cost of verifying K tokens"),
    Measurement("link.measure", LinkSettings, "what verifier to drafter and back costs"),
    Measurement("peers.measure", PeersSettings, "other programs on the same prompts and weights"),
    Measurement("processor", ProcessorSettings, "a row of the matrix of processors"),
    Measurement("schemas.measure", SchemasSettings, "JSON Schemas as constraints"),
    Measurement("serve.measure", LoadTestSettings, "a service under load"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    choices = parser.add_subparsers(metavar="WHAT", required=True)
    for measurement in MEASUREMENTS:
        child = choices.add_parser(measurement.name, help=measurement.summary, allow_abbrev=False)
        measurement.configuration.add_arguments(child)
        child.set_defaults(run_subcommand=functools.partial(_measure, measurement))
    child = choices.add_parser("report", help="one page of the results of all these")
    report.add_arguments(child)
    child.set_defaults(run_subcommand=report.run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    try:
        args.run_subcommand(args)
    except (BenchUsageError, ModelError) as error:
        print(f"blockdraft bench: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError, ValueError) as error:
        # The message says what is wrong with the input; a trace would hide it.
        print(f"blockdraft bench: {error}", file=sys.stderr)
        return 1
    return 0


def _measure(measurement: Measurement, args: argparse.Namespace) -> None:
    configuration = measurement.configuration
    settings = configuration.read(args)
    # Imported here: `--help` must not wait for jax.
    from blockdraft_bench.run import Run

    module = importlib.import_module(f"blockdraft_bench.{measurement.path}")
    with Run(measurement.name, configuration.flags(settings), settings.result) as run:
        result = module.measure(settings, run)
    run.publish(result)
