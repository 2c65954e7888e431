"""Whole samples, as a recorder leaves them."""

from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np
from tests.patience import PATIENCE_SECONDS

from blockdraft_drafter.learning.recorder import Recorder
from blockdraft_drafter.learning.samples import RAW, SampleFile, SampleStore, TrainingSample


def sample(seed: int = 0, tokens: int = 20, **changes: Any) -> TrainingSample:
    """Return a sample of noise; its features are 8 wide, or 4 if they are projected."""
    noise = np.random.default_rng(seed)
    width = 8 if changes.get("feature_form", RAW) == RAW else 4
    fields: dict[str, Any] = {
        "token_ids": noise.integers(0, 100, tokens).astype(np.int32),
        "features": noise.normal(size=(tokens, width)).astype(ml_dtypes.bfloat16),
        "target_fingerprint": "target",
        "feature_form": RAW,
        "layer_ids": (1, 2),
        "completion_start": 5,
    }
    return TrainingSample(**{**fields, **changes})


def closed(recorder: Recorder) -> None:
    """Write all that waits: a disk may be slower than a service that stops would wait for."""
    recorder.close()
    recorder._thread.join(PATIENCE_SECONDS)


class Kept(SampleStore):
    """A ring that whole samples are added to."""

    def add(self, added: TrainingSample) -> str:
        """Write a sample and return its name."""
        names = ("target_fingerprint", "feature_form", "layer_ids", "completion_start")
        about = {name: getattr(added, name) for name in (*names, "temperature", "recorded_at")}
        with closing(SampleFile(self)) as file:
            file.append(added.features)
            return file.finish(added.token_ids, **about)
