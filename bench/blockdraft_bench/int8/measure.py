"""A target's own greedy answers, and how far its logits over them are off with int8 weights."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.preparation import prepare
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.common.provenance import Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.loading import Capacity, Dtype, engine_settings
from blockdraft_bench.engine.sample_request import sample_request
from blockdraft_bench.engine.teacher_forcing import TeacherForcing
from blockdraft_bench.int8.logit_error import LogitError, logit_error
from blockdraft_bench.int8.report import DatasetError, Int8Report, markdown
from blockdraft_models.decoder.dtypes import compute_dtype
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint, load_decoder

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Int8Settings:
    """How the weights are compared.

    Attributes:
        max_tokens: Most tokens of an answer.
        max_prompt_tokens: Most tokens of a prompt.
        stop_token_ids: Tokens that end an answer.
        dtype: Of the weights that are not int8, and of activations.
    """

    max_tokens: int
    max_prompt_tokens: int
    stop_token_ids: frozenset[int]
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class ForcedAnswer:
    """An answer of the float weights.

    Attributes:
        dataset: Where the prompt is from.
        prompt: Token ids.
        answer: Token ids.
        hidden: The float weights' hidden states that the answer's tokens were chosen by.
    """

    dataset: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    hidden: Float[np.ndarray, "choices hidden"]


@dataclass(frozen=True, slots=True)
class Int8Result:
    """What int8 weights change.

    Attributes:
        checkpoint: The target.
        answers: Number of answers of each dataset.
        errors: By dataset.
        float_bytes: Of all weights.
        int8_bytes: Of all weights when the layers' matrices are int8.
    """

    checkpoint: Checkpoint
    answers: dict[str, int]
    errors: dict[str, LogitError]
    float_bytes: int
    int8_bytes: int

    def rows(self) -> tuple[DatasetError, ...]:
        """Return the error of each dataset, then that over all positions."""
        total = LogitError()
        for error in self.errors.values():
            total = total.plus(error)
        answers = {**self.answers, "all": sum(self.answers.values())}
        return tuple(
            DatasetError(
                dataset,
                answers[dataset],
                error.positions,
                error.relative_rms,
                error.max_error,
                error.same_choice_share,
                error.mean_kl_nats,
            )
            for dataset, error in (*self.errors.items(), ("all", total))
        )


def load_and_measure(args: argparse.Namespace, datasets: Sequence[Dataset], run: Run) -> Outcome:
    """Load, measure, report.

    Args:
        args: The flags of `bench int8`, checked.
        datasets: What `--dataset` names.
        run: Where results are kept.
    """
    prepared = prepare(args, datasets)
    settings = Int8Settings(
        args.max_tokens, args.max_prompt_tokens, prepared.stop_token_ids, args.dtype
    )
    loading = run.phase("loading and compiling")
    comparing = run.phase("comparing", total=2 * prepared.count)
    result = measure_int8(
        prepared.target,
        prepared.prompt_sets,
        settings,
        on_compiled=loading.reach,
        on_answer=comparing.advance,
    )
    *rows, overall = result.rows()
    report = Int8Report(
        **origin(),
        target=Target.of(result.checkpoint),
        dtype=compute_dtype(args.dtype).name,
        max_tokens=args.max_tokens,
        max_prompt_tokens=args.max_prompt_tokens,
        seed=args.seed,
        float_weight_bytes=result.float_bytes,
        int8_weight_bytes=result.int8_bytes,
        overall=overall,
        results=tuple(rows),
    )
    run.identify(settings, report.target, args.dataset, args.samples, args.seed, report.hardware)
    return Outcome(report, markdown(report))


def measure_int8(
    path: Path,
    prompt_sets: Sequence[PromptSet],
    settings: Int8Settings,
    *,
    on_compiled: Progress = lambda done, total: None,
    on_answer: Callable[[], None] = lambda: None,
) -> Int8Result:
    """Compare a target with itself with int8 weights; they are loaded one after the other.

    Args:
        path: The target.
        prompt_sets: What it answers.
        settings: How.
        on_compiled: Told how many of how many steps are compiled.
        on_answer: Called twice for each prompt.

    Raises:
        ModelError: If the target cannot be loaded, or its weights are not finite.
    """
    dtype = compute_dtype(settings.dtype)
    decoder, checkpoint = load_decoder(path, dtype=dtype)
    answers = _greedy_answers(decoder, checkpoint, prompt_sets, settings, on_compiled)
    whole = _forcing(decoder, settings)
    float_bytes = whole.weight_bytes
    forced = []
    for prompt_set, tokens_of_set in zip(prompt_sets, answers, strict=True):
        for prompt, tokens in zip(prompt_set.prompts, tokens_of_set, strict=True):
            hidden = whole.hidden(prompt.token_ids, tokens)
            forced.append(ForcedAnswer(prompt_set.dataset, prompt.token_ids, tokens, hidden))
            on_answer()
    del decoder, whole
    rounded = _forcing(load_decoder(path, dtype=dtype, weights="int8")[0], settings)
    errors = {prompt_set.dataset: LogitError() for prompt_set in prompt_sets}
    for each in forced:
        # Neither head nor embedding is int8: the logits of both come from the same head.
        reference = rounded.logits(each.hidden)
        other = rounded.logits(rounded.hidden(each.prompt, each.answer))
        errors[each.dataset] = errors[each.dataset].plus(logit_error(reference, other))
        on_answer()
    counts = {prompt_set.dataset: len(prompt_set.prompts) for prompt_set in prompt_sets}
    return Int8Result(checkpoint, counts, errors, float_bytes, rounded.weight_bytes)


def _forcing(decoder: Decoder, settings: Int8Settings) -> TeacherForcing:
    return TeacherForcing(
        decoder,
        max_tokens=settings.max_prompt_tokens + settings.max_tokens,
        max_answer_tokens=settings.max_tokens,
    )


def _greedy_answers(
    decoder: Decoder,
    checkpoint: Checkpoint,
    prompt_sets: Sequence[PromptSet],
    settings: Int8Settings,
    on_compiled: Progress,
) -> list[list[tuple[int, ...]]]:
    """Return the answers to every prompt of every set, decoded by the verifier's engine."""
    capacity = Capacity(1, settings.max_prompt_tokens + settings.max_tokens, settings.dtype)
    engine = InProcessDecoder(decoder, checkpoint, None, engine_settings(capacity, block_size=1))
    engine.warm_up(on_compiled)
    found = []
    for prompt_set in prompt_sets:
        requests = [
            sample_request(
                prompt_set.dataset,
                prompt,
                0.0,
                max_tokens=settings.max_tokens,
                stop_token_ids=settings.stop_token_ids,
                seed=0,
            )
            for prompt in prompt_set.prompts
        ]
        answers: dict[int, Answer] = {}
        engine.decode(requests, answers.__setitem__)
        found.append([answers[index].token_ids for index in range(len(requests))])
    engine.close()
    return found
