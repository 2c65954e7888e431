"""Copies of test prompts are found, and the data kept beside the repository has none."""

import json
from pathlib import Path

import pytest
from tests.models.shared_data import SHARED, corpus_rows, gsm8k_questions

from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.corpus.prompts import ExcludedTexts, normalized, read_excluded
from blockdraft_training.errors import CorpusError

# In ChatML: what the user says, between the role and the end of the turn.
USER, TURN_END = "<|im_start|>user\n", "<|im_end|>"


QUESTION = "If Ann has two apples and eats one of them, how many are left?"
SUFFIX = "\nPlease reason step by step."


@pytest.mark.parametrize(
    "text",
    [
        QUESTION,
        QUESTION.upper().replace(" ", " \n"),
        f"{QUESTION}{SUFFIX}",
        f"Dear model, {QUESTION.lower()} Thank you.",
        "two apples and eats one of them, how many are left?",
        "Hi there",
    ],
)
def test_copies_are_found(text: str) -> None:
    assert text in ExcludedTexts(["Another test.", QUESTION, "hi there"])
    assert text in ExcludedTexts([f"Solve: {QUESTION} {SUFFIX}", "Hi  there", QUESTION[3:-10]])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hi there, how are you?",
        "how many are left?",
        QUESTION.replace("two", "three"),
        "If Bob has two apples and eats one of them, how many did he eat?",
    ],
)
def test_phrases_are_no_copies(text: str) -> None:
    assert text not in ExcludedTexts([QUESTION + SUFFIX, "hi there"])
    assert text not in ExcludedTexts([])


def test_every_turn_counts(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"id": "t", "turns": ["Hello.", "And then?"]}) + "\n")
    excluded = read_excluded([path])
    assert len(excluded) == 2
    assert "and  then?" in excluded
    assert excluded.digest == ExcludedTexts(["AND THEN?", "hello."]).digest
    assert excluded.digest != ExcludedTexts(["Hello."]).digest
    with pytest.raises(CorpusError, match="name="):
        read_excluded([Path(f"name={path}")])
    path.write_text("")
    with pytest.raises(CorpusError, match="excludes nothing"):
        read_excluded([path])


@pytest.fixture(scope="module")
def test_sets() -> ExcludedTexts:
    paths: list[Path] = sorted((SHARED / "datasets").glob("*.jsonl"))
    if not paths:
        pytest.skip("needs datasets/*.jsonl in BLOCKDRAFT_SHARED")
    excluded = read_excluded(paths)
    # Whatever reads them, none may be lost on the way: every turn of every line is there.
    lines = [line for path in paths for line in path.read_text("utf-8").splitlines()]
    turns = [turn for line in lines for turn in json.loads(line)["turns"]]
    assert excluded.texts == {normalized(turn) for turn in turns}
    return excluded


def test_training_questions(test_sets: ExcludedTexts) -> None:
    questions = gsm8k_questions()
    assert questions
    assert [question for question in questions if question in test_sets] == []


@pytest.mark.smollm2
def test_recorded_corpus(test_sets: ExcludedTexts) -> None:
    tokenizer = load_tokenizer(resolve_target("smollm2-135m"))
    prompts = []
    for row in corpus_rows():
        conversation = tokenizer.decode(row["prompt"], skip_special=False)
        _, found, said = conversation.partition(USER)
        assert found
        prompts.append(said.partition(TURN_END)[0])
    assert prompts
    assert [prompt for prompt in prompts if prompt in test_sets] == []
