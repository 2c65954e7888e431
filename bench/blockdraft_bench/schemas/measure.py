"""All schemas of a sample in turn: compiled, followed and asked for; a row for each family."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from blockdraft_bench.datasets import choose_samples
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.result import Cell, Result, ResultRow, number, page, share, table
from blockdraft_bench.run import Run
from blockdraft_bench.schemas.grammar import (
    GrammarRefusedError,
    compiled,
    grammar_text,
    tokenizer_of,
)
from blockdraft_bench.schemas.random_answers import RandomAnswers, SchemaAnswer
from blockdraft_bench.schemas.sample import SCHEMAS, Example, read_examples
from blockdraft_bench.schemas.served import served_answers
from blockdraft_bench.schemas.validity import accepts, verdict
from blockdraft_bench.settings import SchemasSettings
from blockdraft_bench.statistics import percentiles
from blockdraft_client.client import Client

ALL = "all"
# The reasons that most schemas are refused for; the rest is a long tail.
MOST_REASONS = 12


@dataclass
class FamilyOutcome:
    """The outcome of the schemas of a family; times in seconds."""

    schemas: int = 0
    compiling: list[float] = field(default_factory=list)  # with the first mask, refused ones too
    refused: Counter[str] = field(default_factory=Counter)  # how many, by the reason
    masks: list[float] = field(default_factory=list)
    drafts: list[float] = field(default_factory=list)  # all masks of a draft at once
    answers: int = 0
    tokens: int = 0
    forced: int = 0  # of them, those that left no choice
    verdicts: Counter[str] = field(default_factory=Counter)  # of the answers that ended
    invalid: list[tuple[str, str]] = field(default_factory=list)  # answers, with their schemas
    # Values that the schemas' origin says are valid, or invalid, and how many the grammars allow.
    right: list[bool] = field(default_factory=list)
    wrong: list[bool] = field(default_factory=list)

    def add_answer(self, example: Example, answer: SchemaAnswer) -> None:
        """Count an answer, and judge it if it came to its end."""
        self.answers += 1
        self.tokens += answer.tokens
        self.forced += answer.forced_tokens
        if answer.ended:
            judged = verdict(example.schema, answer.text)
            self.verdicts[judged] += 1
            if judged == "invalid":
                self.invalid.append((f"{example.family}/{example.name}", answer.text))

    def add_values(self, example: Example, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        """Count which values of an example a grammar allows."""
        self.right += [accepts(matcher, tokenizer, value) for value in example.valid]
        self.wrong += [accepts(matcher, tokenizer, value) for value in example.invalid]


def measure(settings: SchemasSettings, run: Run) -> Result:
    """Go through the sample, by random tokens or with a service."""
    examples = chosen(settings)
    by_family: dict[str, FamilyOutcome] = {}
    for example in examples:
        by_family.setdefault(example.family, FamilyOutcome()).schemas += 1
    if settings.address is not None:
        _ask(settings, examples, by_family, run)
    else:
        _follow(settings, examples, by_family, run)
    total = _together(by_family.values())
    rows = [row_of(family, outcome) for family, outcome in {**by_family, ALL: total}.items()]
    facts = {
        "refused": dict(total.refused.most_common(MOST_REASONS)),
        "invalid": total.invalid,
    }
    return Result(facts, rows, page(_caption(settings), *tables(rows), _reasons(facts)), None)


def chosen(settings: SchemasSettings) -> list[Example]:
    """Return the examples that are measured, spread evenly over each family."""
    examples: dict[str, list[Example]] = {}
    for example in read_examples(settings.schemas or SCHEMAS):
        examples.setdefault(example.family, []).append(example)
    if unknown := set(settings.family) - set(examples):
        names = ", ".join(examples)
        raise BenchUsageError(f"--family must be of {names}, got {', '.join(sorted(unknown))}")
    families = settings.family or tuple(examples)
    return [
        example
        for name in families
        for example in choose_samples(examples[name], settings.samples, settings.seed)
    ]


def _follow(
    settings: SchemasSettings,
    examples: Sequence[Example],
    by_family: Mapping[str, FamilyOutcome],
    run: Run,
) -> None:
    tokenizer = tokenizer_of(settings.target)
    answers = RandomAnswers(tokenizer, settings.max_tokens, settings.draft_length, settings.seed)
    phase = run.phase("following schemas", len(examples))
    for example in examples:
        outcome = by_family[example.family]
        began = time.perf_counter()
        try:
            matcher = compiled(grammar_text(example.schema), tokenizer)
        except GrammarRefusedError as error:
            outcome.refused[str(error)] += 1
            continue
        finally:
            outcome.compiling.append(time.perf_counter() - began)
            phase.advance()
        outcome.add_values(example, matcher, tokenizer)
        for _ in range(settings.answers):
            answer, times = answers(matcher)
            outcome.masks += times.single
            outcome.drafts += times.drafts
            outcome.add_answer(example, answer)


def _ask(
    settings: SchemasSettings,
    examples: Sequence[Example],
    by_family: Mapping[str, FamilyOutcome],
    run: Run,
) -> None:
    assert settings.address is not None
    phase = run.phase("asking", len(examples))
    with Client(settings.address, timeout=settings.timeout_seconds) as client:
        answers = served_answers(
            client,
            examples,
            constrained=not settings.unconstrained,
            max_tokens=settings.max_tokens,
            max_prompt_characters=settings.max_prompt_characters,
            concurrency=settings.concurrency,
        )
        for example, answer in zip(examples, answers, strict=True):
            if isinstance(answer, str):
                by_family[example.family].refused[answer] += 1
            else:
                by_family[example.family].add_answer(example, answer)
            phase.advance()


def _together(families: Iterable[FamilyOutcome]) -> FamilyOutcome:
    """Return the sum of the outcomes of all families."""
    total = FamilyOutcome()
    for outcome in families:
        for name in FamilyOutcome.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(outcome, name))
    return total


def row_of(family: str, outcome: FamilyOutcome) -> ResultRow:
    """Sum a family up; shares of nothing and times of nothing are None."""
    ended = sum(outcome.verdicts.values())
    judged = ended - outcome.verdicts["unknown"]
    refused = sum(outcome.refused.values())
    return {
        "family": family,
        "schemas": outcome.schemas,
        "compiled": _ratio(outcome.schemas - refused, outcome.schemas),
        **_times("compile_ms", outcome.compiling, 1e3),
        **_times("mask_us", outcome.masks, 1e6),
        **_times("draft_ms", outcome.drafts, 1e3),
        "answers": outcome.answers,
        "tokens": outcome.tokens,
        "forced": _ratio(outcome.forced, outcome.tokens),
        "ended": _ratio(ended, outcome.answers),
        "valid": _ratio(outcome.verdicts["valid"], judged),
        "unknown": outcome.verdicts["unknown"],
        "valid_allowed": _ratio(sum(outcome.right), len(outcome.right)),
        "invalid_allowed": _ratio(sum(outcome.wrong), len(outcome.wrong)),
    }


def _times(name: str, seconds: Sequence[float], factor: float) -> dict[str, float | None]:
    keys = [f"{name}_{point}" for point in ("p50", "p99", "max")]
    if not seconds:
        return dict.fromkeys(keys)
    values = percentiles(seconds, (50, 99, 100))
    return {key: factor * value for key, value in zip(keys, values, strict=True)}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def tables(rows: Sequence[ResultRow]) -> list[str]:
    """Return two tables in Markdown: the compilation of the schemas, and the answers."""
    times = ("compile_ms", "mask_us", "draft_ms")
    speed: list[list[Cell]] = [
        [
            *(row["family"], row["schemas"], share(row["compiled"])),
            *(
                " / ".join(number(row[f"{name}_{point}"]) for point in ("p50", "p99", "max"))
                for name in times
            ),
        ]
        for row in rows
    ]
    shares = ("forced", "ended", "valid", "valid_allowed", "invalid_allowed")
    answers: list[list[Cell]] = [
        [row["family"], row["answers"], row["tokens"], *(share(row[name]) for name in shares)]
        for row in rows
    ]
    return [
        table(
            ["Schemas", "Number", "Compiled", "Compiling, ms", "A mask, µs", "A draft, ms"], speed
        ),
        table(
            [
                *("Answers to", "Number", "Tokens", "Forced", "Ended", "Valid"),
                *("Valid values allowed", "Invalid values allowed"),
            ],
            answers,
        ),
    ]


def _caption(settings: SchemasSettings) -> str:
    if settings.address is not None:
        condition = "without the constraint" if settings.unconstrained else "with the constraint"
        return (
            f"JSON Schemas that a service was asked to answer to, {condition}; at most "
            f"{settings.max_tokens} tokens. Valid is the share of the answers that ended."
        )
    return (
        "JSON Schemas as grammars, followed by random tokens, without a model. Times are median / "
        f"99th percentile / maximum: of compiling with the first mask, of one mask, and of the "
        f"{settings.draft_length + 1} masks of a draft. Answers have at most {settings.max_tokens} "
        "tokens; valid is the share of those that ended."
    )


def _reasons(facts: Mapping[str, Any]) -> str:
    return table(["Refused because", "Schemas"], [[*item] for item in facts["refused"].items()])
