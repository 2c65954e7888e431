"""`blockdraft train corpus`, end to end on a tiny target."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny import IM_END
from tests.training.corpus.making import (
    lines,
    make,
    make_until,
    settings,
    silent,
    write_prompts,
)
from tests.training.talkative_target import write_talkative_target

from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_training import command
from blockdraft_training.corpus.maker import CorpusMaker
from blockdraft_training.corpus.prompts import read_prompts
from blockdraft_training.corpus.rows import manifest_path, read_corpus, read_manifest, read_rows
from blockdraft_training.errors import CorpusError
from blockdraft_training.settings import PromptFile

COUNT = 9
TEXTS = [f"Question {'x' * (index % 4)}{index}" for index in range(COUNT)]


@pytest.fixture(scope="module")
def whole(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus that one undisturbed run makes of the questions."""
    directory = tmp_path_factory.mktemp("whole")
    questions = write_prompts(directory / "questions.jsonl", TEXTS)
    make(target, directory / "whole.jsonl", questions)
    return directory / "whole.jsonl"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "questions.jsonl", TEXTS)


def test_prompts_become_rows(
    target: Path, tokenizer: Tokenizer, tmp_path: Path, questions: Path
) -> None:
    output = tmp_path / "corpus.jsonl"
    summary = make(target, output, questions, licences=("MIT",))
    checkpoint = load_checkpoint_config(target)
    vocab_size = checkpoint.config.vocab_size
    rows = read_corpus([output], vocab_size=vocab_size, fingerprint=checkpoint.fingerprint)
    assert sorted(row.id for row in rows) == [f"q/{index}" for index in range(COUNT)]
    for row in rows:
        text = TEXTS[int(row.id.removeprefix("q/"))]
        chat = tokenizer.encode_chat([{"role": "user", "content": text}])
        assert row.prompt == tuple(chat)
        assert len(row.response) == 24 or row.response[-1] == IM_END
        assert row.seed is not None
    assert {row.temperature for row in rows} == {0.0, 0.7}
    tokens = sum(len(row.response) for row in rows)
    assert (summary.rows, summary.new_rows, summary.response_tokens) == (COUNT, COUNT, tokens)
    assert summary.tokens_per_second > 0
    manifest = read_manifest(output)
    assert manifest is not None
    assert manifest.prompts == ({"source": "q", "licence": "MIT", "rows": COUNT},)
    assert (manifest.rows, manifest.response_tokens) == (COUNT, tokens)
    assert manifest.sampling["dtype"] == "float32"


def test_batch_size_and_order_make_no_difference(
    target: Path, tmp_path: Path, questions: Path, whole: Path
) -> None:
    turned = tmp_path / "turned.jsonl"
    turned.write_text("\n".join(reversed(questions.read_text().splitlines())) + "\n")
    make(target, tmp_path / "two.jsonl", turned, batch_size=2)
    assert lines(tmp_path / "two.jsonl") == lines(whole)


