"""A trained drafter as others can use it: published tensor names, config.json, a model card."""

import json
from pathlib import Path
from typing import Any

from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.held_out import Acceptance
from blockdraft_training.loop.run import TrainedDrafter
from blockdraft_training.methods.recipe import AnyRecipe

CARD = "README.md"
_ACCEPTANCE = "## Acceptance\n"
_LIMITS = "## Limits\n"


def export_drafter(
    trained: TrainedDrafter, recipe: AnyRecipe, directory: Path, command: str
) -> None:
    """Write the drafter in bfloat16 with its card, which names the command line."""
    try:
        recipe.save(trained.model, directory, trained.draft_ids)
        card = model_card(trained, recipe, command)
        (directory / CARD).write_text(card, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"the drafter cannot be written to {directory}: {error}") from error


def model_card(trained: TrainedDrafter, recipe: AnyRecipe, command: str) -> str:
    """Return the model card in Markdown: method, data, recipe, acceptance and limits."""
    config, target = trained.model.config, trained.target
    layers = ", ".join(map(str, config.target_layer_ids))
    sources = ", ".join(f"{source} {count}" for source, count in sorted(trained.sources.items()))
    last = "" if trained.loss is None else f", last loss {trained.loss:.3f}"
    settings = "\n".join(
        f"- {name}: {_shown(value)}" for name, value in recipe.settings.identity().items()
    )
    return f"""\
# {recipe.method.title} drafter for {target.config.name}

{recipe.idea}
It changes how fast the target answers, never what it answers.

| | |
|---|---|
| target | {target.config.name}, fingerprint `{target.fingerprint}` |
| weights | {trained.weight_count / 1e6:.1f} million, bfloat16 |
| draft layers | {config.decoder.num_layers} |
| drafted per block | {config.block_size - 1} tokens |
| features | outputs of target layers {layers} |

## Data

{trained.rows} completions of the target, {trained.response_tokens} tokens; prompts by
source: {sources}.

## Recipe

    {command}

{settings}

{recipe.settings.steps} steps{last}.

{_ACCEPTANCE}
{_held_out(trained.acceptance)}

{_LIMITS}
Made for this target alone: other weights of the same shape are refused by their
fingerprint. Acceptance falls on prompts unlike the training data, at high temperature,
and on contexts much longer than the training rows.
"""


def add_acceptance(drafter: Path, report: Path) -> Path:
    """Put a report of `blockdraft bench decode` into a drafter's card; return its path."""
    path = drafter / CARD
    try:
        card = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"{drafter} has no model card: {error}") from error
    try:
        table = acceptance_table(json.loads(report.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{report} is no acceptance report: {error}") from error
    before, heading, rest = card.partition(_ACCEPTANCE)
    held_out, limits_heading, limits = rest.partition(_LIMITS)
    if not heading or not limits_heading:
        raise TrainingError(f"{path} has no section for the acceptance")
    # A table put there earlier is replaced; the held-out figures stay.
    held_out = held_out.partition("\n|")[0].strip()
    text = f"{before}{_ACCEPTANCE}\n{held_out}\n\n{table}\n\n{_LIMITS}{limits}"
    path.write_text(text, encoding="utf-8")
    return path


def acceptance_table(report: dict[str, Any]) -> str:
    """Return τ of each dataset and temperature, with drafts, as a Markdown table."""
    lines = ["| dataset | temperature | τ | 95 % interval | completions |", "|---|---|---|---|---|"]
    drafted = [result for result in report["results"] if result["method"] != "plain"]
    if (count := len({result["method"] for result in drafted})) != 1:
        raise ValueError(f"it is of {count} drafters")
    for result in drafted:
        tau, interval = result["acceptance_length"], result["acceptance_length_ci95"]
        lines.append(
            f"| {result['dataset']} | {result['temperature']:g} |"
            f" {'-' if tau is None else f'{tau:.2f}'} |"
            f" {'-' if interval is None else '–'.join(f'{edge:.2f}' for edge in interval)} |"
            f" {result['samples']} |"
        )
    return "\n".join(lines)


def _held_out(acceptance: Acceptance | None) -> str:
    if acceptance is None:
        return "No completions were held out."
    every = {**acceptance.by_source, "all": acceptance.acceptance_length}
    parts = ", ".join(f"{source} {tau:.2f}" for source, tau in every.items())
    return f"τ on held-out completions, the target's own token included: {parts}."


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
