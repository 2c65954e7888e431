"""A trained drafter as others can use it: published tensor names, config.json, a model card."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from blockdraft_drafter.checkpoint import build, published_arrays, save_drafter
from blockdraft_training.errors import TrainingError
from blockdraft_training.run import TrainedDrafter
from blockdraft_training.settings import DFlashSettings


@dataclass(frozen=True, slots=True)
class MeasuredAcceptance:
    """One line of the card's table.

    Attributes:
        dataset: Its name.
        temperature: Of the answers.
        acceptance_length: τ.
        ci95: Its 95 % interval.
        samples: Prompts measured.
    """

    dataset: str
    temperature: float
    acceptance_length: float
    ci95: tuple[float, float]
    samples: int


def export_drafter(
    trained: TrainedDrafter, settings: DFlashSettings, directory: Path, command: str
) -> None:
    """Write the drafter in bfloat16 with its card; the directory is created if needed.

    Raises:
        TrainingError: If it cannot be written.
    """
    arrays = {
        name: array.astype(jnp.bfloat16) for name, array in published_arrays(trained.model).items()
    }
    model = build(trained.model.config, arrays, dtype=jnp.bfloat16)
    try:
        save_drafter(model, directory)
        card = model_card(trained, settings, command)
        (directory / "README.md").write_text(card, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"the drafter cannot be written to {directory}: {error}") from error


def model_card(trained: TrainedDrafter, settings: DFlashSettings, command: str) -> str:
    """Return the model card: what it is, how it was made, what it reached, its limits."""
    config = trained.model.config
    weights = sum(weight.size for weight in nnx.to_flat_state(nnx.state(trained.model)).leaves)
    last = trained.history[-1] if trained.history else None
    lines = [
        f"# DFlash drafter for {trained.target.config.name}",
        "",
        "Drafts a block of tokens in one pass from the target's hidden states (block diffusion,"
        " arXiv 2602.06036). It changes how fast the target answers, never what it answers.",
        "",
        "| | |",
        "|---|---|",
        f"| target | {trained.target.config.name}, fingerprint `{trained.target.fingerprint}` |",
        f"| weights | {weights / 1e6:.1f} million, bfloat16 |",
        f"| draft layers | {config.decoder.num_layers} |",
        f"| block size | {config.block_size} (anchor and {config.block_size - 1} drafted) |",
        f"| features | outputs of target layers {list(config.target_layer_ids)} |",
        f"| mask token | {config.mask_token_id} |",
        "",
        "## Data",
        "",
        f"{trained.rows} answers of the target, {trained.response_tokens} tokens; prompts by"
        " source: "
        + ", ".join(f"{source} {count}" for source, count in sorted(trained.sources.items()))
        + f". {settings.validation_rows} rows held out.",
        "",
        "## Recipe",
        "",
        f"    {command}",
        "",
        *[f"- {name}: {_shown(value)}" for name, value in settings.identity().items()],
    ]
    if last is not None:
        lines += ["", f"Last loss {last['loss']:.3f} after {last['step']} steps."]
    lines += ["", "## Acceptance", ""]
    if trained.acceptance is not None:
        by_source = ", ".join(
            f"{source} {value:.2f}" for source, value in trained.acceptance.by_source.items()
        )
        lines.append(
            f"On held-out greedy answers τ = {trained.acceptance.acceptance_length:.2f}"
            f" ({by_source}); τ counts the target's own token."
        )
    lines += [
        "Measure it on any prompts with `blockdraft bench acceptance`.",
        "",
        "## Limits",
        "",
        "Made for this target alone: other weights of the same shape are refused by their"
        " fingerprint. Acceptance falls on prompts unlike the training data, at high temperature,"
        " and on contexts much longer than the training rows.",
        "",
    ]
    return "\n".join(lines)


def acceptance_table(measured: list[MeasuredAcceptance]) -> str:
    """Return the τ of each dataset as a Markdown table."""
    rows = [
        f"| {m.dataset} | {m.temperature:g} | {m.acceptance_length:.2f} |"
        f" {m.ci95[0]:.2f}-{m.ci95[1]:.2f} | {m.samples} |"
        for m in measured
    ]
    head = ["| dataset | temperature | τ | 95 % | prompts |", "|---|---|---|---|---|"]
    return "\n".join(head + rows)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


__all__ = ["MeasuredAcceptance", "acceptance_table", "export_drafter", "model_card", "asdict"]
