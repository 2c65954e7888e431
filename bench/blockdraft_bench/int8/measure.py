"""A target's own greedy answers, and how far its logits over them are off with int8 weights."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from blockdraft_bench.common.datasets import Dataset
from blockdraft_bench.common.prompts import PromptSet, prepare
from blockdraft_bench.common.provenance import Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.loading import Capacity, engine_settings
from blockdraft_bench.engine.samples import Limits
from blockdraft_bench.engine.teacher_forcing import TeacherForcing
from blockdraft_bench.int8.command import Int8Settings
from blockdraft_bench.int8.logit_error import LogitError, logit_error
from blockdraft_bench.int8.report import DatasetError, Int8Report, markdown
from blockdraft_models.precision import serving_dtype
from blockdraft_models.weights.loading import Checkpoint, load_decoder


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
    """What int8 weights change: the errors by dataset, and the bytes of all weights."""

    checkpoint: Checkpoint
    errors: dict[str, LogitError]
    float_bytes: int
    int8_bytes: int


def load_and_measure(settings: Int8Settings, datasets: Sequence[Dataset], run: Run) -> Outcome:
    """Load, measure, report; `datasets` are those that `--dataset` names."""
    prompts = settings.prompts
    prepared = prepare(prompts, datasets)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids)
    loading = run.phase("loading and compiling")
    comparing = run.phase("comparing", total=2 * prepared.count)
    result = measure_int8(
        prepared.target,
        prepared.prompt_sets,
        limits,
        Capacity(1, prompts.context_tokens, settings.dtype),
        on_compiled=loading.reach,
        on_answer=comparing.advance,
    )
    overall = functools.reduce(LogitError.plus, result.errors.values())
    report = Int8Report(
        **origin(run.commit),
        target=Target.of(result.checkpoint),
        dtype=serving_dtype(settings.dtype).name,
        max_tokens=prompts.max_tokens,
        max_prompt_tokens=prompts.max_prompt_tokens,
        seed=prompts.seed,
        float_weight_bytes=result.float_bytes,
        int8_weight_bytes=result.int8_bytes,
        overall=DatasetError.of("all", overall),
        results=tuple(DatasetError.of(*each) for each in result.errors.items()),
    )
    chosen = prompts.dataset, prompts.samples, prompts.seed, prompts.max_prompt_tokens
    run.identify(limits, chosen, report.dtype, report.target, report.hardware)
    return Outcome(report, markdown(report))


def measure_int8(
    path: Path,
    prompt_sets: Sequence[PromptSet],
    limits: Limits,
    capacity: Capacity,
    *,
    on_compiled: Callable[[int, int], None] = lambda done, total: None,
    on_answer: Callable[[str], None] = lambda dataset: None,
) -> Int8Result:
    """Compare a target with itself with int8 weights; they are loaded one after the other.

    Args:
        path: The target.
        prompt_sets: What it answers.
        limits: How it answers.
        capacity: For one answer; its dtype is that of the weights that are not int8.
        on_compiled: Told how many of how many steps are compiled.
        on_answer: Told the dataset twice for each prompt.

    Raises:
        ModelError: If the target cannot be loaded, or its weights are not finite.
    """
    dtype = serving_dtype(capacity.dtype)
    decoder, checkpoint = load_decoder(path, dtype=dtype)
    engine = InProcessDecoder(decoder, checkpoint, None, engine_settings(capacity, block_size=1))
    engine.warm_up(on_compiled)
    whole = TeacherForcing(decoder, capacity.context_tokens, limits.max_tokens)
    float_bytes = whole.weight_bytes
    forced = []
    for prompt_set in prompt_sets:
        for prompt in prompt_set.prompts:
            tokens = engine.decode_alone(limits.request(prompt_set.dataset, prompt)).token_ids
            hidden = whole.hidden(prompt.token_ids, tokens)
            forced.append(ForcedAnswer(prompt_set.dataset, prompt.token_ids, tokens, hidden))
            on_answer(prompt_set.dataset)
    engine.close()
    del decoder, engine, whole
    rounded = TeacherForcing(
        load_decoder(path, dtype=dtype, weights="int8")[0],
        capacity.context_tokens,
        limits.max_tokens,
    )
    errors = {prompt_set.dataset: LogitError() for prompt_set in prompt_sets}
    for each in forced:
        # Neither head nor embedding is int8: the logits of both come from the same head.
        reference = rounded.logits(each.hidden)
        other = rounded.logits(rounded.hidden(each.prompt, each.answer))
        errors[each.dataset] = errors[each.dataset].plus(logit_error(reference, other))
        on_answer(each.dataset)
    return Int8Result(checkpoint, errors, float_bytes, rounded.weight_bytes)
