"""Making corpora of a tiny target."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blockdraft_training.corpus.maker import CorpusMaker, CorpusSummary
from blockdraft_training.settings import CorpusSettings, PromptFile


def write_prompts(path: Path, prompts: Sequence[str | tuple[str, ...]]) -> Path:
    """Write prompts, each one turn or several."""
    rows = (
        {"id": f"q/{index}", "turns": [turns] if isinstance(turns, str) else turns}
        for index, turns in enumerate(prompts)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(target: Path, output: Path, *questions: Path, **changes: Any) -> CorpusSettings:
    fields: dict[str, Any] = {
        "output": output,
        "target": str(target),
        "prompts": tuple(PromptFile("q", path) for path in questions),
        "greedy_share": 0.5,
        "max_tokens": 24,
        "max_prompt_tokens": 56,
        "batch_size": 4,
    }
    return CorpusSettings(**{**fields, **changes})


@contextmanager
def silent(title: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda tokens: None


def make(target: Path, output: Path, *questions: Path, **changes: Any) -> CorpusSummary:
    return CorpusMaker(settings(target, output, *questions, **changes), silent).make()


def make_until(rows: int, chosen: CorpusSettings) -> None:
    """Make a corpus, but fail after some rows."""

    @contextmanager
    def failing(title: str, total: int) -> Iterator[Callable[[int], None]]:
        left = iter(range(rows - 1))
        yield lambda tokens: None if next(left, None) is not None else pytest.fail("enough")

    with pytest.raises(pytest.fail.Exception):
        CorpusMaker(chosen, failing).make()


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())
