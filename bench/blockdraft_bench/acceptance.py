"""`bench acceptance`: how many drafted tokens a verification gains, by dataset and temperature.

Over the verifications that measure the drafter (`CompletionRecord.full_steps`), with K drafted
tokens each:

* τ is the mean number of tokens gained: accepted + 1, the target's own token.
* Acceptance at position k is the share in which the k-th drafted token was accepted, which
  includes that all before it were.
* Conditional acceptance at k is the share among those in which all before k were accepted.
* Decay at k is conditional acceptance at k + 1 over that at k: 1 means that drafts do not get
  worse with the distance from the anchor.

All are ratios of sums over completions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from blockdraft_bench.completions import DRAFTED, PLAIN, CompletionRecord, identical_completions
from blockdraft_bench.engine.decoding import (
    EngineCapacity,
    InProcessDecoder,
    load_pair,
    whole_draft,
)
from blockdraft_bench.engine.samples import (
    Answered,
    Decode,
    Keep,
    Limits,
    SampleRequest,
    answer_all,
)
from blockdraft_bench.prompts import prepare
from blockdraft_bench.result import (
    INTERVALS_NOTE,
    Result,
    ResultRow,
    draw,
    number,
    page,
    share,
    table,
)
from blockdraft_bench.run import Run
from blockdraft_bench.settings import AcceptanceSettings
from blockdraft_bench.statistics import bootstrap
from blockdraft_models.precision import serving_dtype


def measure(settings: AcceptanceSettings, run: Run) -> Result:
    """Decode every prompt with and without drafting at each temperature, and sum up."""
    prompts = settings.prompts
    prepared = prepare(prompts)
    loading = run.phase("loading and compiling")
    capacity = EngineCapacity(settings.concurrency, prompts.context_tokens, settings.dtype)
    decoder = load_pair(
        prompts.target, settings.drafter, capacity, "fixed", block_size=settings.block_size
    )
    target, drafter = decoder.target, decoder.drafter
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    draft_length = whole_draft(settings.draft_length, drafter.block_size)
    dtype = str(serving_dtype(settings.dtype))
    run.identify(limits, draft_length, target, drafter, dtype, settings.top_p)
    store = run.store(dict[str, CompletionRecord])
    decoder.warm_up(loading.reach)
    decoding = run.phase("decoding", total=prepared.count * len(settings.temperature) * 2)
    answered = answer_all(
        prepared.prompt_sets,
        settings.temperature,
        limits,
        [(DRAFTED,), (PLAIN,)],
        in_groups(decoder, {DRAFTED: draft_length, PLAIN: 0}, settings.top_p),
        store,
        many_at_a_time=True,
        on_completions=decoding.advance,
    )
    decoder.close()
    rows = [summarize(sample_set, draft_length, prompts.seed) for sample_set in answered]
    nucleus = "" if settings.top_p == 1.0 else f", top-p {settings.top_p:g}"
    caption = (
        f"Target {target}, {dtype}, {drafter}, {draft_length} tokens drafted{nucleus}; "
        f"completions of at most {prompts.max_tokens} tokens. {INTERVALS_NOTE}"
    )
    facts = {"target": target, "drafter": drafter, "draft_length": draft_length, "dtype": dtype}
    figure = draw(rows, "dataset", "acceptance_length", ["temperature"])
    return Result(facts, rows, page(caption, acceptance_table(rows)), figure)


def in_groups(decoder: InProcessDecoder, lengths: Mapping[str, int], top_p: float) -> Decode:
    """Return a `Decode` of many samples at a time; `lengths` has each way's draft length."""

    def decode(group: tuple[str, ...], samples: Sequence[SampleRequest], keep: Keep) -> None:
        [way] = group
        requests = [
            replace(
                sample.request,
                sampling=replace(sample.request.sampling, top_p=top_p),
                max_draft_tokens=lengths[way],
            )
            for sample in samples
        ]
        decoder.decode(requests, lambda index, completion: keep(index, {way: completion}))

    return decode


def summarize(answered: Answered, draft_length: int, seed: int) -> ResultRow:
    """Sum up the completions to one dataset; `reach_counts` has a list for each completion."""
    drafted, plain = answered.completions[DRAFTED], answered.completions[PLAIN]
    counts = reach_counts(drafted, draft_length)
    length, *shares = bootstrap(counts, _ratios, seed)
    return {
        "dataset": answered.dataset,
        "temperature": answered.temperature,
        "samples": len(drafted),
        "tokens": sum(len(completion.token_ids) for completion in drafted),
        "verifications": sum(len(completion.steps) for completion in drafted),
        # Verifications that measure the drafter.
        "steps": int(counts[:, 0].sum()),
        "acceptance_length": length,
        "acceptance_per_position": tuple(shares[:draft_length]),
        "conditional_acceptance_per_position": tuple(shares[draft_length : 2 * draft_length]),
        "acceptance_decay": tuple(shares[2 * draft_length :]),
        "identical_share": identical_completions(drafted, plain),
        "reach_counts": counts.tolist(),
    }


def reach_counts(
    completions: Sequence[CompletionRecord], draft_length: int
) -> Int[np.ndarray, "completions reach"]:
    """Return, for each completion, how many verifications accepted at least 0, 1, ... K tokens."""
    counts = np.zeros((len(completions), draft_length + 1), np.int64)
    for row, completion in zip(counts, completions, strict=True):
        for accepted in completion.full_steps(draft_length):
            row[: accepted + 1] += 1
    return counts


def _ratios(reached: Float[np.ndarray, "rows reach"]) -> Float[np.ndarray, "rows numbers"]:
    """Return τ, acceptance, conditional acceptance and decay; NaN where nothing was measured."""
    steps = reached[:, :1]
    # A verification that gained n tokens accepted at least 0, ... and at least n - 1.
    length = reached.sum(axis=1, keepdims=True) / steps
    conditional = reached[:, 1:] / reached[:, :-1]
    decay = conditional[:, 1:] / conditional[:, :-1]
    return np.concatenate([length, reached[:, 1:] / steps, conditional, decay], axis=1)


def acceptance_table(rows: Sequence[ResultRow]) -> str:
    """Return the rows as Markdown."""
    headings = ["Dataset", "T", "Completions", "Verifications", "τ", "Accepted at position 1, 2, …"]
    return table(
        [*headings, "Identical to plain"],
        (
            [
                row["dataset"],
                f"{row['temperature']:g}",
                row["samples"],
                row["steps"],
                row["acceptance_length"],
                " ".join(number(estimate.value) for estimate in row["acceptance_per_position"]),
                share(row["identical_share"]),
            ]
            for row in rows
        ),
    )
