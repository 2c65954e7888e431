"""`bench decode`: plain decoding and drafters side by side, by a service of each drafter.

Every prompt is decoded plainly and with drafts, one right after the other, by the same service.
Seconds and tokens are those after a completion's first token. Speeds are ratios of sums over the
completions of a dataset, and the speed-up is a ratio of two of them over the same samples. τ is the
mean number of tokens that a verification gains; acceptance at position k is the share of the drafts
with at least k tokens of which the k-th was accepted, which includes that all before it were.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import numpy as np
from jaxtyping import Float

from blockdraft_bench.completions import (
    PLAIN,
    CompletionRecord,
    divergences,
    identical_completions,
    mean_speed_ratio,
    speed,
    speed_ratio,
)
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.prompts import prepare
from blockdraft_bench.provenance import DrafterIdentity, digest
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
from blockdraft_bench.samples import Answered, Limits, answer_all
from blockdraft_bench.service import (
    RunningService,
    ServiceDecoder,
    check_drafter,
    own_service,
    serve_arguments,
)
from blockdraft_bench.settings import DecodeSettings, engine_settings
from blockdraft_bench.statistics import bootstrap, mean, median, quartiles
from blockdraft_client.cli.local_server import terminated_like_interrupted
from blockdraft_client.params import SpeculationParams
from blockdraft_runtime.settings.verifier import EngineSettings

NO_DRAFTER = "none"


def measure(settings: DecodeSettings, run: Run) -> Result:
    """Decode every sample plainly and with each drafter, and sum up."""
    prompts = settings.prompts
    prepared = prepare(prompts)
    for name in settings.drafter:
        if name != NO_DRAFTER:
            check_drafter(prompts.target, name)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed, settings.top_p)
    run.identify(
        *(limits, prompts.target, settings.dtype, settings.draft_policy, settings.draft_length),
        *(settings.prompt_lookup, settings.block_size, settings.concurrency),
    )
    store = run.store(dict[str, CompletionRecord])
    speculation = SpeculationParams(max_draft_tokens=settings.draft_length)
    engine = engine_settings(
        settings.concurrency,
        prompts.context_tokens,
        settings.dtype,
        settings.draft_policy,
        prompt_lookup=settings.prompt_lookup,
    )
    drafters: dict[str, DrafterIdentity] = {}
    answered: list[Answered] = []
    for name in settings.drafter:
        starting = run.phase(f"starting a service, drafter {name}", total=1)
        drafter = None if name == NO_DRAFTER else name
        arguments = serve_arguments(prompts.target, drafter, engine)
        arguments += ["--block-size", str(settings.block_size)]
        with (
            terminated_like_interrupted(),
            own_service(arguments) as service,
            service.connection.client() as client,
        ):
            starting.advance()
            check_draft_length(settings, service)
            target, dtype = service.target, service.dtype
            if service.drafter is not None:
                drafters[name] = service.drafter
            decoders = {PLAIN: ServiceDecoder(client, SpeculationParams(disabled=True))}
            if drafter is not None or settings.prompt_lookup:
                decoders[name] = ServiceDecoder(client, speculation)
            decoding = run.phase("decoding", total=prepared.count * len(settings.temperature))
            answered += answer_all(
                prepared.prompt_sets,
                settings.temperature,
                limits,
                decoders,
                store,
                identity=[digest(target, service.drafter, dtype)],
                concurrency=settings.concurrency,
                on_sample=decoding.advance,
            )
    rows, means = summaries(answered, prompts.seed), averages(answered, prompts.seed)
    more = ", with prompt lookup" if settings.prompt_lookup else ""
    nucleus = "" if settings.top_p == 1.0 else f", top-p {settings.top_p:g}"
    caption = (
        f"Target {target}, {dtype}; {', '.join(map(str, drafters.values())) or 'no drafter'}"
        f"{more}; {settings.draft_policy} policy{nucleus}; {settings.concurrency} at a time, "
        f"completions of at most {prompts.max_tokens} tokens. {INTERVALS_NOTE}"
    )
    facts = {
        "target": target,
        "drafters": {name: asdict(drafter) for name, drafter in drafters.items()},
        "dtype": dtype,
        "average": means,
    }
    text = page(caption, speed_table(rows, means), divergence_line(rows))
    return Result(facts, rows, text, draw(rows, "dataset", "speedup", ["method", "temperature"]))


def check_draft_length(settings: DecodeSettings, service: RunningService) -> None:
    """Refuse drafts that no block holds."""
    blocks = [1] if service.drafter is None else [service.drafter.block_size]
    if settings.prompt_lookup:
        blocks.append(EngineSettings().prompt_lookup_block)
    longest, length = max(blocks) - 1, settings.draft_length
    if length is not None and length > longest:
        raise BenchUsageError(
            f"the draft length must be 1 to {longest}, a block of {longest + 1} less its anchor; "
            f"got {length}"
        )


def summaries(answered: Sequence[Answered], seed: int) -> list[ResultRow]:
    """Sum up plain decoding and every drafter on each dataset at each temperature.

    Plain decoding is that of the first service.
    """
    by_set: dict[tuple[str, float], list[Answered]] = {}
    for sample_set in answered:
        by_set.setdefault((sample_set.dataset, sample_set.temperature), []).append(sample_set)
    return [
        summarize(sample_set, method, seed)
        for group in by_set.values()
        for index, sample_set in enumerate(group)
        for method in sample_set.completions
        if index == 0 or method != PLAIN
    ]


def summarize(answered: Answered, method: str, seed: int) -> ResultRow:
    """Sum up one method on one dataset."""
    completions, plain = answered.completions[method], answered.completions[PLAIN]
    tpots = [a.decode_seconds / a.timed_tokens for a in completions if a.timed_tokens]
    verifications = sum(a.verifications for a in completions)
    drafted = _sum_by_position(a.drafted_per_position for a in completions)
    accepted = _sum_by_position(a.accepted_per_position for a in completions)
    return {
        "dataset": answered.dataset,
        "method": method,
        "temperature": answered.temperature,
        "samples": len(completions),
        "tokens": sum(len(a.token_ids) for a in completions),
        "verifications": verifications,
        # Time per token of a completion, over completions.
        "tpot_seconds": median(tpots),
        "tpot_seconds_quartiles": quartiles(tpots),
        "tokens_per_second": speed(completions),
        # Plain decoding's seconds per token over this method's.
        "speedup": speed_ratio(completions, plain, seed),
        "acceptance_length": bootstrap([_tokens_and_steps(completions)], seed),
        "acceptance_per_position": [
            right / count for right, count in zip(accepted, drafted, strict=False) if count
        ],
        "mean_draft_length": sum(drafted) / verifications if verifications else None,
        "identical_share": identical_completions(completions, plain),
        "divergences": [
            {"sample_id": answered.sample_ids[index], "position": position}
            for index, position in divergences(completions, plain)
        ],
    }


def _sum_by_position(counts: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in itertools.zip_longest(*counts, fillvalue=0)]


def averages(answered: Sequence[Answered], seed: int) -> list[ResultRow]:
    """Return the means over datasets, each counting the same, of each drafter and temperature.

    That of the speed-up is geometric.
    """
    groups: dict[tuple[float, str], list[Answered]] = {}
    for sample_set in answered:
        for method in sample_set.completions.keys() - {PLAIN}:
            groups.setdefault((sample_set.temperature, method), []).append(sample_set)
    rows = []
    for (temperature, method), group in groups.items():
        pairs = [
            (sample_set.completions[method], sample_set.completions[PLAIN]) for sample_set in group
        ]
        counts = [_tokens_and_steps(completions) for completions, _ in pairs]
        rows.append(
            {
                "method": method,
                "temperature": temperature,
                "speedup": mean_speed_ratio(pairs, seed),
                "acceptance_length": bootstrap(counts, seed),
                "identical_share": mean(
                    identical_completions(completions, plain) for completions, plain in pairs
                ),
            }
        )
    return rows


def _tokens_and_steps(
    completions: Sequence[CompletionRecord],
) -> Float[np.ndarray, "completions 2"]:
    return np.array([(a.timed_tokens, a.verifications) for a in completions], np.float64)


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
            number(row["tpot_seconds"], 1, factor=1e3),
            number(row["tokens_per_second"], 1),
        )
        for row in rows
    ]
    averaged = [cells(row, "mean", "", "", "") for row in means]
    headings = ["Dataset", "T", "Method", "Completions", "TPOT ms", "tok/s", "τ", "speed-up"]
    return table([*headings, "identical"], [*measured, *averaged])


def divergence_line(rows: Sequence[ResultRow]) -> str:
    """Say how many completions differ from plain decoding."""
    drafted = sum(row["samples"] for row in rows if row["method"] != PLAIN)
    different = sum(len(row["divergences"]) for row in rows)
    if not drafted:
        return "No drafter was measured."
    if not different:
        return "Every completion is that of plain decoding, token for token."
    return f"{different} of {drafted} completions are not those of plain decoding."
