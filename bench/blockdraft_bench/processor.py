"""`bench processor`: a row of the matrix of processors in docs/benchmarks.md for this one."""

import contextlib
import datetime
import os
import sys
from collections.abc import Iterator, Sequence

from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.provenance import hardware, versions
from blockdraft_bench.result import Result, ResultRow, number, page, table
from blockdraft_bench.run import Run
from blockdraft_bench.service import own_service, serve_arguments
from blockdraft_bench.settings import ProcessorSettings, engine_settings
from blockdraft_client.cli import demo
from blockdraft_client.cli.local_server import terminated_like_interrupted
from blockdraft_models.processor import this_processor, usable_cores
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.verifier import SchedulerSettings

# Rows of the matrix can be compared only if all are measured alike: with the sequences of
# `blockdraft serve` and the completions of `blockdraft demo`.
MAX_SEQUENCES, CONTEXT_TOKENS = SchedulerSettings().max_sequences, demo.MIN_CONTEXT_TOKENS


def measure(settings: ProcessorSettings, run: Run) -> Result:
    """Measure a row for each number of cores, by a service that may use only as many."""
    if hardware().accelerator is not None:
        raise BenchUsageError("this measures a CPU: set JAX_PLATFORMS=cpu")
    usable = usable_cores()
    if settings.cores and sys.platform != "linux":
        raise BenchUsageError("--cores needs Linux")
    if max(settings.cores, default=1) > usable:
        raise BenchUsageError(f"--cores must be at most {usable}, as many as may be used here")
    resolve_target(settings.target)
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
    arguments = serve_arguments(settings.target, settings.drafter, engine)
    with own_service(arguments) as service, service.connection.client() as client:
        answer = demo.generate(client, demo.DEFAULT_PROMPT, drafted=True)
        report = demo.compare(client, demo.DEFAULT_PROMPT, answer, lambda line: None)
    return {
        "target": service.target,
        "drafter": service.drafter,
        "processor": this_processor(),
        "exactness": str(service.model.exactness),
        "plain_tokens_per_second": report.plain.tokens_per_second,
        "drafted_tokens_per_second": report.drafted.tokens_per_second,
        "speedup": report.speedup,
        "identical": report.identical,
    }


def matrix(rows: Sequence[ResultRow], date: str, commit: str | None) -> str:
    """Return the table; its rows are as those of docs/benchmarks.md."""
    head, dash, rest = (commit or "unknown").partition("-")
    named = []
    for row in rows:
        cells = {
            "Date": date,
            "Commit": f"{head[:7]}{dash}{rest}",
            "Processor": row["processor"].name,
            "bfloat16 instructions": ", ".join(row["processor"].instructions) or "none",
            "Cores": row["processor"].cores,
            "jaxlib": versions()["jaxlib"] or "unknown",
            "Self-test": row["exactness"],
            "plain tok/s": number(row["plain_tokens_per_second"], 1),
            "drafted tok/s": number(row["drafted_tokens_per_second"], 1),
            "drafted / plain": number(row["speedup"], unit="x"),
            "identical": "yes" if row["identical"] else "**no**",
        }
        named.append(cells)
    return table([*named[0]], ([*row.values()] for row in named))
