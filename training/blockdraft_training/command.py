"""`blockdraft train`: make corpora and drafters."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockdraft_models.errors import ModelError
from blockdraft_runtime.configuration.command import Configuration
from blockdraft_training.errors import CorpusError, TrainingError
from blockdraft_training.settings import CorpusSettings, DFlashSettings, TrainSettings

if TYPE_CHECKING:
    from blockdraft_training.methods.recipe import AnyRecipe

# Heavy modules are imported where they are used: `--help` must not wait for jax.


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command of a command."""

    summary: str
    run: Callable[[argparse.Namespace], int]
    configuration: Configuration[Any] | None = None
    # Adds the arguments that are no settings.
    add_more: Callable[[argparse.ArgumentParser], None] | None = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add all arguments."""
        if self.configuration is not None:
            self.configuration.add_arguments(parser)
        if self.add_more is not None:
            self.add_more(parser)


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Mapping[str, Subcommand]) -> None:
    """Add subcommands to a command's parser."""
    choices = parser.add_subparsers(metavar="WHAT", required=True)
    for name, subcommand in subcommands.items():
        child = choices.add_parser(name, help=subcommand.summary, allow_abbrev=False)
        subcommand.add_arguments(child)
        child.set_defaults(run_subcommand=subcommand.run)


def run_subcommand(command: str, args: argparse.Namespace) -> int:
    """Run the chosen subcommand; return 2 if a file or model cannot be used, else 0 or 1."""
    try:
        code: int = args.run_subcommand(args)
    except (TrainingError, ModelError, OSError, RuntimeError, ValueError) as error:
        # The message says what is wrong with the input; a trace would hide it.
        print(f"blockdraft {command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, CorpusError | ModelError) else 1
    return code


def _make_corpus(args: argparse.Namespace) -> int:
    settings = _CORPUS.read(args)
    from blockdraft_models.executables import keep_executables, require_devices
    from blockdraft_training.corpus.maker import CorpusMaker

    keep_executables()
    require_devices()
    summary = CorpusMaker(settings).make()
    if args.json:
        print(json.dumps(summary.to_json(), ensure_ascii=False))
        return 0
    dropped = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
    print(
        f"{summary.path}: {summary.rows} rows ({summary.new_rows} new),"
        f" {summary.response_tokens} tokens, {summary.tokens_per_second:.0f} tokens/s;"
        f" dropped: {dropped}"
    )
    return 0


def _train_dflash(args: argparse.Namespace) -> int:
    settings = _DFLASH.read(args)
    from blockdraft_training.methods.dflash import DFlashRecipe

    return _train(DFlashRecipe(settings), as_json=args.json)


def _train_eagle3(args: argparse.Namespace) -> int:
    settings = _EAGLE3.read(args)
    from blockdraft_training.methods.eagle3 import Eagle3Recipe

    return _train(Eagle3Recipe(settings), as_json=args.json)


def _train(recipe: "AnyRecipe", *, as_json: bool) -> int:
    """Train; the result goes to stdout, progress to stderr, the drafter to `OUTPUT/drafter`."""
    from blockdraft_models.executables import keep_executables, require_devices
    from blockdraft_training.export import export_drafter
    from blockdraft_training.loop.records import plot_history, progress_reporter
    from blockdraft_training.loop.run import train

    keep_executables()
    require_devices()
    settings = recipe.settings
    with progress_reporter() as report:
        trained = train(recipe, report)
    drafter = settings.output / "drafter"
    export_drafter(trained, recipe, drafter, shlex.join(["blockdraft", *sys.argv[1:]]))
    plot_history(trained.history, settings.output / "history.png")
    tau = trained.acceptance.acceptance_length if trained.acceptance is not None else None
    if as_json:
        result = {
            "drafter": str(drafter),
            "steps": settings.steps,
            "loss": trained.loss,
            "acceptance_length": tau,
            "rows": trained.rows,
            "response_tokens": trained.response_tokens,
        }
        print(json.dumps(result))
    else:
        reached = f", held-out τ {tau:.2f}" if tau is not None else ""
        print(f"{drafter}: trained on {trained.rows} completions{reached}")
    return 0


def _add_card_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("drafter", type=Path, help="directory of an exported drafter")
    parser.add_argument(
        "--acceptance", type=Path, required=True, help="decode.json of `bench decode`"
    )


def _edit_card(args: argparse.Namespace) -> int:
    from blockdraft_training.export import add_acceptance

    print(add_acceptance(args.drafter, args.acceptance))
    return 0


_CORPUS = Configuration("train corpus", CorpusSettings)
_DFLASH = Configuration("train dflash", DFlashSettings)
_EAGLE3 = Configuration("train eagle3", TrainSettings)

SUBCOMMANDS = {
    "corpus": Subcommand(
        "let the target answer prompts: training data", _make_corpus, _CORPUS, add_json
    ),
    "dflash": Subcommand("train a DFlash drafter", _train_dflash, _DFLASH, add_json),
    "eagle3": Subcommand("train an EAGLE-3 drafter", _train_eagle3, _EAGLE3, add_json),
    "card": Subcommand(
        "put measured acceptance into a drafter's card", _edit_card, add_more=_add_card_arguments
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    return run_subcommand("train", args)
