"""Measuring peers: every prompt through every decoder, one right after another, round by round."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from blockdraft_bench.completions import (
    DRAFTED,
    PLAIN,
    CompletionRecord,
    identical_completions,
    speed,
)
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.peers.decoders import (
    BLOCKDRAFT,
    LLAMA_CPP,
    TRANSFORMERS,
    Peers,
    Variant,
    quantization,
)
from blockdraft_bench.prompts import prepare
from blockdraft_bench.provenance import hardware
from blockdraft_bench.result import Cell, Result, ResultRow, draw, number, page, share, table
from blockdraft_bench.run import Run
from blockdraft_bench.samples import DecodeOne, Limits, answer_all
from blockdraft_bench.service import ServiceDecoder, check_drafter, own_service, serve_arguments
from blockdraft_bench.settings import PeersSettings, engine_settings
from blockdraft_bench.statistics import quartiles
from blockdraft_client.cli.local_server import terminated_like_interrupted
from blockdraft_client.params import SpeculationParams
from blockdraft_models.precision import serving_dtype

# The completions of each decoder to the same prompts, in the same order.
Round = Mapping[Variant, Sequence[CompletionRecord]]


def measure(settings: PeersSettings, run: Run) -> Result:
    """Start the peers, load what a service decodes with, decode, compare."""
    machine = hardware()
    if machine.accelerator is not None:
        raise BenchUsageError("the peers compute on the processor; say JAX_PLATFORMS=cpu")
    prompts = settings.prompts
    prepared = prepare(prompts)
    check_drafter(prompts.target, settings.drafter)
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    dtype, threads = str(serving_dtype(settings.dtype)), machine.cores
    engine = engine_settings(
        1, prompts.context_tokens, settings.dtype, "adaptive", prompt_lookup=True
    )
    with ExitStack() as stack:
        run.phase("fetching and starting the peers")
        stack.enter_context(terminated_like_interrupted())
        peers = Peers(stack)
        if LLAMA_CPP in settings.peer:
            peers.start_llama_cpp(prepared.target, threads, prompts.context_tokens)
        if TRANSFORMERS in settings.peer:
            peers.start_transformers(prepared.target, dtype, threads)
        starting = run.phase("starting a service", total=1)
        arguments = serve_arguments(prompts.target, settings.drafter, engine)
        service = stack.enter_context(own_service(arguments))
        client = stack.enter_context(service.connection.client())
        starting.advance()
        # A service reads a GGUF file's matrices as they are stored.
        weights = quantization(prepared.target) if prepared.target.suffix == ".gguf" else dtype
        plain, drafted = (Variant(BLOCKDRAFT, name, weights) for name in (PLAIN, DRAFTED))
        decoders: dict[Variant, DecodeOne] = {
            plain: ServiceDecoder(client, SpeculationParams(disabled=True)),
            drafted: ServiceDecoder(client, SpeculationParams()),
            **peers.decoders,
        }
        target, drafter = service.target, service.drafter
        names = {str(variant): decode for variant, decode in decoders.items()}
        run.identify(limits, target, drafter, machine, peers.versions, [*names])
        decoding = run.phase("decoding", total=prepared.count * settings.rounds)
        rounds: list[Round] = []
        for turn in range(1, settings.rounds + 1):
            answered = answer_all(
                prepared.prompt_sets,
                [0.0],
                limits,
                names,
                run.store(dict[str, CompletionRecord], f"round-{turn}.jsonl"),
                on_sample=decoding.advance,
            )
            rounds.append(
                {
                    variant: [
                        completion
                        for sample_set in answered
                        for completion in sample_set.completions[str(variant)]
                    ]
                    for variant in decoders
                }
            )
    rows = compare(rounds, plain=plain, drafted=drafted)
    versions = ", ".join(f"{name} {version}" for name, version in peers.versions.items())
    caption = (
        f"Target {target}; {drafter}, beside prompt lookup; {versions}. {prepared.count} prompts, "
        f"greedy, completions of at most {prompts.max_tokens} tokens, one at a time; {threads} "
        "threads. "
        f"Medians of {settings.rounds} rounds, quartiles in parentheses."
    )
    facts = {
        "target": target,
        "drafter": drafter,
        "prompts": prepared.count,
        "rounds": settings.rounds,
        "threads": threads,
        "peer_versions": peers.versions,
    }
    figure = draw(rows, "decoder", "tokens_per_second", [])
    return Result(facts, rows, page(caption, peers_table(rows)), figure)


def compare(rounds: Sequence[Round], *, plain: Variant, drafted: Variant) -> list[ResultRow]:
    """Sum up all decoders over at least one round, against our plain and drafted decoding.

    A speed or ratio has the median of the rounds and their quartiles; None if no completion of a
    round has two tokens.
    """
    rows = []
    for variant in rounds[0]:
        completions = [completion for results in rounds for completion in results[variant]]
        reference = [completion for results in rounds for completion in results[plain]]
        rows.append(
            {
                "decoder": f"{variant.peer} {variant.name}",
                "dtype": variant.dtype,
                "tokens": sum(len(completion.token_ids) for completion in completions),
                "tokens_per_second": _spread([speed(results[variant]) for results in rounds]),
                "plain_ratio": _spread([_ratio(results, plain, variant) for results in rounds]),
                "drafted_ratio": _spread([_ratio(results, drafted, variant) for results in rounds]),
                "identical_share": identical_completions(completions, reference),
            }
        )
    return rows


def _ratio(completions: Round, ours: Variant, theirs: Variant) -> float | None:
    """Return the speed of one decoder over that of another in one round."""
    fast, slow = speed(completions[ours]), speed(completions[theirs])
    return fast / slow if fast is not None and slow is not None else None


def _spread(of_rounds: Sequence[float | None]) -> ResultRow | None:
    values = [value for value in of_rounds if value is not None]
    edges = quartiles(values)
    return None if edges is None else {"median": statistics.median(values), "quartiles": edges}


def peers_table(rows: Sequence[ResultRow]) -> str:
    """Return the rows as Markdown."""
    headings = ["Decoder", "Weights", "Tokens/s", "Our plain over it", "Our drafted over it"]
    cells: list[list[Cell]] = [
        [
            row["decoder"],
            row["dtype"],
            _cell(row["tokens_per_second"], 1),
            _cell(row["plain_ratio"], unit="x"),
            _cell(row["drafted_ratio"], unit="x"),
            share(row["identical_share"]),
        ]
        for row in rows
    ]
    return table([*headings, "Identical to our plain"], cells)


def _cell(spread: ResultRow | None, digits: int = 2, unit: str = "") -> str:
    if spread is None:
        return number(None)
    low, high = (number(edge, digits) for edge in spread["quartiles"])
    return f"{number(spread['median'], digits, unit)} ({low} to {high})"
