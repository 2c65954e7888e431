"""`bench processor`: a row of the matrix of processors in docs/benchmarks.md for this one."""

import datetime
import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax

from blockdraft_bench.completions import DRAFTED, PLAIN, speed
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.samples import Completions, Limits, SampleDecoder, SampleRequest
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.prompts import SamplePrompt
from blockdraft_bench.provenance import versions
from blockdraft_bench.result import Result, ResultRow, number, page, table
from blockdraft_bench.run import Run
from blockdraft_bench.settings import ProcessorSettings
from blockdraft_bench.statistics import median
from blockdraft_client.cli.demo import DEFAULT_PROMPT
from blockdraft_drafter.app import load_method
from blockdraft_models.executables import keep_executables, require_devices
from blockdraft_models.precision import serving_dtype
from blockdraft_models.processor import this_processor, usable_cores
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.self_test import AT_START, ON_REQUEST, enforce

# Rows of the matrix can be compared only if all are measured alike: with the sequences of
# `blockdraft serve` and the completions of `blockdraft demo`.
MAX_SEQUENCES, MAX_TOKENS, ROUNDS = SchedulerSettings().max_sequences, 96, 3


def measure(settings: ProcessorSettings, run: Run) -> Result:
    """Measure a row for each number of cores, each in a process of its own."""
    usable = usable_cores()
    if settings.cores and sys.platform != "linux":
        raise BenchUsageError("--cores needs Linux")
    if max(settings.cores, default=1) > usable:
        raise BenchUsageError(f"--cores must be at most {usable}, as many as may be used here")
    measuring = run.phase("measuring", total=len(settings.cores) or 1)
    rows = []
    for cores in settings.cores or (None,):
        rows.append(_in_own_process(settings, cores))
        measuring.advance()
    date = datetime.date.today().isoformat()
    return Result({"date": date}, rows, page(matrix(rows, date, run.commit)), None)


def _in_own_process(settings: ProcessorSettings, cores: int | None) -> ResultRow:
    limit = None
    if cores is not None:
        # Before jax is imported: how many threads compute is settled when it starts.
        chosen = sorted(os.sched_getaffinity(0))[:cores]
        limit = functools.partial(os.sched_setaffinity, 0, chosen)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), limit) as executor:
        return executor.submit(measure_here, settings).result()


def measure_here(settings: ProcessorSettings) -> ResultRow:
    """Measure a row with the cores that this process may use."""
    if jax.default_backend() != "cpu":
        raise BenchUsageError("this measures a CPU: set JAX_PLATFORMS=cpu")
    processor = this_processor()
    keep_executables()
    require_devices()
    target = resolve_target(settings.target)
    span = AT_START if settings.quick else ON_REQUEST
    test = functools.partial(enforce, allow_inexact=False, span=span)
    engine = _load(settings, target, "bfloat16", test)
    exactness = engine.exactness
    assert exactness is not None
    auto = serving_dtype("auto").name
    if auto != "bfloat16":
        del engine
        engine = _load(settings, target, "auto")
    completions = _answer(target, engine)
    row = {
        "target": engine.target,
        "drafter": engine.drafter,
        "processor": processor,
        "auto": auto,
        # Of bfloat16, after padding.
        "self_test": exactness.summary(),
        "plain_tokens_per_second": median(speed([pair[PLAIN]]) for pair in completions),
        "drafted_tokens_per_second": median(speed([pair[DRAFTED]]) for pair in completions),
        "identical": len({a.token_ids for pair in completions for a in pair.values()}) == 1,
    }
    engine.close()
    return row


def _load(
    settings: ProcessorSettings,
    target: Path,
    dtype: Dtype,
    self_test: Callable[[ModelRunner, Mapping[Bucket, float]], Exactness] | None = None,
) -> InProcessDecoder:
    """Load target and drafter with the limits and the draft policy of `blockdraft serve`."""
    decoder, checkpoint = load_decoder(target, dtype=serving_dtype(dtype))
    drafting = DrafterSettings(
        target=str(target), drafter=settings.drafter, max_sequences=MAX_SEQUENCES, dtype=dtype
    )
    config = EngineSettings(scheduler=SchedulerSettings(max_sequences=MAX_SEQUENCES), dtype=dtype)
    engine = InProcessDecoder(decoder, checkpoint, load_method(drafting), config, self_test)
    engine.warm_up()
    return engine


def _answer(target: Path, engine: InProcessDecoder) -> list[Completions]:
    """Return the greedy completions to the demo's prompt, round by round."""
    tokenizer = load_tokenizer(target)
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": DEFAULT_PROMPT}]))
    limits = Limits(MAX_TOKENS, frozenset(tokenizer.eos_token_ids))
    request = limits.request("demo", SamplePrompt("demo", prompt))
    plain = functools.partial(engine.decode_alone, max_draft_tokens=0)
    decoder = SampleDecoder({PLAIN: plain, DRAFTED: engine.decode_alone})
    rounds = [SampleRequest("demo", number, request) for number in range(ROUNDS)]
    completions: list[Completions] = []
    decoder((PLAIN, DRAFTED), rounds, lambda _, pair: completions.append(pair))
    return completions


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
            "`auto` is": row["auto"],
            "Self-test": row["self_test"],
            "plain tok/s": number(plain, 1),
            "drafted tok/s": number(drafted, 1),
            "drafted / plain": number(drafted / plain if plain and drafted else None, unit="x"),
            "identical": "yes" if row["identical"] else "**no**",
        }
        named.append(cells)
    return table([*named[0]], ([*row.values()] for row in named))
