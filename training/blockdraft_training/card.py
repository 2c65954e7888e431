"""The model card of a drafter: what it is, how it was made, what it reached, its limits."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft_training.errors import TrainingError

CARD = "README.md"
_ACCEPTANCE = "## Acceptance\n"
_LIMITS = "## Limits\n"


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What a card says of a drafter.

    Attributes:
        method: The draft method's name.
        idea: A sentence on how it drafts.
        target: Name of the target.
        fingerprint: Of the target.
        weights: Number of weights.
        layers: Draft layers.
        drafted: Tokens drafted per block.
        feature_layers: Target layers whose outputs make a feature.
        rows: Answers trained on.
        response_tokens: Tokens of theirs.
        sources: Answers by source of the prompts.
        command: That made it.
        recipe: Settings by name.
        steps: Optimizer steps.
        loss: At the end, or None.
        held_out: τ on held-out answers by source, and of all under "all"; empty if none were.
    """

    method: str
    idea: str
    target: str
    fingerprint: str
    weights: int
    layers: int
    drafted: int
    feature_layers: tuple[int, ...]
    rows: int
    response_tokens: int
    sources: dict[str, int]
    command: str
    recipe: dict[str, Any]
    steps: int
    loss: float | None
    held_out: dict[str, float]


def model_card(facts: DrafterFacts) -> str:
    """Return the card in Markdown."""
    sources = ", ".join(f"{source} {count}" for source, count in sorted(facts.sources.items()))
    lines = [
        f"# {facts.method} drafter for {facts.target}",
        "",
        facts.idea,
        "It changes how fast the target answers, never what it answers.",
        "",
        "| | |",
        "|---|---|",
        f"| target | {facts.target}, fingerprint `{facts.fingerprint}` |",
        f"| weights | {facts.weights / 1e6:.1f} million, bfloat16 |",
        f"| draft layers | {facts.layers} |",
        f"| drafted per block | {facts.drafted} tokens |",
        f"| features | outputs of target layers {', '.join(map(str, facts.feature_layers))} |",
        "",
        "## Data",
        "",
        f"{facts.rows} answers of the target, {facts.response_tokens} tokens; prompts by source:"
        f" {sources}.",
        "",
        "## Recipe",
        "",
        f"    {facts.command}",
        "",
        *[f"- {name}: {_shown(value)}" for name, value in facts.recipe.items()],
        "",
        f"{facts.steps} steps" + ("." if facts.loss is None else f", last loss {facts.loss:.3f}."),
        "",
        _ACCEPTANCE,
        _held_out(facts.held_out),
        "",
        _LIMITS,
        "Made for this target alone: other weights of the same shape are refused by their",
        "fingerprint. Acceptance falls on prompts unlike the training data, at high temperature,",
        "and on contexts much longer than the training rows.",
        "",
    ]
    return "\n".join(lines)


def add_acceptance(drafter: Path, report: Path) -> None:
    """Put a report of `blockdraft bench acceptance` into a drafter's card.

    Raises:
        TrainingError: If there is no card, or the report is no such report.
    """
    path = drafter / CARD
    try:
        card = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"{drafter} has no model card: {error}") from error
    try:
        table = acceptance_table(json.loads(report.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{report} is no acceptance report: {error}") from error
    before, found, rest = card.partition(_ACCEPTANCE)
    held_out, limits_found, limits = rest.partition(_LIMITS)
    if not found or not limits_found:
        raise TrainingError(f"{path} has no section for the acceptance")
    # A table put there earlier is replaced; the held-out figures stay.
    held_out = held_out.partition("\n|")[0].strip()
    text = f"{before}{_ACCEPTANCE}\n{held_out}\n\n{table}\n\n{_LIMITS}{limits}"
    path.write_text(text, encoding="utf-8")


def acceptance_table(report: dict[str, Any]) -> str:
    """Return τ of each dataset and temperature of a report as a Markdown table."""
    lines = ["| dataset | temperature | τ | 95 % interval | answers |", "|---|---|---|---|---|"]
    for result in report["results"]:
        tau, interval = result["acceptance_length"], result["acceptance_length_ci95"]
        lines.append(
            f"| {result['dataset']} | {result['temperature']:g} |"
            f" {'-' if tau is None else f'{tau:.2f}'} |"
            f" {'-' if interval is None else '–'.join(f'{edge:.2f}' for edge in interval)} |"
            f" {result['samples']} |"
        )
    return "\n".join(lines)


def _held_out(acceptance: dict[str, float]) -> str:
    if not acceptance:
        return "No answers were held out."
    parts = ", ".join(f"{source} {tau:.2f}" for source, tau in acceptance.items())
    return f"τ on held-out answers, the target's own token included: {parts}."


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
