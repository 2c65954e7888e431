"""`bench decode`: plain decoding and each draft method, one completion at a time, side by side.

Seconds and tokens are those after a completion's first token, unless the name says otherwise.
Speeds are ratios of sums over the completions of a dataset, and the speed-up is a ratio of two of
them over the same samples.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from jaxtyping import Float

from blockdraft_bench.completions import (
    PLAIN,
    CompletionRecord,
    identical_completions,
    mean_speed_ratio,
    speed,
    speed_ratio,
)
from blockdraft_bench.engine.decoding import (
    EngineCapacity,
    InProcessDecoder,
    join,
    largest_block,
    load_drafting,
    load_target,
    whole_draft,
)
from blockdraft_bench.engine.divergence import ChoiceMargin, find_divergences
from blockdraft_bench.engine.samples import Answered, Limits, SampleDecoder, answer_all
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.prompts import prepare
from blockdraft_bench.provenance import hardware
from blockdraft_bench.result import (
    INTERVALS_NOTE,
    Cell,
    Result,
    ResultRow,
    draw,
    number,
    page,
    share,
    table,
)
from blockdraft_bench.run import Run
from blockdraft_bench.settings import DecodeSettings
from blockdraft_bench.statistics import bootstrap, bootstrap_mean, mean, median, quartiles
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.errors import ResolveError
from blockdraft_models.precision import serving_dtype

EAGLE3, PROMPT_LOOKUP = "eagle3", "prompt-lookup"


def measure(settings: DecodeSettings, run: Run) -> Result:
    """Decode every sample by every method, one method right after another, and sum up."""
    prompts = settings.prompts
    prepared = prepare(prompts)
    loading = run.phase("loading and compiling")
    model, decoders, lengths = set_up(settings, loading.reach)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    target, dtype = decoders[PLAIN].target, str(serving_dtype(settings.dtype))
    drafters = {
        method: decoders[method].drafter
        for method, length in lengths.items()
        if length and method != PROMPT_LOOKUP
    }
    # Times measured on another accelerator cannot be compared.
    conditions = settings.draft_policy, hardware()
    run.identify(limits, lengths, target, drafters, dtype, conditions)
    decoding = run.phase("decoding", total=prepared.count * len(settings.temperature))
    # All methods are one group: a sample interrupted between two is decoded again by all.
    answered = answer_all(
        prepared.prompt_sets,
        settings.temperature,
        limits,
        [tuple(lengths)],
        sample_decoder(decoders, lengths),
        run.store(dict[str, CompletionRecord]),
        on_completions=decoding.advance,
    )
    margin = ChoiceMargin(model)
    rows = [
        {
            **summarize(sample_set, method, length, prompts.seed),
            "divergences": find_divergences(sample_set, method, margin),
        }
        for sample_set in answered
        for method, length in lengths.items()
    ]
    for engine in dict.fromkeys(decoders.values()):
        engine.close()
    means = averages(answered, lengths, prompts.seed)
    named = ", ".join(dict.fromkeys(map(str, drafters.values())))
    caption = (
        f"Target {target}, {dtype}; {named or 'no drafter'}; {settings.draft_policy} policy; one "
        f"completion at a time, of at most {prompts.max_tokens} tokens. {INTERVALS_NOTE}"
    )
    facts = {
        "target": target,
        "drafters": {
            method: {**asdict(drafter), "draft_length": lengths[method]}
            for method, drafter in drafters.items()
        },
        "dtype": dtype,
        "average": means,
    }
    text = page(caption, speed_table(rows, means), divergence_line(rows))
    return Result(facts, rows, text, draw(rows, "dataset", "speedup", ["method", "temperature"]))


def set_up(
    settings: DecodeSettings, on_compiled: Callable[[int, int], None]
) -> tuple[Decoder, dict[str, InProcessDecoder], dict[str, int]]:
    """Load target and drafters, and compile their steps.

    The feature layers of an engine are fixed when it compiles, so each method has an engine of its
    own, over the same weights; plain decoding uses the first of them.

    Returns:
        The target, the decoder of each method, plain decoding first, and the tokens of a whole
        draft of each, 0 for plain decoding.
    """
    capacity = EngineCapacity(1, settings.prompts.context_tokens, settings.dtype)
    drafters = load_drafters(settings, capacity)
    looks_up = {method: method.endswith(PROMPT_LOOKUP) for method in drafters}
    lengths = {
        method: whole_draft(
            settings.draft_length, largest_block(drafter, prompt_lookup=looks_up[method])
        )
        for method, drafter in drafters.items()
    }
    target = load_target(settings.prompts.target, capacity)
    policy = settings.draft_policy
    drafting = {
        method: join(*target, drafter, capacity, policy, prompt_lookup=looks_up[method])
        for method, drafter in drafters.items()
    }
    engines = [*drafting.values()] or [join(*target, None, capacity, policy, prompt_lookup=False)]
    for engine in engines:
        engine.warm_up(on_compiled)
    return target[0], {PLAIN: engines[0], **drafting}, {PLAIN: 0, **lengths}


def load_drafters(
    settings: DecodeSettings, capacity: EngineCapacity
) -> dict[str, LoadedMethod | None]:
    """Load a drafter for each method that drafts, None for prompt lookup alone."""
    target, methods = settings.prompts.target, settings.method
    drafters: dict[str, LoadedMethod | None] = {}
    for method in methods or ("dflash", EAGLE3):
        if method in (PLAIN, PROMPT_LOOKUP):
            drafters |= {PROMPT_LOOKUP: None} if method == PROMPT_LOOKUP else {}
            continue
        # A separate drafter also beside prompt lookup: its draft KV cache is for one engine.
        name = method.removesuffix(f"+{PROMPT_LOOKUP}")
        spec = settings.eagle3 if name == EAGLE3 else settings.dflash
        try:
            loaded = load_drafting(target, spec, capacity, block_size=settings.block_size)
        except ResolveError as error:
            # Not every target has a drafter of this method; but a named one must exist.
            if methods or spec != EAGLE3:
                raise
            print(f"without {method}: {error}", file=sys.stderr)
            continue
        if (loaded_name := loaded.method.spec.name) != name:
            raise BenchUsageError(f"--{name} {spec} is a drafter of the method {loaded_name}")
        drafters[method] = loaded
    return drafters


def sample_decoder(
    decoders: Mapping[str, InProcessDecoder], draft_lengths: Mapping[str, int]
) -> SampleDecoder:
    """Return the decoder of each method; a draft length of 0 is plain decoding."""
    return SampleDecoder(
        {
            method: functools.partial(decoders[method].decode_alone, max_draft_tokens=length)
            for method, length in draft_lengths.items()
        }
    )


def summarize(answered: Answered, method: str, draft_length: int, seed: int) -> ResultRow:
    """Sum up one method on one dataset; `draft_length` is 0 for plain decoding."""
    completions, plain = answered.completions[method], answered.completions[PLAIN]
    [acceptance_length] = bootstrap(_tokens_and_steps(completions), _tokens_per_step, seed)
    tpots = [a.decode_seconds / a.timed_tokens for a in completions if a.timed_tokens]
    steps = [step for completion in completions for step in completion.steps]
    return {
        "dataset": answered.dataset,
        "method": method,
        "temperature": answered.temperature,
        "samples": len(completions),
        "tokens": sum(len(a.token_ids) for a in completions),
        # Time per token of a completion, over completions.
        "tpot_seconds": median(tpots),
        "tpot_seconds_quartiles": quartiles(tpots),
        "ttft_seconds": statistics.median(a.ttft_seconds for a in completions),
        "tokens_per_second": speed(completions),
        # Plain decoding's seconds per token over this method's.
        "speedup": speed_ratio(completions, plain, seed),
        "acceptance_length": acceptance_length,
        # Over verifications of drafts that are long enough; None if no draft was.
        "acceptance_per_position": [
            mean(float(accepted >= place) for drafted, accepted in steps if drafted >= place)
            for place in range(1, draft_length + 1)
        ],
        "mean_draft_length": mean(drafted for drafted, _ in steps),
        "identical_share": identical_completions(completions, plain),
    }


def averages(answered: Sequence[Answered], methods: Iterable[str], seed: int) -> list[ResultRow]:
    """Return the means over datasets, each counting the same, of methods at each temperature.

    That of the speed-up is geometric.
    """
    by_temperature: dict[float, list[Answered]] = {}
    for sample_set in answered:
        by_temperature.setdefault(sample_set.temperature, []).append(sample_set)
    rows = []
    for temperature, group in by_temperature.items():
        for method in methods:
            pairs = [
                (sample_set.completions[method], sample_set.completions[PLAIN])
                for sample_set in group
            ]
            counts = [_tokens_and_steps(completions) for completions, _ in pairs]
            rows.append(
                {
                    "method": method,
                    "temperature": temperature,
                    "speedup": mean_speed_ratio(pairs, seed),
                    "acceptance_length": bootstrap_mean(
                        counts, _tokens_per_step, lambda lengths: lengths.mean(0), seed
                    ),
                    "identical_share": mean(
                        identical_completions(completions, plain) for completions, plain in pairs
                    ),
                }
            )
    return rows


def _tokens_and_steps(
    completions: Sequence[CompletionRecord],
) -> Float[np.ndarray, "completions 2"]:
    return np.array([(a.timed_tokens, len(a.steps)) for a in completions], np.float64)


def _tokens_per_step(totals: Float[np.ndarray, "rows 2"]) -> Float[np.ndarray, "rows 1"]:
    return np.asarray(totals[:, :1] / totals[:, 1:])


def speed_table(rows: Sequence[ResultRow], means: Sequence[ResultRow]) -> str:
    """Return the table of each dataset, temperature and method, and of means over datasets."""

    def cells(row: ResultRow, dataset: str, *times: Cell) -> list[Cell]:
        gains: list[Cell] = [
            number(row["acceptance_length"]),
            number(row["speedup"], unit="x"),
            share(row["identical_share"]),
        ]
        shown = gains if row["method"] != PLAIN else ["", "", ""]
        return [dataset, f"{row['temperature']:g}", row["method"], *times, *shown]

    measured = [
        cells(
            row,
            row["dataset"],
            row["samples"],
            number(row["ttft_seconds"], 0, factor=1e3),
            number(row["tpot_seconds"], 1, factor=1e3),
            number(row["tokens_per_second"], 1),
        )
        for row in rows
    ]
    averaged = [cells(row, "mean", "", "", "", "") for row in means if row["method"] != PLAIN]
    headings = [
        "Dataset",
        "T",
        "Method",
        "Completions",
        "TTFT ms",
        "TPOT ms",
        "tok/s",
        "τ",
        "speed-up",
    ]
    return table([*headings, "identical"], [*measured, *averaged])


def divergence_line(rows: Sequence[ResultRow]) -> str:
    """Say how many completions differ from plain decoding, and by which margins."""
    margins = [divergence["logit_margin"] for row in rows for divergence in row["divergences"]]
    drafted = sum(row["samples"] for row in rows if row["method"] != PLAIN)
    if not drafted:
        return "No draft method was measured."
    if not margins:
        return "Every completion is that of plain decoding, token for token."
    return (
        f"{len(margins)} of {drafted} completions {'differs' if len(margins) == 1 else 'differ'} "
        "from plain decoding; the target's margin at the first difference is at most "
        f"{max(margins):.3g}."
    )
