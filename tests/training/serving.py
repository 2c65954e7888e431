"""Speculative decoding of known completions with the drafter that serves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.app import load_method
from blockdraft_drafter.method import DraftMethod, DraftRow
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_training.corpus.rows import CorpusRow

SEQUENCES = 4


def serving_method(target: Path, drafter: Path, *, longest: int, rows: int) -> DraftMethod:
    """Load a drafter as its process does; `rows` features fit in a step."""
    return load_method(
        DrafterSettings(
            # Training features are raw, and nothing may be rounded in between.
            feature_form="raw",
            target=str(target),
            drafter=str(drafter),
            max_sequences=SEQUENCES,
            max_model_len=longest,
            max_feature_rows=rows,
            dtype="float32",
        )
    ).method


def decoded(
    method: DraftMethod, rows: Sequence[CorpusRow], features: Sequence[NDArray[np.generic]]
) -> list[int]:
    """Return the tokens gained by each verification of each completion, row by row.

    Args:
        method: The drafter.
        rows: What the target says.
        features: Of each row's tokens.
    """
    gained: list[int] = []
    for first in range(0, len(rows), SEQUENCES):
        some = range(first, min(first + SEQUENCES, len(rows)))
        walks = _walks(method, [rows[row] for row in some], [features[row] for row in some])
        gained += [gain for walk in walks for gain in walk]
    return gained


def _walks(
    method: DraftMethod, rows: Sequence[CorpusRow], features: Sequence[NDArray[np.generic]]
) -> list[list[int]]:
    """Decode up to `SEQUENCES` completions side by side, each in its slot."""
    drafted = method.spec.block_size - 1
    walks: list[list[int]] = [[] for _ in rows]
    anchors, sent = [0] * len(rows), [0] * len(rows)
    # Blocks that reach beyond the completion cannot be judged.
    while going := [s for s, row in enumerate(rows) if anchors[s] + drafted < len(row.response)]:
        steps = []
        for slot in going:
            position = len(rows[slot].prompt) + anchors[slot]
            new = np.asarray(features[slot][sent[slot] : position])
            anchor = rows[slot].response[anchors[slot]]
            known = tuple((*rows[slot].prompt, *rows[slot].response)[sent[slot] : position])
            steps.append(DraftRow(slot, sent[slot], new, anchor, drafted, known))
            sent[slot] = position
        for slot, draft in zip(going, method.step(steps), strict=True):
            wanted = rows[slot].response[anchors[slot] + 1 :]
            right = [a == b for a, b in zip(draft, wanted, strict=False)]
            walks[slot].append(1 + (right.index(False) if False in right else drafted))
            anchors[slot] += walks[slot][-1]
    return walks