def test_resumes_to_the_same_rows(target: Path, tmp_path: Path, questions: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    make(target, whole, questions, self_chat=4)
    chosen = settings(target, broken, questions, self_chat=4)
    # The first failure is while prompts are made up, the second while answering.
    for rows in (3, 3):
        make_until(rows, chosen)
        with broken.open("a") as file:
            file.write('{"id": "q/8", "source": "q", "temp')
    summary = CorpusMaker(chosen, silent).make()
    assert summary.new_rows < summary.rows
    assert lines(broken) == lines(whole)
    assert manifest_path(broken).read_text() == manifest_path(whole).read_text()
    assert CorpusMaker(chosen, silent).make().new_rows == 0


def test_a_corpus_that_was_begun_otherwise_is_refused(
    target: Path, tmp_path: Path, questions: Path
) -> None:
    output = tmp_path / "corpus.jsonl"
    make(target, output, questions, limit=2)
    before = output.read_bytes()
    other_target = write_talkative_target(tmp_path / "other", seed=1)
    changed = write_prompts(tmp_path / "changed.jsonl", ["Something else", *TEXTS[1:]])
    cases: list[tuple[Path, Path, dict[str, Any], str]] = [
        (target, questions, {"seed": 1}, "was begun with seed 0, not 1"),
        (target, questions, {"temperature": 0.9}, "temperature 0.7, not 0.9"),
        (target, questions, {"max_tokens": 8}, "max_tokens 24, not 8"),
        (target, questions, {"dtype": "bfloat16"}, "dtype 'float32', not 'bfloat16'"),
        (target, questions, {"openings": ("Write",)}, "openings"),
        (other_target, questions, {}, "begun with target"),
        (target, questions, {"exclude": (questions,)}, "begun with excluded"),
        (target, changed, {}, "has another prompt under the id q/0"),
    ]
    for of, prompts, change, message in cases:
        with pytest.raises(CorpusError, match=message):
            make(of, output, prompts, **change)
        assert output.read_bytes() == before


def test_foreign_files_are_not_touched(target: Path, tmp_path: Path, questions: Path) -> None:
    output = tmp_path / "corpus.jsonl"
    output.write_text("precious\n")
    with pytest.raises(CorpusError, match=r"exists and has no manifest corpus\.manifest\.json"):
        make(target, output, questions)
    assert output.read_text() == "precious\n"
    (tmp_path / "new.self-chat.jsonl").touch()
    with pytest.raises(CorpusError, match="remove it"):
        make(target, tmp_path / "new.jsonl", questions)


def test_a_corpus_may_grow(target: Path, tmp_path: Path, questions: Path) -> None:
    output = tmp_path / "corpus.jsonl"
    assert make(target, output, questions, limit=2).rows == 2
    assert make(target, output, questions, limit=5, batch_size=2).new_rows == 3
    make(target, tmp_path / "at-once.jsonl", questions, limit=5)
    assert lines(output) == lines(tmp_path / "at-once.jsonl")


def test_dropped_prompts_are_counted(target: Path, tmp_path: Path, questions: Path) -> None:
    tests = write_prompts(tmp_path / "tests.jsonl", ["  QUESTION 0\n", TEXTS[5]])
    with questions.open("a") as file:
        for index, text in enumerate([TEXTS[1].upper(), "y" * 80, TEXTS[2]]):
            file.write(json.dumps({"id": f"more/{index}", "turns": [text]}) + "\n")
    output = tmp_path / "corpus.jsonl"
    summary = make(target, output, questions, exclude=(tests,))
    assert summary.dropped == {"excluded": 2, "duplicate": 2, "too_long": 1, "unusable": 0}
    assert {row.id for row in read_rows(output)} == {f"q/{i}" for i in range(COUNT)} - {
        "q/0",
        "q/5",
    }


def test_self_chat(target: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    output = tmp_path / "corpus.jsonl"
    summary = make(target, output, self_chat=8, openings=("Write", "Say"))
    made_up = list(read_prompts(PromptFile("", tmp_path / "corpus.self-chat.jsonl")))
    assert len(made_up) == 8
    usable = {prompt.id: prompt.text for prompt in made_up if prompt.text}
    assert 2 <= len(usable) == 8 - summary.dropped["unusable"] == summary.rows
    for row in read_rows(output):
        assert row.source == "self-chat"
        index = int(row.id.removeprefix("self-chat/"))
        assert usable[row.id].startswith(("Write", "Say")[index % 2])
        chat = [{"role": "user", "content": usable[row.id]}]
        assert row.prompt == tuple(tokenizer.encode_chat(chat))
    # Made-up prompts are no less kept apart from the test sets.
    tests = write_prompts(tmp_path / "tests.jsonl", list(usable.values()))
    again = make(
        target, tmp_path / "b.jsonl", self_chat=8, openings=("Write", "Say"), exclude=(tests,)
    )
    assert (again.rows, again.dropped["excluded"]) == (0, len(usable))


def parse(*arguments: str | Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["corpus", *map(str, arguments)])


def flags(target: Path, output: Path) -> list[str | Path]:
    return ["--target", target, "--output", output]


@pytest.mark.usefixtures("own_cache")
def test_command_prints_one_line(
    target: Path, tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*flags(target, tmp_path / "c.jsonl"), "--prompts", f"q={questions}"]
    arguments += ["--licence", "q=CC0", "--limit", "3", "--max-tokens", "8"]
    assert command.run(parse(*arguments)) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert "c.jsonl: 3 rows (3 new)," in line
    assert line.endswith("dropped: 0 excluded, 0 duplicate, 0 too_long, 0 unusable")
    assert command.run(parse(*arguments, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {
        *("rows", "new_rows", "response_tokens", "tokens_per_second", "dropped", "path")
    }
    assert (report["rows"], report["new_rows"]) == (3, 0)
    manifest = read_manifest(tmp_path / "c.jsonl")
    assert manifest is not None
    assert manifest.prompts[0]["licence"] == "CC0"


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--limit", "0", "--self-chat", "1"], "--limit must be at least 1, got 0", 2),
        ([], "give --prompts or --self-chat", 2),
        (["--self-chat", "1", "--temperature", "0"], "--temperature must be above 0, got 0", 2),
        (
            ["--self-chat", "1", "--greedy-share", "2"],
            "--greedy-share must be at least 0 and at most 1, got 2",
            2,
        ),
        (["--self-chat", "1", "--output", "x.gz"], "must be a .jsonl file", 2),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl does not exist", 2),
        (["--self-chat", "1", "--max-tokens", "9999"], "the target 512", 1),
        (["--self-chat", "1", "--max-prompt-tokens", "3"], "no space for more", 1),
        (["--self-chat", "1", "--target", "nowhere"], "'nowhere' is neither a directory", 2),
        (["--self-chat", "1", "--output", "no/such/folder.jsonl"], "No such file", 1),
    ],
)
def test_errors_are_one_line(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        found: object = command.run(parse(*flags(target, tmp_path / "c.jsonl"), *arguments))
    except SystemExit as ended:
        found = ended.code
    assert found == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("blockdraft train")
    assert message in line
