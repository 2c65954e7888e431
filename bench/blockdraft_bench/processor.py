"""`bench processor`: a row of the matrix of processors in docs/benchmarks.md for this one."""

import contextlib
import datetime
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from blockdraft_bench.completions import DRAFTED, PLAIN, CompletionRecord, speed
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_bench.provenance import hardware, versions
from blockdraft_bench.result import Result, ResultRow, number, page, table
from blockdraft_bench.run import Run
from blockdraft_bench.samples import Limits, answer_all
from blockdraft_bench.service import ServiceDecoder, own_service, serve_arguments
from blockdraft_bench.settings import ProcessorSettings, engine_settings
from blockdraft_bench.statistics import median
from blockdraft_bench.store import ResultStore
from blockdraft_client.cli.demo import DEFAULT_PROMPT
from blockdraft_client.cli.local_server import terminated_like_interrupted
from blockdraft_client.params import SpeculationParams
from blockdraft_models.processor import this_processor, usable_cores
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.verifier import SchedulerSettings

# Rows of the matrix can be compared only if all are measured alike: with the sequences of
# `blockdraft serve` and the completions of `blockdraft demo`.
MAX_SEQUENCES, CONTEXT_TOKENS, MAX_TOKENS = SchedulerSettings().max_sequences, 512, 96
ROUNDS = 3


def measure(settings: ProcessorSettings, run: Run) -> Result:
    """Measure a row for each number of cores, by a service that may use only as many."""
    if hardware().accelerator is not None:
        raise BenchUsageError("this measures a CPU: set JAX_PLATFORMS=cpu")
    usable = usable_cores()
    if settings.cores and sys.platform != "linux":
        raise BenchUsageError("--cores needs Linux")
    if max(settings.cores, default=1) > usable:
        raise BenchUsageError(f"--cores must be at most {usable}, as many as may be used here")
    measuring = run.phase("measuring", total=len(settings.cores) or 1)
    rows = []
    for cores in settings.cores or (usable,):
        with terminated_like_interrupted(), limited_to(cores):
            rows.append(measure_here(settings))
        measuring.advance()
    date = datetime.date.today().isoformat()
    return Result({"date": date}, rows, page(matrix(rows, date, run.commit)), None)


@contextlib.contextmanager
def limited_to(cores: int) -> Iterator[None]:
    """Let what starts in the `with` block use so many cores."""
    if sys.platform != "linux":
        yield
        return
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def measure_here(settings: ProcessorSettings) -> ResultRow:
    """Measure a row with the cores that this process may use."""
    engine = engine_settings(MAX_SEQUENCES, CONTEXT_TOKENS, "auto", "adaptive", prompt_lookup=True)
    target = resolve_target(settings.target)
    tokenizer = load_tokenizer(target)
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": DEFAULT_PROMPT}]))
    # The same prompt in every round.
    rounds = PromptSet("demo", tuple(SamplePrompt(str(turn), prompt) for turn in range(ROUNDS)))
    arguments = serve_arguments(settings.target, settings.drafter, engine)
    with own_service(arguments) as service, service.connection.client() as client:
        [answered] = answer_all(
            [rounds],
            [0.0],
            Limits(MAX_TOKENS, frozenset(tokenizer.eos_token_ids)),
            {
                PLAIN: ServiceDecoder(client, SpeculationParams(disabled=True)),
                DRAFTED: ServiceDecoder(client, SpeculationParams()),
            },
            ResultStore(dict[str, CompletionRecord], "", Path(os.devnull)),
        )
    plain, drafted = answered.completions[PLAIN], answered.completions[DRAFTED]
    return {
        "target": service.target,
        "drafter": service.drafter,
        "processor": this_processor(),
        "exactness": str(service.model.exactness),
        "plain_tokens_per_second": median(speed([completion]) for completion in plain),
        "drafted_tokens_per_second": median(speed([completion]) for completion in drafted),
        "identical": len({completion.token_ids for completion in (*plain, *drafted)}) == 1,
    }


def matrix(rows: Sequence[ResultRow], date: str, commit: str | None) -> str:
    """Return the table; its rows are as those of docs/benchmarks.md."""
    head, dash, rest = (commit or "unknown").partition("-")
    named = []
    for row in rows:
        plain, drafted = row["plain_tokens_per_second"], row["drafted_tokens_per_second"]
        cells = {
            "Date": date,
            "Commit": f"{head[:7]}{dash}{rest}",
            "Processor": row["processor"].name,
            "bfloat16 instructions": ", ".join(row["processor"].instructions) or "none",
            "Cores": row["processor"].cores,
            "jaxlib": versions()["jaxlib"] or "unknown",
            "Self-test": row["exactness"],
            "plain tok/s": number(plain, 1),
            "drafted tok/s": number(drafted, 1),
            "drafted / plain": number(drafted / plain if plain and drafted else None, unit="x"),
            "identical": "yes" if row["identical"] else "**no**",
        }
        named.append(cells)
    return table([*named[0]], ([*row.values()] for row in named))
