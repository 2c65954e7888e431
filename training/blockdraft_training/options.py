"""Options and end of every command that trains a drafter."""

import argparse
import json
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockdraft_models.weights.default_target import default_cache_dir
from blockdraft_training.settings import TrainSettings

if TYPE_CHECKING:
    from blockdraft_training.methods.recipe import AnyRecipe


def add_train_arguments(parser: argparse.ArgumentParser, *, feature_layers: str) -> None:
    """Add the options that all methods share.

    Args:
        parser: Gets them.
        feature_layers: Which layers the method takes by default, in words.
    """
    option = parser.add_argument
    default = TrainSettings(corpus=(Path(),), output=Path())
    option("--corpus", type=Path, nargs="+", required=True, help="JSONL files of answers")
    option("--output", type=Path, required=True, help="directory of the run; resumes it if begun")
    option(
        "--target",
        default=default.target,
        help="directory, .gguf file, hub id or the default's name",
    )
    option("--init", default=default.init, help="target, random, or a drafter's directory")
    option(
        "--feature-layers",
        type=layer_ids,
        metavar="I,J,...",
        help=f"target layers whose outputs make a feature (default: {feature_layers})",
    )
    option("--block-size", type=int, default=default.block_size, help="tokens, anchor included")
    option("--steps", type=int, default=default.steps, help="optimizer steps")
    option("--batch-size", type=int, default=default.batch_size, help="sequences per step")
    option(
        "--blocks-per-sequence",
        type=int,
        default=default.blocks_per_sequence,
        help="random anchors per sequence and step",
    )
    option("--max-length", type=int, help="cut longer rows to this many tokens")
    option("--learning-rate", type=float, default=default.learning_rate, help="peak")
    option("--warmup-share", type=float, default=default.warmup_share, help="of the steps, linear")
    option("--weight-decay", type=float, default=default.weight_decay, help="of AdamW")
    option("--decay", type=float, help="γ of the position weights (default: as published)")
    option(
        "--distillation",
        type=float,
        default=default.distillation,
        help="share of the target's distribution in the labels",
    )
    option(
        "--hot-vocabulary",
        type=int,
        default=default.hot_vocabulary,
        help="the drafter proposes only the corpus' most frequent ids, so many; 0: any",
    )
    option("--validation-rows", type=int, default=default.validation_rows, help="rows held out")
    option(
        "--checkpoint-every",
        type=int,
        default=default.checkpoint_every,
        help="steps between checkpoints",
    )
    option("--report-every", type=int, default=default.report_every, help="steps between readings")
    option(
        "--online",
        action="store_true",
        help="compute features in each step (accelerators) instead of keeping them on disk",
    )
    option("--features", type=Path, help="directory of kept features (default: in --output)")
    option(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default=default.dtype,
        help="of activations; auto: bfloat16 but on CPU",
    )
    option("--seed", type=int, default=default.seed, help="of weights, batches and anchors")
    option("--json", action="store_true", help="print the result as JSON")


def layer_ids(text: str) -> tuple[int, ...]:
    """Read a list of layer ids.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layer ids") from error


def settings_given(args: argparse.Namespace, kind: type[TrainSettings]) -> dict[str, Any]:
    """Return the settings among the parsed options, lists as tuples."""
    given = {field.name: getattr(args, field.name) for field in fields(kind)}
    lists = ("corpus", "feature_layers", "copied_layers")
    return {**given, **{name: tuple(given[name] or ()) for name in lists if name in given}}


def train_and_export(recipe: "AnyRecipe", *, as_json: bool) -> None:
    """Train; the result goes to stdout, progress to stderr, the drafter to `OUTPUT/drafter`.

    Raises:
        TrainingError: If something about the run is wrong; see `train`.
    """
    import jax

    from blockdraft_training.export import export_drafter
    from blockdraft_training.loop.history import plot_history
    from blockdraft_training.loop.progress import progress_reporter
    from blockdraft_training.loop.run import train

    jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "xla"))
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
            "loss": trained.history[-1]["loss"] if trained.history else None,
            "acceptance_length": tau,
            "rows": trained.rows,
            "response_tokens": trained.response_tokens,
        }
        print(json.dumps(result))
    else:
        reached = f", held-out τ {tau:.2f}" if tau is not None else ""
        print(f"{drafter}: trained on {trained.rows} answers{reached}")
