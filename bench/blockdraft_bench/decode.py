"""`bench decode`: plain decoding and each draft method, one answer at a time, side by side."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

from blockdraft_bench.answers import PLAIN, Answer
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.divergence import ChoiceMargin, find_divergences
from blockdraft_bench.engine.loading import (
    Capacity,
    DecodingMethods,
    largest_block,
    load_drafting,
    load_methods,
    whole_proposal,
)
from blockdraft_bench.engine.samples import Limits, SampleDecoder, answer_all
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.figure import draw
from blockdraft_bench.prompts import prepare
from blockdraft_bench.provenance import Target, hardware
from blockdraft_bench.result import INTERVALS_NOTE, Cell, Result, Row, number, page, share, table
from blockdraft_bench.run import Run
from blockdraft_bench.settings import DecodeSettings
from blockdraft_bench.speed import averages, summarize
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.errors import ResolveError
from blockdraft_models.precision import serving_dtype

EAGLE3, LOOKUP = "eagle3", "lookup"


def measure(settings: DecodeSettings, run: Run) -> Result:
    """Decode every sample by every method, one method right after another, and sum up."""
    prompts = settings.prompts
    prepared = prepare(prompts)
    loading = run.phase("loading and compiling")
    methods, lengths = set_up(settings, loading.reach)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    target, drafters = Target.of(methods.checkpoint), _drafters(methods, lengths)
    dtype = str(serving_dtype(settings.dtype))
    # Times of another accelerator are other times.
    conditions = settings.draft_policy, hardware()
    run.identify(limits, lengths, target, drafters, dtype, conditions)
    decoder = sample_decoder(methods.decoders, lengths)
    decoding = run.phase("decoding", total=prepared.count * len(settings.temperature))
    # All methods are one group: one that was interrupted between two is decoded again by all.
    answered = answer_all(
        prepared.prompt_sets,
        settings.temperature,
        limits,
        [tuple(lengths)],
        decoder,
        run.store(dict[str, Answer]),
        on_answers=decoding.advance,
    )
    margin = ChoiceMargin(methods.target)
    rows = [
        {
            **summarize(each, method, length, prompts.seed),
            "divergences": find_divergences(each, method, margin),
        }
        for each in answered
        for method, length in lengths.items()
    ]
    for engine in methods.engines:
        engine.close()
    means = averages(answered, lengths, prompts.seed)
    named = [
        f"{method} ({'trained' if drafter['trained'] else 'untrained'}, {drafter['fingerprint']}, "
        f"blocks of {drafter['block_size']})"
        for method, drafter in drafters.items()
    ]
    caption = (
        f"Target {target}, {dtype}; drafters: {', '.join(named) or 'none'}; "
        f"{settings.draft_policy} policy; one answer at a time, of at most {prompts.max_tokens} "
        f"tokens. {INTERVALS_NOTE}"
    )
    facts = {
        "target": target,
        "drafters": drafters,
        "dtype": dtype,
        "recompilations": decoder.recompilations,
        "average": means,
    }
    text = page(caption, speed_table(rows, means), divergence_line(rows))
    return Result(facts, rows, text, draw(rows, "dataset", "speedup", ["method", "temperature"]))


def set_up(
    settings: DecodeSettings, on_compiled: Callable[[int, int], None]
) -> tuple[DecodingMethods, dict[str, int]]:
    """Load target and drafters, and compile all that decoding needs.

    Returns:
        What decodes, and the tokens of a whole proposal of each method, 0 for plain decoding.
    """
    target, wanted = settings.prompts.target, settings.method
    capacity = Capacity(1, settings.prompts.context_tokens, settings.dtype)
    drafters: dict[str, LoadedMethod | None] = {}
    for method in wanted or ("dflash", EAGLE3):
        if method in (PLAIN, LOOKUP):
            drafters |= {LOOKUP: None} if method == LOOKUP else {}
            continue
        # One of its own also beside lookup: a drafter has context slots for one engine.
        name = method.removesuffix(f"+{LOOKUP}")
        spec = settings.eagle3 if name == EAGLE3 else settings.dflash
        try:
            loaded = load_drafting(target, spec, capacity, block_size=settings.block_size)
        except ResolveError as error:
            # Not every target has a drafter of this method; whoever names one, wants it.
            if wanted or spec != EAGLE3:
                raise
            print(f"without {method}: {error}", file=sys.stderr)
            continue
        if loaded.method.spec.name != name:
            found = loaded.method.spec.name
            raise BenchUsageError(f"--{name} {spec} is a drafter of the method {found}")
        drafters[method] = loaded
    by_lookup = [method for method in drafters if method.endswith(LOOKUP)]
    lengths = {
        method: whole_proposal(
            settings.draft_length, largest_block(drafter, lookup=method in by_lookup)
        )
        for method, drafter in drafters.items()
    }
    methods = load_methods(target, drafters, capacity, settings.draft_policy, by_lookup=by_lookup)
    for engine in methods.engines:
        engine.warm_up(on_compiled)
    return methods, {method: lengths.get(method, 0) for method in methods.decoders}


def sample_decoder(
    decoders: Mapping[str, InProcessDecoder], draft_lengths: Mapping[str, int]
) -> SampleDecoder:
    """Return what decodes by each method; a draft length of 0 is plain decoding."""
    return SampleDecoder(
        {
            method: functools.partial(decoders[method].decode_alone, max_draft_tokens=length)
            for method, length in draft_lengths.items()
        }
    )


def _drafters(methods: DecodingMethods, lengths: Mapping[str, int]) -> dict[str, Row]:
    """Return what is said of the drafters."""
    return {
        method: {
            "fingerprint": drafter.fingerprint,
            "trained": drafter.trained,
            "block_size": drafter.block_size,
            "draft_length": draft_length,
        }
        for method, draft_length in lengths.items()
        if draft_length and method != LOOKUP
        for drafter in [methods.decoders[method].drafter]
    }


def speed_table(rows: Sequence[Row], means: Sequence[Row]) -> str:
    """Return a row for each dataset, temperature and method, and the means over datasets."""

    def cells(row: Row, dataset: str, *times: Cell) -> list[Cell]:
        drafted = row["method"] != PLAIN
        return [
            dataset,
            f"{row['temperature']:g}",
            row["method"],
            *times,
            number(row["acceptance_length"]) if drafted else "",
            number(row["speedup"], unit="x") if drafted else "",
            share(row["identical_share"]) if drafted else "",
        ]

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
    headings = ["Dataset", "T", "Method", "Answers", "TTFT ms", "TPOT ms", "tok/s", "τ", "speed-up"]
    return table([*headings, "identical"], [*measured, *averaged])


def divergence_line(rows: Sequence[Row]) -> str:
    """Say how many answers differ from plain decoding, and by which margins."""
    margins = [found["logit_margin"] for row in rows for found in row["divergences"]]
    drafted = sum(row["samples"] for row in rows if row["method"] != PLAIN)
    if not drafted:
        return "No draft method was measured."
    if not margins:
        return "Every answer is that of plain decoding, token for token."
    return (
        f"{len(margins)} of {drafted} answers {'differs' if len(margins) == 1 else 'differ'} from "
        "plain decoding; the target's margin where they part is at most "
        f"{max(margins):.3g}."
    )
