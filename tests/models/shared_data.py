"""Recorded data beside the repository; tests that need it skip where it is absent."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("BLOCKDRAFT_SHARED", _ROOT.parent / "shared"))


def read_rows(relative: str) -> list[dict[str, Any]]:
    """Reads a `.jsonl.gz` file of the shared data, or skips the test."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs {relative} in BLOCKDRAFT_SHARED")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def corpus_rows() -> list[dict[str, Any]]:
    """Recorded responses of the default target: `source`, `temperature`, `prompt`, `response`."""
    return read_rows("corpus/smollm2-135m.jsonl.gz")


def gsm8k_questions() -> list[str]:
    """Questions of the GSM8K training set."""
    return [row["turns"][0] for row in read_rows("datasets/train-gsm8k.jsonl.gz")]
